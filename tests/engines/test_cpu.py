"""The engines `cpu` and `whole` give what `reference` gives, with every rule and whatever follows the answer."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import rankcode as rc
from rankcode.engines import Choice, choose, cpu, run, whole
from rankcode.engines.cpu import blocks, gated_steps

RULES = {
    "threshold": rc.Threshold(0.45),
    "some classes": rc.Threshold(0.4, classes=(0, 2)),
    "steps": rc.StepThresholds((0.9, 0.6, 0.4)),
    "planted": rc.FireAt([1, 3, 9, 4, 2, 7]),
    "patience": rc.Patience(rc.Threshold(0.4), 2),
    "never": rc.Never(),
}


def example(kind=rc.cells.LSTM, layers=1):
    torch.manual_seed(3)
    network = rc.Network(kind(4, 5, layers), 3).double()
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.8)
    return network, torch.randn(6, 9, 4, dtype=torch.float64), torch.tensor([9, 5, 9, 7, 1, 8])


def gradients(network, result):
    network.zero_grad(set_to_none=True)
    (result.logits * (1 + result.step[:, None]) * torch.arange(1.0, 4)).sum().backward()
    return [parameter.grad for parameter in network.parameters()]


both_engines = pytest.mark.parametrize("engine", ["whole", "cpu"])


@both_engines
@pytest.mark.parametrize("keep", ["answer", "read"])
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize(("kind", "layers"), [(rc.cells.LSTM, 1), (rc.cells.LSTM, 2), (rc.cells.GRU, 2)])
def test_equals_the_reference(kind, layers, rule, keep, engine):
    network, inputs, lengths = example(kind, layers)
    expected, got = (run(network, inputs, lengths, rule, keep, engine) for engine in ("reference", engine))
    assert torch.equal(expected.decision.label, got.decision.label)
    assert torch.equal(expected.decision.steps, got.decision.steps)
    assert torch.equal(expected.decision.fired, got.decision.fired)
    torch.testing.assert_close(expected.decision.probabilities, got.decision.probabilities)
    entries = [torch.stack([part.row, part.step], 1).tolist() for part in (expected, got)]
    order = [sorted(range(len(each)), key=each.__getitem__) for each in entries]
    assert [entries[0][k] for k in order[0]] == [entries[1][k] for k in order[1]]
    torch.testing.assert_close(expected.logits[order[0]], got.logits[order[1]])
    for one, other in zip(gradients(network, expected), gradients(network, got), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@both_engines
@pytest.mark.parametrize("rubbish", [float("nan"), float("inf")])
def test_what_follows_the_answer_changes_nothing(rubbish, engine):
    network, inputs, lengths = example()
    steps = torch.tensor([1, 3, 9, 4, 1, 7])
    clean = run(network, inputs, lengths, rc.FireAt(steps), "answer", engine)
    before = gradients(network, clean)
    inputs[torch.arange(9) >= steps[:, None]] = rubbish
    dirty = run(network, inputs, lengths, rc.FireAt(steps), "answer", engine)
    assert torch.equal(clean.logits, dirty.logits)
    for one, other in zip(before, gradients(network, dirty), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=0)


@both_engines
@pytest.mark.parametrize("keep", ["answer", "read"])
@pytest.mark.parametrize("kind", [rc.cells.LSTM, rc.cells.GRU])
def test_gradients_of_the_inputs_too(kind, keep, engine):
    network, inputs, lengths = example(kind, layers=2)
    found = []
    for name in ("reference", engine):
        inputs = inputs.detach().requires_grad_()
        gradients(network, run(network, inputs, lengths, rc.Threshold(0.45), keep, name))
        found.append(inputs.grad)
    torch.testing.assert_close(found[0], found[1], rtol=1e-10, atol=1e-12)


@both_engines
def test_a_second_backward_pass_gives_the_same(engine):
    network, inputs, lengths = example()
    result = run(network, inputs, lengths, rc.Threshold(0.45), "answer", engine)
    result.logits.sum().backward(retain_graph=True)
    first = [parameter.grad.clone() for parameter in network.parameters()]
    network.zero_grad()
    result.logits.sum().backward()
    for one, other in zip(first, [parameter.grad for parameter in network.parameters()], strict=True):
        assert torch.equal(one, other)


@both_engines
def test_frozen_weights_get_no_gradient(engine):
    network, inputs, lengths = example()
    network.cell.weight_hh_l0.requires_grad_(False)
    run(network, inputs, lengths, rc.Threshold(0.45), "answer", engine).logits.sum().backward()
    assert network.cell.weight_hh_l0.grad is None and network.cell.weight_ih_l0.grad is not None


@pytest.mark.parametrize("block", [1, 2, 3, 4, 9, 50])
def test_the_length_of_a_block_changes_nothing(block, monkeypatch):
    network, inputs, lengths = example(rc.cells.GRU)
    expected = run(network, inputs, lengths, rc.Patience(rc.Threshold(0.4), 2), "answer", "reference")
    monkeypatch.setattr(blocks, "BLOCK_STEPS", block)
    monkeypatch.setattr(blocks, "SHORT_STEPS", 0)
    got = run(network, inputs, lengths, rc.Patience(rc.Threshold(0.4), 2), "answer", "cpu")
    assert torch.equal(expected.decision.steps, got.decision.steps)
    for one, other in zip(gradients(network, expected), gradients(network, got), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def numbers_saved(network, inputs, rule, keep="answer"):
    """How many numbers are saved for the backward pass, weights and views of the same memory not counted."""
    weights = {part.untyped_storage().data_ptr() for part in network.parameters()}
    saved = {}

    def pack(part):
        if (address := part.untyped_storage().data_ptr()) not in weights:
            saved[address] = part  # held, so that its memory is not used again
        return part

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda part: part):
        run(network, inputs, torch.full((len(inputs),), inputs.shape[1]), rule, keep, "cpu")
    return sum(part.untyped_storage().nbytes() // part.itemsize for part in saved.values())


@pytest.mark.parametrize("keep", ["answer", "read"])
def test_what_is_saved_follows_the_steps_read(keep):
    network, inputs = rc.Network(rc.cells.LSTM(4, 8), 3), torch.randn(64, 40, 4)
    everything, early = (numbers_saved(network, inputs, rc.FireAt(steps), keep) for steps in (40, 10))
    assert early / everything == pytest.approx(10 / 40, rel=0.1)


@pytest.fixture
def block_steps(monkeypatch):
    """Filled with the number of steps of every block that runs with gradients."""
    found, forward = [], gated_steps.LSTMSteps.forward
    monkeypatch.setattr(
        gated_steps.LSTMSteps, "forward", lambda self, x, state: found.append(len(x)) or forward(self, x, state)
    )
    return found


@pytest.mark.parametrize(
    "rows, steps, answer, expected",
    [
        (64, 40, 1, [1]),
        (64, 40, 4, [1, 3]),
        (64, 40, 5, [1, 3, 6]),
        (64, 40, 40, [1, 3, 6, 10, 10, 10]),
        (64, 41, 1, [10]),
        (64, 41, 41, [10, 10, 10, 10, 1]),
        (5, 45, 45, [20, 20, 5]),
    ],
)
def test_blocks_of_short_sequences_begin_short(rows, steps, answer, expected, block_steps):
    """Networks that answer in their first steps are fast in short sequences too."""
    network, inputs, ends = rc.Network(rc.cells.LSTM(4, 8), 3), torch.randn(rows, steps, 4), torch.full((rows,), steps)
    run(network, inputs, ends, rc.FireAt(answer), "answer", "cpu")
    assert block_steps == expected


def test_blocks_of_long_rows_grow(block_steps):
    network, inputs = rc.Network(rc.cells.LSTM(1, 2), 3), torch.randn(1, 100_000, 1)
    run(network, inputs, torch.tensor([100_000]), rc.FireAt(5000), "answer", "cpu")
    assert len(block_steps) < 50 and 5000 <= sum(block_steps) < 5000 * 1.15


def test_long_rows_need_bounded_memory_and_linear_time():
    """In a process of its own, for its peak memory. A row of 200,000 steps took 5 GB, and minutes."""
    code = """
