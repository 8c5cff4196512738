"""Every engine and objective against an implementation of Algorithm 1 that shares no code with the package.

It is written from the paper: one example at a time, the equations of the cells spelled out, gradients by
autograd through exactly the steps that were read.
"""

import math
from itertools import pairwise

import pytest
import torch
from torch import nn

import rankcode as rc

FEATURES, UNITS = 3, 5


class Own(nn.Module):
    """A cell as a user may write it: no `output_shape`, no named state."""

    def __init__(self, inputs, units):
        super().__init__()
        self.mix = nn.Linear(inputs + units, units)
        self.speed = nn.Parameter(torch.tensor(0.3))

    def initial_state(self, rows):
        zeros = self.speed.new_zeros(rows, self.mix.out_features)
        return zeros, zeros

    def forward(self, x_t, state):
        hidden, slow = state
        hidden = torch.tanh(self.mix(torch.cat([x_t, hidden], 1)))
        slow = slow + self.speed.sigmoid() * (hidden - slow)
        return slow, (hidden, slow)


CELLS = {
    "lstm": lambda outputs: rc.cells.LSTM(FEATURES, UNITS),
    "lstm of 2 layers": lambda outputs: rc.cells.LSTM(FEATURES, UNITS, num_layers=2),
    "gru": lambda outputs: rc.cells.GRU(FEATURES, UNITS),
    "gru of 2 layers": lambda outputs: rc.cells.GRU(FEATURES, UNITS, num_layers=2),
    "own": lambda outputs: Own(FEATURES, UNITS),
    "lif": lambda outputs: rc.cells.LIF(FEATURES, outputs, emits="membranes"),
}


# The equations, for one example: x is a vector, `w` the parameters by name.


def lstm_step(w, layer, x, memory):
    h, c = memory
    gates = w[f"cell.weight_ih_l{layer}"] @ x + w[f"cell.bias_ih_l{layer}"]
    gates = gates + w[f"cell.weight_hh_l{layer}"] @ h + w[f"cell.bias_hh_l{layer}"]
    i, f, g, o = gates[:UNITS], gates[UNITS : 2 * UNITS], gates[2 * UNITS : 3 * UNITS], gates[3 * UNITS :]
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    h = torch.sigmoid(o) * torch.tanh(c)
    return h, (h, c)


def gru_step(w, layer, x, memory):
    (h,) = memory
    a = w[f"cell.weight_ih_l{layer}"] @ x + w[f"cell.bias_ih_l{layer}"]
    b = w[f"cell.weight_hh_l{layer}"] @ h + w[f"cell.bias_hh_l{layer}"]
    r = torch.sigmoid(a[:UNITS] + b[:UNITS])
    z = torch.sigmoid(a[UNITS : 2 * UNITS] + b[UNITS : 2 * UNITS])
    n = torch.tanh(a[2 * UNITS :] + r * b[2 * UNITS :])
    h = (1 - z) * n + z * h
    return h, (h,)


def own_step(w, layer, x, memory):
    hidden, slow = memory
    hidden = torch.tanh(w["cell.mix.weight"] @ torch.cat([x, hidden]) + w["cell.mix.bias"])
    a = 1 / (1 + torch.exp(-w["cell.speed"]))
    slow = (1 - a) * slow + a * hidden
    return slow, (hidden, slow)


def lif_step(w, layer, x, memory):
    u, o = memory
    u = 0.2 * u * (1 - o) + w["cell.synapses.1.weight"] @ x + w["cell.synapses.1.bias"]
    ramp = (u - 0.5 + 0.5).clamp(0, 1)  # its slope is the surrogate: 1 where |u − 0.5| < 0.5
    o = (u > 0.5).to(u.dtype) + ramp - ramp.detach()
    return u, (u, o)


STEPS = {"lstm": (lstm_step, 2), "gru": (gru_step, 1), "own": (own_step, 2), "lif": (lif_step, 2)}


def outputs_of_step(kind, w, x, memories):
    """One step of the network for one example: its output neurons' values before softmax or sigmoid."""
    step, _ = STEPS[kind.split()[0]]
    after = []
    for layer, memory in enumerate(memories):
        x, memory = step(w, layer, x, memory)
        after.append(memory)
    if kind == "lif":
        return x, after
    name = "readout.1" if kind == "own" else "readout"
    return w[f"{name}.weight"] @ x + w[f"{name}.bias"], after


def neurons(kind, z):
    """What the threshold is compared with: a number for each class."""
    if len(z) == 1:
        p = 1 / (1 + torch.exp(-z[0]))
        return torch.stack([1 - p, p])
    return z if kind == "lif" else torch.exp(z) / torch.exp(z).sum()


