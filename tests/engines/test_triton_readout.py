"""The readout's own kernels: outputs and gradients are those of PyTorch."""

import pytest
import torch
from torch import nn

pytest.importorskip("triton.language", reason="needs Triton")

from triton_outcomes import DEVICE, MARKS, error  # isort: skip

import rankcode as rc
from rankcode.engines.triton import logits

pytestmark = MARKS

READOUTS = {
    # units, readout, outputs, entries
    "one of everything": (1, nn.Linear(1, 1), 1, 1),
    "wider than a chunk": (100, nn.Linear(100, 11), 11, 31),
    "more entries than programs at once": (64, nn.Sequential(nn.Linear(64, 7), nn.Tanh(), nn.Linear(7, 3)), 3, 300),
    "the widest": (16, nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64)), 64, 33),
    "a hidden layer of one": (17, nn.Sequential(nn.Linear(17, 1), nn.Sigmoid(), nn.Linear(1, 2)), 2, 40),
}


@pytest.mark.parametrize("name", READOUTS)
def test_outputs_and_gradients(name, rubbish_in_fresh_memory, monkeypatch):
    units, readout, outputs, entries = READOUTS[name]
    torch.manual_seed(0)
    network = rc.Network(rc.cells.LSTM(2, units), outputs, readout).to(DEVICE)
    features = torch.randn(entries, units, device=DEVICE, requires_grad=True)
    weight = torch.randn(entries, outputs, device=DEVICE)
    launches, launch = [], logits.kernels.Kernel.__call__
    monkeypatch.setattr(
        logits.kernels.Kernel, "__call__", lambda self, *given: (launches.append(self), launch(self, *given))[0]
    )
    results = []
    for run in (logits.logits_of, lambda network, features: network.double().logits(features.double())):
        found = run(network, features)[:, -outputs:]
        gradients = torch.autograd.grad((found * weight).sum(), [features, *readout.parameters()])
        results.append((found.detach(), *gradients))
    assert len(launches) == 2
    assert all(error(expected, got) < 2e-6 for got, expected in zip(*results, strict=True))


@pytest.mark.parametrize(("width", "entries"), [(logits.MAX_WIDTH + 1, 4), (3, logits.MAX_FEATURES // 8 + 1)])
def test_large_ones_are_left_to_pytorch(width, entries, monkeypatch):
    monkeypatch.setattr(logits._Readout, "apply", lambda *_: pytest.fail("its own kernels"))
    network, features = rc.Network(rc.cells.LSTM(2, 8), width).to(DEVICE), torch.ones(entries, 8, device=DEVICE)
    assert torch.equal(logits.logits_of(network, features), network.logits(features))