import resource, torch, rankcode as rc
network, inputs = rc.Network(rc.cells.LSTM(1, 8), 3), torch.randn(1, 200_000, 1)
rc.decide(network, inputs[:, :100], engine="cpu")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
decision = rc.decide(network, inputs, rule=rc.StepThresholds([0.9999] * 1000), engine="cpu")
assert decision.steps.tolist() == [200_000]
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1000)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 100  # megabytes


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
@pytest.mark.parametrize("engine", ["cpu", "stepwise", "whole"])
def test_the_gradient_of_long_inputs_takes_linear_time(engine, keep):
    """Indexing at every step, or in every block, would fill a gradient of the size of the inputs each time."""
    network, inputs = rc.Network(rc.cells.LSTM(2, 2), 2), torch.randn(3, 100, 2, requires_grad=True)
    result = run(network, inputs, torch.tensor([100, 50, 10]), rc.Threshold(0.999), keep, engine)
    assert readers_of(inputs, result.logits) == ["NanToNumBackward0" if engine == "whole" else "UnbindBackward0"]


class RandomReadout(nn.Module):
    """Dropout without a module for it."""

    def __init__(self):
        super().__init__()
        self.linear, self.calls = nn.Linear(16, 3), 0

    def forward(self, features):
        self.calls += len(features)
        return self.linear(nn.functional.dropout(features, 0.5))


@pytest.mark.parametrize("keep", ["answer", "read"])
@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("engine", ["reference", "stepwise", "whole", "cpu"])
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
    assert torch.equal(result.decision.probabilities, result.at_answer().detach().softmax(1))
    if keep == "read":
        before = result.step < result.decision.steps[result.row]
        assert (result.logits.softmax(1).amax(1)[before] < 0.8).all()