def cross_entropy(z, label):
    if len(z) == 1:
        return torch.log1p(torch.exp(-z[0] if label else z[0]))
    return torch.logsumexp(z, 0) - z[label]


def entropy(z):
    if len(z) == 1:
        return sum(torch.sigmoid(s * z[0]) * cross_entropy(z, label) for label, s in ((0, -1), (1, 1)))
    p = torch.exp(z - torch.logsumexp(z, 0))
    return sum(p[label] * cross_entropy(z, label) for label in range(len(z)))


def algorithm_1(kind, w, sequence, theta):
    """(outputs of each step read, inferred label, whether a neuron fired) of one example."""
    layers = 2 if "2 layers" in kind else 1
    units = len(w["cell.synapses.1.bias"]) if kind == "lif" else UNITS
    memories = [tuple(sequence.new_zeros(units) for _ in range(STEPS[kind.split()[0]][1])) for _ in range(layers)]
    read = []
    for x in sequence:
        z, memories = outputs_of_step(kind, w, x, memories)
        read.append(z)
        y = neurons(kind, z)
        if any(y_j >= theta for y_j in y):
            return read, int(y.argmax()), True
    return read, int(y.argmax()), False


def example_loss(objective, read, label, length, beta):
    if objective in ("AtSpike", "AtEnd"):
        return cross_entropy(read[-1], label) - beta * entropy(read[-1])
    total = sum(cross_entropy(z, label) for z in read) / length
    return total if objective == "EveryStep" else total - beta * entropy(read[-1])


def expected(kind, network, inputs, labels, lengths, objective, theta, beta):
    """Labels, steps, fired, loss and gradients, the way the paper says."""
    w = {name: p.detach().clone().requires_grad_() for name, p in network.named_parameters()}
    theta = theta if objective in ("AtSpike", "UntilSpike") else math.inf
    answers, steps, fired, losses = [], [], [], []
    for sequence, label, length in zip(inputs, labels.tolist(), lengths.tolist(), strict=True):
        read, answer, spiked = algorithm_1(kind, w, sequence[:length], theta)
        answers.append(answer)
        steps.append(len(read))
        fired.append(spiked)
        losses.append(example_loss(objective, read, label, length, beta))
    loss = torch.stack(losses).mean()
    loss.backward()
    return answers, steps, fired, loss.detach(), {name: p.grad for name, p in w.items()}


def make(kind, outputs, dtype, rows, steps, seed, scale=2.0):
    """A network with weights large enough for rows to fire at different steps, and data."""
    torch.manual_seed(seed)
    network = rc.Network(CELLS[kind](outputs), outputs).to(dtype)
    inputs = torch.randn(rows, steps, FEATURES, dtype=dtype)
    rc.decide(network, inputs)  # a readout that was not given a size takes it here
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if "bias" not in name:
                parameter.normal_(std=scale if "readout" in name else 1.0)
    lengths = torch.randint(1, steps + 1, (rows,))
    lengths[:2] = torch.tensor([steps, 1])[:rows]  # the longest and the shortest that may be
    return network, inputs, torch.randint(network.num_classes, (rows,)), lengths


def engines_for(network):
    fused = type(network.cell) in (rc.cells.LSTM, rc.cells.GRU)
    return ["reference", "stepwise", "whole", "graphs", *(["cpu"] if fused else [])]


def compare(kind, network, inputs, labels, lengths, objective, theta, beta):
    """Hold every engine against Algorithm 1, and give Algorithm 1's steps and fired."""
    answers, steps, fired, loss, gradients = expected(kind, network, inputs, labels, lengths, objective, theta, beta)
    made = {
        "AtSpike": lambda: rc.AtSpike(threshold=theta, beta=beta),
        "UntilSpike": lambda: rc.UntilSpike(threshold=theta, beta=beta),
        "AtEnd": lambda: rc.AtEnd(beta=beta),
        "EveryStep": rc.EveryStep,
    }[objective]()
    # In float32 the terms of a sum are rounded at about 6e-8, however small the sum comes out.
    relative, absolute = (1e-10, 0.0) if inputs.dtype == torch.float64 else (1e-5, 6e-8)
    for engine in engines_for(network):
        network.zero_grad(set_to_none=True)
        got, decision = made(network, inputs, labels, lengths=lengths, engine=engine)
        got.backward()
        assert decision.label.tolist() == answers, engine
        assert decision.steps.tolist() == steps, engine
        assert decision.fired.tolist() == fired, engine
        assert abs(got.item() - loss.item()) <= relative * max(1, abs(loss.item())), engine
        for name, parameter in network.named_parameters():
            size = gradients[name].norm()
            assert size > 0 or max(steps) == 1, f"nothing to compare in {name}"
            error = (parameter.grad - gradients[name]).norm()
            assert error <= relative * size + absolute, f"{engine}, {name}: {error:.1e} of {size:.1e}"
    return torch.tensor(steps), torch.tensor(fired)


