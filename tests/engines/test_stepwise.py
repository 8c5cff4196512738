"""Which steps are computed, what inputs past the answer and other rows change, and every cell and rule."""

import math

import pytest
import torch
from torch import nn

import rankcode as rc
from rankcode import cells
from rankcode.engines import Choice, choose, run, stepwise

both_engines = pytest.mark.parametrize("engine", ["reference", "stepwise"])
LENGTHS = torch.tensor([7, 7, 4, 1, 6, 7, 3, 5, 7, 2])
LABELS = torch.arange(10) % 3


class Counted(torch.autograd.Function):
    """The identity; counts the rows that pass forward and the rows whose gradient passes back."""

    @staticmethod
    def forward(ctx, tensor, counts):
        ctx.counts = counts
        counts["forward"] += len(tensor)
        return tensor.clone()

    @staticmethod
    def backward(ctx, grad):
        ctx.counts["backward"] += len(grad)
        return grad, None


class CountingCell(nn.Module):
    output_shape = (4,)

    def __init__(self):
        super().__init__()
        self.step, self.counts = nn.GRUCell(3, 4), {"forward": 0, "backward": 0}

    def initial_state(self, rows):
        return self.step.weight_hh.new_zeros(rows, 4)

    def forward(self, x_t, state):
        after = Counted.apply(self.step(x_t, state), self.counts)
        return after, after


def firing_network(cell=None, outputs=3, dtype=torch.float64):
    """A network some of whose rows fire, at several steps, at θ = 0.6."""
    torch.manual_seed(1)
    network = rc.Network(cell or cells.LSTM(3, 4), outputs).to(dtype)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            std = 0.0 if "bias" in name else 2.0 if "readout" in name else 1.0
            parameter.normal_(std=std)
    return network, torch.randn(10, 7, 3, dtype=dtype)


def loss_and_gradients(objective, network, inputs, engine, lengths=LENGTHS):
    network.zero_grad(set_to_none=True)
    loss, decision = objective(network, inputs, LABELS[: len(inputs)], lengths, engine=engine)
    loss.backward()
    return loss.detach(), decision, [parameter.grad.clone() for parameter in network.parameters()]


def assert_mixed(decision):
    """Some rows fire before their end, at several steps, and some never do."""
    assert len(set(decision.steps[decision.fired].tolist())) >= 3
    assert (decision.fired & (decision.steps < LENGTHS)).sum() >= 3
    assert (~decision.fired).any()


OBJECTIVES = {
    "AtSpike": rc.AtSpike(threshold=0.6, beta=0.2),
    "UntilSpike": rc.UntilSpike(threshold=0.6, beta=0.2),
    "AtEnd": rc.AtEnd(beta=0.2),
    "EveryStep": rc.EveryStep(),
}
every_objective = pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES.keys())


# Steps computed.


@both_engines
@every_objective
def test_steps_computed_are_steps_read_forward_and_backward(objective, engine):
    network, inputs = firing_network(CountingCell())
    _, decision, _ = loss_and_gradients(objective, network, inputs, engine)
    if hasattr(objective.rule, "threshold"):
        assert_mixed(decision)
        assert decision.steps.sum() < LENGTHS.sum()
    else:
        assert decision.steps.equal(LENGTHS)
    read = int(decision.steps.sum())
    assert network.cell.counts == {"forward": read, "backward": read}


@both_engines
def test_inference_computes_steps_read_only(engine):
    network, inputs = firing_network(CountingCell())
    decision = rc.decide(network, inputs, LENGTHS, rc.Threshold(0.6), engine=engine)
    assert_mixed(decision)
    assert network.cell.counts == {"forward": int(decision.steps.sum()), "backward": 0}


@both_engines
def test_a_readout_before_the_end_is_not_needed_where_nothing_can_fire(engine):
    seen = []
    network, inputs = firing_network()
    network.readout.register_forward_hook(lambda module, args, output: seen.append(len(output)))
    rc.AtEnd()(network, inputs, LABELS, engine=engine)
    assert sum(seen) == (10 if engine == "stepwise" else 70)