@pytest.mark.parametrize("rule", [rc.Threshold(0.45), rc.Patience(rc.Threshold(0.4), 2)], ids=["table", "state"])
@pytest.mark.parametrize("rubbish", [float("nan"), float("inf")])
@pytest.mark.parametrize("kind", [rc.cells.LSTM, rc.cells.GRU])
@pytest.mark.parametrize("frozen", [True, False])
def test_what_follows_a_spike_inside_its_block_gets_no_gradient(frozen, kind, rubbish, rule):
    """Also where only the rule says which steps are not read, and the readout was evaluated on them."""
    network, inputs, lengths = example(kind, layers=2)
    network.cell.requires_grad_(not frozen)
    clean = run(network, inputs, lengths, rule, "answer", "cpu")
    expected = gradients(network, clean)
    steps = clean.decision.steps
    assert (steps < lengths).sum() >= 2
    inputs[torch.arange(9) >= steps[:, None]] = rubbish
    dirty = run(network, inputs, lengths, rule, "answer", "cpu")
    assert torch.equal(dirty.decision.steps, steps)
    for one, other in zip(expected, gradients(network, dirty), strict=True):
        assert (one is None and frozen) or torch.allclose(one, other, rtol=1e-12, atol=1e-14)
    assert network.readout.weight.grad.norm() > 0


def test_what_it_cannot_run_it_says():
    network, inputs, lengths = rc.Network(rc.cells.LIF(4, 3, emits="membranes"), 3), torch.randn(2, 3, 4), [3, 3]
    with pytest.raises(ValueError, match="the engine cpu cannot run this network: LIF"):
        run(network, inputs, torch.tensor(lengths), rc.Never(), "answer", "cpu")
    lstm = rc.Network(rc.cells.LSTM(4, 5), 3)
    assert whole.can_run(lstm, inputs, rc.Never()) is None
    with torch.autocast("cpu", torch.bfloat16):
        assert "float32" in (whole.can_run(lstm, inputs, rc.Never()) or "")
    dropout = rc.Network(rc.cells.LSTM(4, 5), 3, nn.Sequential(nn.Linear(5, 3), nn.Dropout(0.1)))
    expected = Choice("cpu", "fused steps, and rows that have answered cost nothing")
    assert choose(lstm, inputs, rc.Never()) == choose(dropout, inputs, rc.Threshold(0.9)) == expected
    assert cpu.can_run(network, inputs, rc.Never()) == "LIF has no fused step"
    lstm.cell.register_forward_hook(lambda *_: None)  # which a fused step would not call
    assert choose(lstm, inputs, rc.Never()) == Choice("stepwise", "runs any cell on any device")


@pytest.mark.parametrize("rows", [3, 300])
def test_the_number_of_threads_is_given_back(rows):
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        network = rc.Network(rc.cells.GRU(4, 50), 3)
        seen = []
        network.readout.register_forward_hook(lambda *_: seen.append(torch.get_num_threads()))
        inputs, labels = torch.randn(rows, 5, 4), torch.arange(rows) % 3
        loss, _ = rc.AtSpike(0.9)(network, inputs, labels, engine="cpu")
        assert set(seen) == {1 if rows == 3 else 3} and torch.get_num_threads() == 3
        loss.backward()
        assert torch.get_num_threads() == 3
        with pytest.raises(RuntimeError, match="mat1 and mat2"):
            run(network, torch.randn(rows, 5, 7), torch.full((rows,), 5), rc.Never(), "answer", "cpu")
        assert torch.get_num_threads() == 3
        seen.clear()
        with ThreadPoolExecutor(1, initializer=lambda: torch.set_num_threads(3)) as pool:
            pool.submit(rc.decide, network, inputs, engine="cpu").result()
        assert set(seen) == {3}  # in a thread of the user's own it is left alone
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("kind", [rc.cells.LSTM, rc.cells.GRU])
def test_gradients_that_fade_end_at_zero(kind):
    """Gates that are nearly shut let gradients fade; with denormal numbers a CPU is many times as slow."""
    torch.manual_seed(0)
    network = rc.Network(kind(3, 16), 3)
    for parameter in network.cell.parameters():
        nn.init.normal_(parameter, mean=0.0 if parameter.dim() == 2 else -1.5, std=0.1)
    inputs, lengths = torch.randn(64, 80, 3, requires_grad=True), torch.full((64,), 80)
    found = []
    for engine in ("stepwise", "cpu"):
        run(network, inputs, lengths, rc.Never(), "answer", engine).logits.square().sum().backward()
        found.append([inputs.grad, *(parameter.grad for parameter in network.parameters())])
        network.zero_grad()
        inputs.grad = None
    expected, gradients = found
    denormal = [
        ((part != 0) & (part.abs() < torch.finfo(part.dtype).tiny)).sum() for part in (expected[0], gradients[0])
    ]
    assert denormal[0] > 20 * denormal[1]
    for one, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-9)