def mixing_threshold(kind, network, inputs, labels, lengths):
    """A θ that between a quarter and half of the rows never reach, as far as can be from every activation."""
    w = {name: p.detach() for name, p in network.named_parameters()}
    sequences = [sequence[:length] for sequence, length in zip(inputs, lengths.tolist(), strict=True)]
    largest = [
        [neurons(kind, z).max().item() for z in algorithm_1(kind, w, sequence, math.inf)[0]] for sequence in sequences
    ]
    peaks = sorted(max(row) for row in largest)
    low, high = peaks[len(peaks) // 4], peaks[len(peaks) // 2]
    values = sorted(value for row in largest for value in row if low <= value <= high)
    gap, theta = max((above - below, (above + below) / 2) for below, above in pairwise(values))
    assert gap > 2e-5
    return theta


def assert_mixed(steps, fired, lengths):
    """Rows that fire at once, rows that fire later and rows that never do: else the comparison is empty."""
    assert len(set(steps[fired].tolist())) >= 3
    assert (fired & (steps < lengths)).sum() >= 3
    assert (~fired).sum() >= 2


OBJECTIVES = ["AtSpike", "UntilSpike", "AtEnd", "EveryStep"]
NETWORKS = [(kind, outputs) for kind in CELLS for outputs in (1, 2, 5) if not (kind == "lif" and outputs == 1)]


IN_FLOAT32 = [(kind, outputs, torch.float32) for kind, outputs in NETWORKS if kind == "lstm" or outputs == 5]


@pytest.mark.parametrize(("kind", "outputs", "dtype"), [(*each, torch.float64) for each in NETWORKS] + IN_FLOAT32)
def test_random_networks_and_mixed_lengths(kind, outputs, dtype):
    for number, objective in enumerate(OBJECTIVES):
        data = make(kind, outputs, dtype, rows=20, steps=8, seed=40 + number)
        theta = mixing_threshold(kind, *data)
        steps, fired = compare(kind, *data, objective, theta, 0.3)
        if objective in ("AtSpike", "UntilSpike"):
            assert_mixed(steps, fired, data[-1])
        else:
            assert not fired.any()


@pytest.mark.filterwarnings("ignore:beta is negative")
@pytest.mark.parametrize("objective", ["AtSpike", "UntilSpike"])
@pytest.mark.parametrize("theta", [0.5, 0.8, 0.9999])
@pytest.mark.parametrize("beta", [0.0, 1.0, -0.4])
def test_thresholds_and_betas(theta, beta, objective):
    compare("lstm", *make("lstm", 5, torch.float64, rows=8, steps=6, seed=11), objective, theta, beta)


EDGES = {
    # name: rows, steps, θ (None: one that only some rows reach), and what must hold
    "one step": (7, 1, None, lambda steps, fired, lengths: 0 < fired.sum() < 7 and steps.eq(1).all()),
    "one row": (1, 6, 0.9, lambda steps, fired, lengths: len(steps) == 1),
    "one row of one step": (1, 1, 0.9, lambda steps, fired, lengths: steps.tolist() == [1]),
    "all fire at step 1": (7, 6, 0.501, lambda steps, fired, lengths: fired.all() and steps.eq(1).all()),
    "none fires": (7, 6, 1.0, lambda steps, fired, lengths: not fired.any() and steps.equal(lengths)),
}


@pytest.mark.parametrize("kind", ["lstm", "gru of 2 layers", "own"])
@pytest.mark.parametrize("edge", EDGES)
def test_edges(edge, kind):
    rows, steps, given, holds = EDGES[edge]
    for outputs in (1, 2):
        data = make(kind, outputs, torch.float64, rows, steps, seed=3, scale=1.0)
        theta = mixing_threshold(kind, *data) if given is None else given
        for objective in OBJECTIVES:
            read, fired = compare(kind, *data, objective, theta, 0.2)
            if objective in ("AtSpike", "UntilSpike"):
                assert holds(read, fired, data[-1])


@pytest.mark.parametrize("engine", ["reference", "stepwise", "whole", "graphs"])
def test_probabilities_are_those_of_the_answer(engine):
    network, inputs, _, lengths = make("lstm", 5, torch.float64, rows=10, steps=7, seed=2)
    decision = rc.decide(network, inputs, lengths, rc.Threshold(0.97), engine=engine)
    w = dict(network.named_parameters())
    for row in range(10):
        read, _, _ = algorithm_1("lstm", w, inputs[row, : lengths[row]], 0.97)
        assert torch.allclose(decision.probabilities[row], neurons("lstm", read[-1]), rtol=0, atol=1e-12)
    assert not decision.probabilities.requires_grad