def saved_numbers(network, inputs, rule):
    """How many numbers are kept for the backward pass."""
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.numel()) or tensor, lambda t: t):
        run(network, inputs, torch.full((len(inputs),), inputs.shape[1]), rule, engine="stepwise")
    return sum(kept)


def test_memory_follows_steps_read():
    network, _ = firing_network()
    long, short = torch.randn(10, 60, 3, dtype=torch.float64), torch.randn(10, 2, 3, dtype=torch.float64)
    assert saved_numbers(network, long, rc.FireAt(2)) == saved_numbers(network, short, rc.FireAt(2))
    halves = rc.FireAt([60] * 5 + [1] * 5)
    assert saved_numbers(network, long, halves) < 0.6 * saved_numbers(network, long, rc.FireAt(60))


# Inputs past the answer, and other rows.


@both_engines
@every_objective
@pytest.mark.parametrize("junk", ["random", math.nan, math.inf, -math.inf])
def test_inputs_past_the_answer_change_nothing(objective, junk, engine):
    network, inputs = firing_network()
    loss, decision, gradients = loss_and_gradients(objective, network, inputs, engine)
    past = torch.arange(7) >= decision.steps[:, None]
    assert past.any(1).sum() >= 5
    changed = inputs.clone()
    changed[past] = torch.randn_like(changed[past]) * 100 if junk == "random" else junk
    same_loss, same_decision, same_gradients = loss_and_gradients(objective, network, changed, engine)
    assert same_loss.equal(loss)
    assert all(a.equal(b) for a, b in zip(same_decision, decision, strict=True))
    assert all(a.equal(b) for a, b in zip(same_gradients, gradients, strict=True))


@both_engines
@every_objective
def test_gradient_reaches_the_steps_read_and_nothing_else(objective, engine):
    network, inputs = firing_network()
    inputs.requires_grad_()
    lengths = LENGTHS
    result = run(network, inputs, lengths, objective.rule, objective.keep, engine)
    losses = objective.row_losses(result, LABELS)
    read = torch.arange(7) < result.decision.steps[:, None]
    for row in range(10):
        (gradient,) = torch.autograd.grad(losses[row], inputs, retain_graph=True)
        reached = gradient.abs().sum(2) > 0
        assert reached[row].equal(read[row])
        assert reached.sum() == read[row].sum(), "another row got gradient"


@both_engines
@every_objective
def test_a_batch_is_the_mean_of_its_rows(objective, engine):
    network, inputs = firing_network()
    loss, decision, gradients = loss_and_gradients(objective, network, inputs, engine)
    losses, sums = [], [torch.zeros_like(gradient) for gradient in gradients]
    for row in range(10):
        network.zero_grad(set_to_none=True)
        alone = slice(row, row + 1)
        single, one = objective(network, inputs[alone, : LENGTHS[row]], LABELS[alone], engine=engine)
        single.backward()
        losses.append(single.detach())
        assert (one.label, one.steps, one.fired) == tuple(part[alone] for part in decision[:3])
        for total, parameter in zip(sums, network.parameters(), strict=True):
            total += parameter.grad / 10
    assert torch.stack(losses).mean() == pytest.approx(loss.item(), rel=1e-12)
    for total, gradient in zip(sums, gradients, strict=True):
        assert (total - gradient).norm() <= 1e-10 * gradient.norm()


@both_engines
def test_the_order_of_rows_does_not_matter(engine):
    network, inputs = firing_network()
    order = torch.randperm(10, generator=torch.Generator().manual_seed(0))
    straight = rc.decide(network, inputs, LENGTHS, rc.Threshold(0.6), engine=engine)
    shuffled = rc.decide(network, inputs[order], LENGTHS[order], rc.Threshold(0.6), engine=engine)
    assert shuffled.label.equal(straight.label[order])
    assert shuffled.steps.equal(straight.steps[order])
    assert torch.allclose(shuffled.probabilities, straight.probabilities[order], rtol=0, atol=1e-12)


# Every cell and every rule, against the reference.


