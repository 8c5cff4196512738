"""The contract of every engine: it gives what the reference gives, and only steps that are read count."""

import math

import pytest
import torch
from small_networks import LABELS, LENGTHS, OBJECTIVES, assert_mixed, firing_network, loss_and_gradients
from torch import nn
from torch.nn.utils import prune

import rankcode as rc
from live_networks import FirstFeatures
from rankcode import cells
from rankcode.engines import run

ENGINES = ("reference", "stepwise", "whole", "cpu", "graphs")  # the engine triton: see test_triton.py
every_engine = pytest.mark.parametrize("engine", ENGINES)
every_objective = pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)


class Smoothed:
    """A user's rule: a plain object that fires on a running average of the activations."""

    def initial_state(self, rows):
        return torch.zeros(rows, 3), [torch.zeros(rows, dtype=torch.long)]

    def __call__(self, activations, probabilities, step, state):
        average, (seen,) = state
        average = 0.5 * average + 0.5 * activations
        return average.amax(1) >= 0.55, (average, [seen + 1])


IMAGES = {"in_channels": 1, "image_size": (4, 3)}
IN_BLOCKS = {
    "lstm": lambda: rc.Network(cells.LSTM(12, 5), 3),
    "lstm of 2 layers": lambda: rc.Network(cells.LSTM(12, 5, num_layers=2), 3),
    "gru": lambda: rc.Network(cells.GRU(12, 5), 3, readout=nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))),
    "gru of 2 layers": lambda: rc.Network(cells.GRU(12, 5, num_layers=2), 3),
    "convolutions below a gru": lambda: rc.Network(
        cells.Stack(cells.CausalConv(12, 6, 2), cells.CausalConv(6, 6, 3, depthwise=True), cells.GRU(6, 5)), 3
    ),
    "stack in a stack": lambda: rc.Network(
        cells.Stack(cells.Stack(cells.GRU(12, 4), cells.LSTM(4, 5)), cells.GRU(5, 4)), 3
    ),
}
OTHERS = {
    "conv lstm": lambda: rc.Network(cells.ConvLSTM(hidden_channels=2, **IMAGES), 3),
    "glimpses": lambda: rc.Network(cells.Glimpses((4, 4), 7, channels=8, hidden_size=5), 3).eval(),
    "lif": lambda: rc.Network(cells.LIF(12, 3, emits="membranes"), 3),
    "conv lif": lambda: rc.Network(cells.ConvLIF(hidden_channels=4, pool_size=1, **IMAGES), 3),
    "spiking stack": lambda: rc.Network(
        cells.Stack(cells.ConvLIF(hidden_channels=3, **IMAGES), cells.LIF(36, 8), cells.LIF(8, 3, emits="membranes")), 3
    ),
}
RULES = {
    "threshold": rc.Threshold(0.5),
    "some classes": rc.Threshold(0.4, classes=(0, 2)),
    "step thresholds": rc.StepThresholds([0.9, 0.7, 0.5]),
    "planted": rc.FireAt([1, 9, 3, 1, 2, 7, 3, 1, 6, 1]),
    "patience": rc.Patience(rc.Threshold(0.4), 2),
    "optimal stopping": rc.OptimalStopping((2, 4, 6), ((-1.0, 3.0), (-2.0, 5.0))),
    "never": rc.Never(),
    "user's": Smoothed(),
    "reads features": FirstFeatures(),
}


def outcome(network, inputs, rule, keep, engine):
    """The decision, every entry in order, and the gradients of the parameters and of the inputs."""
    x = inputs.clone().requires_grad_()
    result = run(network, x, LENGTHS, rule, keep, engine)
    order = (result.row * 100 + result.step).argsort()
    total = (result.logits * (1 + result.step[:, None]) * torch.arange(1.0, 4)).sum()
    gradients = torch.autograd.grad(total, [*network.parameters(), x])
    return [*result.decision, result.row[order], result.step[order], result.logits[order].detach(), *gradients]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", IN_BLOCKS | OTHERS)
