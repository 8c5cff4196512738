"""The engines with no graph per step give what `reference` gives, with every rule and whatever follows the answer."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import rankcode as rc
from rankcode.engines import choose, cpu, run, whole

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
    monkeypatch.setattr(cpu, "BLOCK", block)
    got = run(network, inputs, lengths, rc.Patience(rc.Threshold(0.4), 2), "answer", "cpu")
    assert torch.equal(expected.decision.steps, got.decision.steps)
    for one, other in zip(gradients(network, expected), gradients(network, got), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_what_is_saved_follows_the_steps_read():
    network, inputs = rc.Network(rc.cells.LSTM(4, 8), 3), torch.randn(64, 40, 4)

    def saved(steps):
        _, blocks = cpu._read(
            cpu._Steps(network.cell), network, inputs, torch.full((64,), 40), rc.FireAt(steps), "answer"
        )
        return sum(part.numel() for block in blocks for layer in block.saved for part in layer)

    everything, early = saved(40), saved(10)
    assert early / everything == pytest.approx(10 / 40, rel=0.05)


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
def test_blocks_of_short_sequences_begin_short(rows, steps, answer, expected):
    """Networks that answer in their first steps gain even where there are few."""
    network, inputs, ends = rc.Network(rc.cells.LSTM(4, 8), 3), torch.randn(rows, steps, 4), torch.full((rows,), steps)
    _, blocks = cpu._read(cpu._Steps(network.cell), network, inputs, ends, rc.FireAt(answer), "answer")
    assert [block.steps for block in blocks] == expected


SPIKING = rc.cells.Stack(rc.cells.LIF(4, 6), rc.cells.LIF(6, 3, emits="membranes"))
CELLS = {
    "spiking": lambda: rc.Network(SPIKING, 3),
    "convolutional": lambda: rc.Network(rc.cells.ConvLSTM(1, 2, (2, 2)), 3),
    "two layers of two kinds": lambda: rc.Network(rc.cells.Stack(rc.cells.LSTM(4, 5), rc.cells.GRU(5, 4)), 3),
}
SOME_RULES = [rc.Threshold(0.4), rc.Patience(rc.Threshold(0.35), 2), rc.Never()]


@pytest.mark.parametrize("keep", ["answer", "read"])
@pytest.mark.parametrize("rule", SOME_RULES, ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("make", CELLS.values(), ids=CELLS.keys())
def test_whole_sequences_of_any_cell(make, rule, keep):
    torch.manual_seed(0)
    network = make().double()
    for parameter in network.parameters():
        nn.init.normal_(parameter)
    shape = (1, 2, 2) if isinstance(network.cell, rc.cells.ConvLSTM) else (4,)
    inputs, lengths = torch.randn(9, 6, *shape).double(), torch.tensor([6, 1, 3, 6, 5, 2, 6, 4, 6])
    inputs[1, 1:] = torch.nan
    results = []
    for engine in ("stepwise", "whole"):
        x = inputs.clone().requires_grad_()
        result = run(network, x, lengths, rule, keep, engine)
        order = (result.row * 10 + result.step).argsort()
        loss = (result.logits[order] * torch.arange(1, 4)).sum()
        results.append((result, order, torch.autograd.grad(loss, [x, *network.parameters()])))
    (expected, first, gradients), (got, second, others) = results
    assert torch.equal(expected.decision.steps, got.decision.steps)
    assert torch.equal(expected.decision.fired, got.decision.fired)
    assert torch.allclose(expected.logits[first], got.logits[second], rtol=0, atol=1e-12)
    for gradient, other in zip(gradients, others, strict=True):
        assert torch.allclose(gradient, other, rtol=0, atol=1e-10)


def test_what_it_cannot_run_it_says():
    network, inputs, lengths = rc.Network(rc.cells.LIF(4, 3, emits="membranes"), 3), torch.randn(2, 3, 4), [3, 3]
    with pytest.raises(ValueError, match="the engine cpu cannot run this network: LIF"):
        run(network, inputs, torch.tensor(lengths), rc.Never(), "answer", "cpu")
    lstm = rc.Network(rc.cells.LSTM(4, 5), 3)
    assert whole.can_run(lstm, inputs, rc.Never()) is None
    with torch.autocast("cpu", torch.bfloat16):
        assert "float32" in (whole.can_run(lstm, inputs, rc.Never()) or "")
    for part, reason in ((nn.Dropout(0.1), "dropout"), (nn.Identity(), None)):
        network = rc.Network(rc.cells.LSTM(4, 5), 3, nn.Sequential(nn.Linear(5, 3), part))
        assert reason is None or reason in (cpu.can_run(network, inputs, rc.Never()) or "")
        assert cpu.can_run(network.eval(), inputs, rc.Never()) is None
    assert choose(lstm, inputs, rc.Never()).name == "cpu"
    assert choose(network, inputs, rc.Never()).name == "cpu"


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