class Smoothed:
    """A user's rule: a plain object that fires on a running average of the activations."""

    def initial_state(self, rows):
        return torch.zeros(rows, 3), [torch.zeros(rows, dtype=torch.long)]

    def __call__(self, activations, probabilities, step, state):
        average, (seen,) = state
        average = 0.5 * average + 0.5 * activations
        return average.amax(1) >= 0.55, (average, [seen + 1])


IMAGES = {"in_channels": 1, "image_size": (4, 3)}
NETWORKS = {
    "lstm": lambda: rc.Network(cells.LSTM(12, 5, num_layers=2), 3),
    "gru": lambda: rc.Network(cells.GRU(12, 5), 3, readout=nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))),
    "conv lstm": lambda: rc.Network(cells.ConvLSTM(hidden_channels=2, **IMAGES), 3),
    "lif": lambda: rc.Network(cells.LIF(12, 3, emits="membranes"), 3),
    "conv lif": lambda: rc.Network(cells.ConvLIF(hidden_channels=4, pool_size=1, **IMAGES), 3),
    "spiking stack": lambda: rc.Network(
        cells.Stack(cells.ConvLIF(hidden_channels=3, **IMAGES), cells.LIF(36, 8), cells.LIF(8, 3, emits="membranes")), 3
    ),
    "stack in a stack": lambda: rc.Network(
        cells.Stack(cells.Stack(cells.GRU(12, 4), cells.LSTM(4, 5)), cells.GRU(5, 4)), 3
    ),
}
RULES = {
    "threshold": lambda: rc.Threshold(0.5),
    "some classes": lambda: rc.Threshold(0.4, classes=(0, 2)),
    "step thresholds": lambda: rc.StepThresholds([0.9, 0.7, 0.5]),
    "planted": lambda: rc.FireAt([1, 9, 3, 1, 2, 7, 3, 1, 6, 1]),
    "patience": lambda: rc.Patience(rc.Threshold(0.4), 2),
    "user's": Smoothed,
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", NETWORKS)
def test_stepwise_gives_what_the_reference_gives(kind, rule):
    torch.manual_seed(5)
    network, rule = NETWORKS[kind]().double(), RULES[rule]()
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.mul_(0.0 if "bias" in name else 2.5)
    images = any(isinstance(part, cells.ConvLSTM | cells.ConvLIF) for part in network.modules())
    inputs = torch.randn(10, 7, *((1, 4, 3) if images else (12,)), dtype=torch.float64)
    objective = rc.UntilSpike(rule=rule, beta=0.3)
    loss, decision, gradients = loss_and_gradients(objective, network, inputs, "reference")
    same_loss, same_decision, same_gradients = loss_and_gradients(objective, network, inputs, "stepwise")
    assert all(a.equal(b) for a, b in zip(same_decision[:3], decision[:3], strict=True))
    assert len(set(decision.steps.tolist())) > 1, "every row read as much: nothing is compared"
    assert same_loss.item() == pytest.approx(loss.item(), rel=1e-12)
    assert any(gradient.norm() > 0 for gradient in gradients)
    for a, b in zip(same_gradients, gradients, strict=True):
        assert (a - b).norm() <= 1e-10 * b.norm()


@both_engines
def test_a_users_rule_decides(engine):
    network, inputs = firing_network()
    decision = rc.decide(network, inputs, LENGTHS, Smoothed(), engine=engine)
    assert_mixed(decision)
    activations = rc.trace(network, inputs, LENGTHS).activations
    for row in range(10):
        average, expected = torch.zeros(3), None
        for step in range(1, int(LENGTHS[row]) + 1):
            average = 0.5 * average + 0.5 * activations[row, step - 1]
            if expected is None and average.max() >= 0.55:
                expected = step
        assert decision.fired[row] == (expected is not None)
        assert decision.steps[row] == (expected or LENGTHS[row])


# What a run holds.


@both_engines
def test_keep_read_holds_every_step_read_once(engine):
    network, inputs = firing_network()
    result = run(network, inputs, LENGTHS, rc.Threshold(0.6), "read", engine)
    entries = sorted(zip(result.row.tolist(), result.step.tolist(), strict=True))
    steps = result.decision.steps.tolist()
    assert entries == [(row, step) for row in range(10) for step in range(1, steps[row] + 1)]
    answer = run(network, inputs, LENGTHS, rc.Threshold(0.6), "answer", engine)
    assert answer.row.equal(torch.arange(10)) and answer.step.equal(result.decision.steps)
    assert torch.allclose(result.at_answer(), answer.at_answer(), rtol=0, atol=1e-12)
    whole = rc.trace(network, inputs, LENGTHS)
    _, probabilities = network.activate(result.logits)
    assert torch.allclose(probabilities, whole.probabilities[result.row, result.step - 1], rtol=0, atol=1e-12)


@both_engines
def test_the_answer_where_every_row_reads_one_step(engine):
    network, inputs = firing_network()
    both = [run(network, inputs, LENGTHS, rc.FireAt(1), keep, engine).at_answer() for keep in ("answer", "read")]
    assert torch.equal(*both)


def test_engines_are_chosen_by_name():
    network, inputs = firing_network()
    for name in ("reference", "stepwise", "whole", "cpu"):
        assert choose(network, inputs, rc.Never(), name) == Choice(name, "asked for by name", capturable=False)
    assert choose(network, inputs, rc.Never()) == Choice("cpu", "fused steps, and rows that have answered cost nothing")
    own, _ = firing_network(CountingCell())
    assert choose(own, inputs, rc.Never()) == Choice("stepwise", "runs any cell on any device")
    with pytest.raises(ValueError, match=r"no engine 'fast'.*reference, stepwise"):
        rc.decide(network, inputs, engine="fast")


WRONG = {
    "two columns": lambda rows: (torch.zeros(rows, 2, dtype=torch.bool), None),
    "numbers": lambda rows: (torch.zeros(rows), None),
    "a Python bool": lambda rows: (True, None),
    "no state": lambda rows: torch.zeros(rows, dtype=torch.bool),
    "nothing": lambda rows: None,
}


@pytest.mark.parametrize("engine", ["reference", "stepwise", "whole", "cpu"])
@pytest.mark.parametrize("returned", WRONG)
def test_a_rule_that_returns_something_else_is_refused(engine, returned):
    class Wrong:
        def initial_state(self, rows):
            return None

        def __call__(self, activations, probabilities, step, state):
            return WRONG[returned](len(activations))

    network = rc.Network(rc.cells.LSTM(2, 4), outputs=2)
    with pytest.raises(ValueError, match=r"a rule returns \(fired, state\), fired a bool tensor"):
        rc.decide(network, torch.randn(3, 5, 2), rule=Wrong(), engine=engine)


@pytest.mark.parametrize("every", [2, 3, 8, None])
@pytest.mark.parametrize("keep", ["answer", "read"])
@pytest.mark.parametrize("rule", [rc.Threshold(0.45), rc.Never(), rc.FireAt(4), rc.Patience(rc.Threshold(0.4), 2)])
def test_when_rows_leave_changes_nothing(every, keep, rule, monkeypatch):
    """On a GPU rows leave after more and more steps (None); here the same is forced on the CPU."""
    torch.manual_seed(0)
    network = rc.Network(rc.cells.LSTM(3, 6), 3).double()
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.8)
    inputs, lengths = torch.randn(7, 11, 3).double(), torch.tensor([11, 4, 1, 8, 11, 9, 2])
    inputs[torch.arange(11) >= lengths[:, None]] = torch.nan
    found = []
    for steps in (1, every):
        monkeypatch.setattr(stepwise, "steps_until_rows_leave", lambda begin, inputs, steps=steps: steps or begin)
        x = inputs.clone().requires_grad_()
        result = stepwise.run(network, x, lengths, rule, keep)
        order = (result.row * 100 + result.step).argsort()
        (result.logits * result.step[:, None] * torch.arange(1.0, 4)).sum().backward()
        found.append([result.decision.steps, result.decision.label, result.row[order], result.logits[order].detach()])
        found[-1] += [x.grad, *(parameter.grad.clone() for parameter in network.parameters())]
        network.zero_grad()
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)