def test_every_engine_gives_what_the_reference_gives(kind, rule):
    torch.manual_seed(5)
    network, rule = (IN_BLOCKS | OTHERS)[kind]().double(), RULES[rule]
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.mul_(0.0 if "bias" in name else 0.9 if kind == "glimpses" else 2.5)
    inputs = torch.randn(10, 7, *network.cell.input_shape, dtype=torch.float64)
    inputs[torch.arange(7) >= LENGTHS[:, None]] = torch.nan
    for keep in ("answer", "read"):
        expected = outcome(network, inputs, rule, keep, "reference")
        assert len(set(expected[1].tolist())) > 1, "every row read as much: nothing is compared"
        assert any(gradient.norm() > 0 for gradient in expected[-len(list(network.parameters())) :])
        for engine in ENGINES[1:]:
            if engine == "cpu" and kind not in IN_BLOCKS:
                continue
            for one, other in zip(expected, outcome(network, inputs, rule, keep, engine), strict=True):
                torch.testing.assert_close(
                    other, one, rtol=1e-10, atol=1e-12, msg=lambda text, by=engine: f"{by}: {text}"
                )


# Inputs past the answer, and other rows.


@every_engine
@pytest.mark.parametrize("junk", [1e3, math.nan, -math.inf])
@pytest.mark.parametrize("objective", [*OBJECTIVES.values(), rc.AtSpike(rule=rc.Patience(rc.Threshold(0.5), 2))])
def test_inputs_past_the_answer_change_nothing(objective, junk, engine):
    for frozen in (False, True):
        network, inputs = firing_network()
        network.cell.requires_grad_(not frozen)
        loss, decision, gradients = loss_and_gradients(objective, network, inputs, engine)
        past = torch.arange(7) >= decision.steps[:, None]
        assert past.any(1).sum() >= 5 and gradients[-1].norm() > 0
        inputs[past] = junk
        same_loss, same_decision, same_gradients = loss_and_gradients(objective, network, inputs, engine)
        pairs = zip((loss, *decision, *gradients), (same_loss, *same_decision, *same_gradients), strict=True)
        for expected, got in pairs:
            torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-14)


@every_engine
@pytest.mark.parametrize("rule", [RULES["optimal stopping"], rc.Patience(RULES["optimal stopping"], 2)], ids=repr)
def test_padding_changes_no_answer(rule, engine):
    network, inputs = firing_network()
    expected = rc.decide(network, inputs, LENGTHS, rule, engine="reference")
    inputs[torch.arange(7) >= LENGTHS[:, None]] = math.nan
    got = rc.decide(network, inputs, LENGTHS, rule, engine=engine)
    assert got.steps.equal(expected.steps) and got.fired.equal(expected.fired)


class Sure(rc.FireAt):
    """Fires not before a step, and only if the network is sure."""

    def __call__(self, activations, probabilities, step, state):
        return (state <= step) & (probabilities.amax(1) > 0.5), state


class Slow(rc.Threshold):
    """Has a memory, unlike its parent."""

    def initial_state(self, batch_size):
        return torch.zeros(batch_size)

    def __call__(self, activations, probabilities, step, state):
        state = 0.5 * state + 0.5 * activations.amax(1)
        return state >= self.threshold, state


class Sometimes(rc.Never):
    def __call__(self, activations, probabilities, step, state):
        return activations.amax(1) >= 0.5, state


@every_engine
@pytest.mark.parametrize("rule", [Sure(2), Slow(0.4), Sometimes()], ids=lambda rule: type(rule).__name__)
def test_what_the_parent_of_a_rule_says_does_not_count(rule, engine):
    network, inputs = firing_network()
    for given in (inputs, inputs[:1]):
        expected = rc.decide(network, given, rule=rule, engine="reference")
        got = rc.decide(network, given, rule=rule, engine=engine)
        assert got.steps.equal(expected.steps) and got.fired.equal(expected.fired) and expected.fired.any()


class Gain(nn.Module):
    """A cell around another, whose methods it may pass on."""

    def __init__(self, cell, passes_on):
        super().__init__()
        self.cell, self.passes_on = cell, passes_on
        self.initial_state = cell.initial_state

    def __getattr__(self, name):
        if name in ("cell", "passes_on") or not self.passes_on:
            return super().__getattr__(name)
        return getattr(self.cell, name)

    def forward(self, x_t, state):
        features, state = self.cell(x_t, state)
        return 3 * features, state


SINGLE_STEPS = ("stepwise", "whole", "graphs", "auto")  # engines for cells that read one step at a time


