"""Whole sequences with PyTorch's kernels: the same as `reference`, with every rule and whatever follows the answer."""

import pytest
import torch

import rankcode as rc
from rankcode.engines import choose, run, whole

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


@pytest.mark.parametrize("keep", ["answer", "read"])
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize(("kind", "layers"), [(rc.cells.LSTM, 1), (rc.cells.LSTM, 2), (rc.cells.GRU, 2)])
def test_equals_the_reference(kind, layers, rule, keep):
    network, inputs, lengths = example(kind, layers)
    expected, got = (run(network, inputs, lengths, rule, keep, engine) for engine in ("reference", "whole"))
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


@pytest.mark.parametrize("rubbish", [float("nan"), float("inf")])
def test_what_follows_the_answer_changes_nothing(rubbish):
    network, inputs, lengths = example()
    steps = torch.tensor([1, 3, 9, 4, 1, 7])
    clean = run(network, inputs, lengths, rc.FireAt(steps), "answer", "whole")
    before = gradients(network, clean)
    inputs[torch.arange(9) >= steps[:, None]] = rubbish
    dirty = run(network, inputs, lengths, rc.FireAt(steps), "answer", "whole")
    assert torch.equal(clean.logits, dirty.logits)
    for one, other in zip(before, gradients(network, dirty), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=0)


def test_what_it_cannot_run_it_says():
    network, inputs, lengths = rc.Network(rc.cells.LIF(4, 3, emits="membranes"), 3), torch.randn(2, 3, 4), [3, 3]
    with pytest.raises(ValueError, match="the engine whole cannot run this network: LIF is not"):
        run(network, inputs, torch.tensor(lengths), rc.Never(), "answer", "whole")
    lstm = rc.Network(rc.cells.LSTM(4, 5), 3)
    assert whole.can_run(lstm) is None
    with torch.autocast("cpu", torch.bfloat16):
        assert "float32" in (whole.can_run(lstm) or "")
    assert choose(lstm, inputs, rc.Never()).name == "stepwise"  # on a CPU a row that has fired costs nothing
