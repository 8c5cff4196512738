"""Whole sequences of any cell give what `stepwise` gives. LSTM and GRU, with PyTorch's kernels: see `test_cpu.py`."""

import pytest
import torch
from torch import nn

import rankcode as rc
from rankcode.engines import run

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