@pytest.mark.parametrize("engine", SINGLE_STEPS)
@pytest.mark.parametrize("passes_on", [False, True])
def test_a_cell_around_another_is_called(passes_on, engine):
    torch.manual_seed(0)
    network, inputs = rc.Network(Gain(cells.LSTM(3, 4), passes_on), 3, nn.Linear(4, 3)), torch.randn(5, 6, 3)
    expected = rc.decide(network, inputs, rule=rc.Never(), engine="reference").probabilities
    torch.testing.assert_close(rc.decide(network, inputs, rule=rc.Never(), engine=engine).probabilities, expected)


@pytest.mark.parametrize("engine", [engine for engine in SINGLE_STEPS if engine != "graphs"])
@pytest.mark.parametrize("change", ["hook", "pruned"])
def test_hooks_inside_a_cell_are_called(change, engine):
    def loss_after_updates(engine):
        torch.manual_seed(0)
        network, inputs = rc.Network(cells.Stack(cells.CausalConv(3, 4, 2), cells.GRU(4, 4)), 3), torch.randn(4, 6, 3)
        linear = network.cell.cells[0].linear
        if change == "hook":
            linear.register_forward_hook(lambda module, given, found: 2 * found + 1)
        else:
            prune.l1_unstructured(linear, "weight", 0.5)
        optimizer = torch.optim.SGD(network.parameters(), 1.0)
        for _ in range(3):
            optimizer.zero_grad()
            loss, _ = rc.AtEnd()(network, inputs, torch.arange(4) % 3, engine=engine)
            loss.backward()
            optimizer.step()
        return loss.detach()

    torch.testing.assert_close(loss_after_updates(engine), loss_after_updates("reference"))


@every_engine
@every_objective
def test_gradient_reaches_the_steps_read_and_nothing_else(objective, engine):
    network, inputs = firing_network()
    result = run(network, inputs.requires_grad_(), LENGTHS, objective.rule, objective.keep, engine)
    losses = objective.row_losses(result, LABELS)
    read = torch.arange(7) < result.decision.steps[:, None]
    for row in range(10):
        (gradient,) = torch.autograd.grad(losses[row], inputs, retain_graph=True)
        reached = gradient.abs().sum(2) > 0
        assert reached[row].equal(read[row])
        assert reached.sum() == read[row].sum(), "another row got gradient"


@every_engine
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


@every_engine
def test_the_order_of_rows_does_not_matter(engine):
    network, inputs = firing_network()
    order = torch.randperm(10, generator=torch.Generator().manual_seed(0))
    straight = rc.decide(network, inputs, LENGTHS, rc.Threshold(0.6), engine=engine)
    shuffled = rc.decide(network, inputs[order], LENGTHS[order], rc.Threshold(0.6), engine=engine)
    assert_mixed(straight)
    for part, other in zip(straight, shuffled, strict=True):
        torch.testing.assert_close(other, part[order], rtol=0, atol=1e-12)


# What a run holds.


@every_engine
@pytest.mark.parametrize("rule", [rc.Threshold(0.6), rc.FireAt(1)])
def test_keep_read_holds_every_step_read_once(rule, engine):
    network, inputs = firing_network()
    result, answer = (run(network, inputs, LENGTHS, rule, keep, engine) for keep in ("read", "answer"))
    entries = sorted(zip(result.row.tolist(), result.step.tolist(), strict=True))
    steps = result.decision.steps.tolist()
    assert entries == [(row, step) for row in range(10) for step in range(1, steps[row] + 1)]
    assert answer.row.equal(torch.arange(10)) and answer.step.equal(result.decision.steps)
    assert torch.allclose(result.at_answer(), answer.at_answer(), rtol=0, atol=1e-12)
    whole = rc.trace(network, inputs, LENGTHS)
    _, probabilities = network.activate(result.logits)
    assert torch.allclose(probabilities, whole.probabilities[result.row, result.step - 1], rtol=0, atol=1e-12)


class RandomReadout(nn.Module):
    """Dropout without a module for it."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 3)

    def forward(self, features):
        return self.linear(nn.functional.dropout(features, 0.5))


@every_engine
@pytest.mark.parametrize("keep", ["answer", "read"])
@pytest.mark.parametrize("gradients", [True, False])
def test_the_rule_and_the_loss_see_the_same_logits(engine, gradients, keep):
    """The readout is evaluated once: a row that fired answers with the logits it fired with."""
    torch.manual_seed(0)
    network = rc.Network(rc.cells.LSTM(4, 16), 3, RandomReadout())
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.6)
    inputs, lengths = torch.randn(100, 20, 4), torch.full((100,), 20)
    with torch.set_grad_enabled(gradients):
        result = run(network, inputs, lengths, rc.Threshold(0.8), keep, engine)
    highest, fired = result.at_answer().softmax(1).amax(1), result.decision.fired
    assert 10 < fired.sum() < 90
    assert (highest[fired] >= 0.8).all() and (highest[~fired] < 0.8).all()
    torch.testing.assert_close(result.decision.probabilities, result.at_answer().detach().softmax(1), rtol=1e-6, atol=0)
    if keep == "read":
        before = result.step < result.decision.steps[result.row]
        assert (result.logits.softmax(1).amax(1)[before] < 0.8).all()


# Backward passes.


@every_engine
def test_a_second_backward_pass_gives_the_same_and_frozen_weights_get_no_gradient(engine):
    network, inputs = firing_network()
    network.cell.weight_hh_l0.requires_grad_(False)
    result = run(network, inputs, LENGTHS, rc.Threshold(0.6), "answer", engine)
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    first, second = (torch.autograd.grad(result.logits.sum(), trained, retain_graph=True) for _ in range(2))
    assert all(a.equal(b) and a.norm() > 0 for a, b in zip(first, second, strict=True))
    result.logits.sum().backward()
    assert network.cell.weight_hh_l0.grad is None


def readers_of(tensor, result):
    """Names of the nodes of a result's graph that read a tensor."""
    nodes, seen, found = [result.grad_fn], set(), []
    while nodes:
        node = nodes.pop()
        if node not in seen:
            seen.add(node)
            after = [each for each, _ in node.next_functions if each is not None]
            found += [node.name() for each in after if getattr(each, "variable", None) is tensor]
            nodes += after
    return found


@pytest.mark.parametrize("keep", ["answer", "read"])
@pytest.mark.parametrize("engine", ENGINES[1:])
def test_the_gradient_of_long_inputs_takes_linear_time(engine, keep):
    """Indexing at every step, or in every block, would fill a gradient of the size of the inputs each time."""
    network, inputs = rc.Network(rc.cells.LSTM(2, 2), 2), torch.randn(3, 100, 2, requires_grad=True)
    result = run(network, inputs, torch.tensor([100, 50, 10]), rc.Threshold(0.999), keep, engine)
    assert readers_of(inputs, result.logits) == ["NanToNumBackward0" if engine == "whole" else "UnbindBackward0"]


# A user's rule.

WRONG = {
    "two columns": lambda rows: (torch.zeros(rows, 2, dtype=torch.bool), None),
    "numbers": lambda rows: (torch.zeros(rows), None),
    "a Python bool": lambda rows: (True, None),
    "no state": lambda rows: torch.zeros(rows, dtype=torch.bool),
    "nothing": lambda rows: None,
}


@every_engine
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


# Training.


@pytest.mark.parametrize(("engine", "updates", "rows"), [("cpu", 40, 24), ("triton", 2, 17)])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of Triton's interpreter
def test_training_goes_where_the_reference_goes(engine, updates, rows, monkeypatch):
    if engine == "triton" and pytest.importorskip("triton") and torch.cuda.is_available():
        pytest.skip("here Triton would compile, not interpret")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    steps = 12 if engine == "cpu" else 6
    task, found = rc.tasks.TwoSequence(steps=steps, mean=0.3, validation_rows=20, test_rows=500), []
    for name in ("reference", engine):
        torch.manual_seed(0)
        network = rc.Network(rc.cells.LSTM(1, 12 if engine == "cpu" else 6), outputs=1)
        network = network.double() if engine == "cpu" else network
        training = rc.Training(
            examples=updates * rows, batch_size=rows, learning_rate=0.02, validate_every=updates, engine=name,
            device="cpu", progress=False,
        )  # fmt: skip
        rc.fit(network, task, rc.AtSpike(0.9), training)
        found.append((rc.evaluate(network, task, rc.Threshold(0.9), engine="stepwise"), list(network.parameters())))
    (expected, weights), (got, others) = found
    if engine == "cpu":
        assert expected.accuracy == got.accuracy > 0.8 and expected.mean_steps == got.mean_steps < 11
    tolerance = {"rtol": 1e-6, "atol": 1e-8} if engine == "cpu" else {"rtol": 1e-4, "atol": 1e-5}
    for one, other in zip(weights, others, strict=True):
        torch.testing.assert_close(other, one, **tolerance)
