"""LSTM and GRU: what `torch.nn` computes, with its weights."""

import importlib.util

import pytest
import torch
from step_by_step import step_by_step
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import rankcode as rc
from rankcode import cells
from rankcode.engines import run

BOTH = pytest.mark.parametrize("name", ["LSTM", "GRU"])


PARAMETRIZATIONS = {
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm": parametrizations.spectral_norm,
    "orthogonal": parametrizations.orthogonal,
}


@BOTH
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of Triton's interpreter
@pytest.mark.parametrize("parametrization", PARAMETRIZATIONS)
@pytest.mark.parametrize("engine", ["stepwise", "whole", "cpu", "triton"])
def test_parametrized_weights(name, parametrization, engine, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    if engine == "triton" and importlib.util.find_spec("triton") is None:
        pytest.skip("needs Triton")
    torch.manual_seed(0)
    network = rc.Network(getattr(cells, name)(3, 5, num_layers=2), 3)
    for weight in ("weight_hh_l0", "weight_ih_l1"):
        PARAMETRIZATIONS[parametrization](network.cell, weight)
    network.eval()  # spectral_norm changes its vectors in training
    network = network if engine == "triton" else network.double()
    device = "cuda" if engine == "triton" and torch.cuda.is_available() else "cpu"
    dtype = next(network.parameters()).dtype
    inputs, lengths = torch.randn(6, 7, 3, dtype=dtype), torch.tensor([7, 3, 7, 5, 1, 7])
    found = []
    for each, where in (("reference", "cpu"), (engine, device)):
        network.to(where).zero_grad()
        result = run(network, inputs.to(where), lengths.to(where), rc.FireAt([3, 3, 9, 2, 1, 7]), "answer", each)
        (result.logits * torch.arange(1.0, 4, device=where)).sum().backward()
        gradients = [parameter.grad.cpu().clone() for parameter in network.parameters()]
        found.append([result.logits.detach().cpu(), *gradients])
    assert all(part.norm() > 0 for part in found[0])
    for expected, got in zip(*found, strict=True):
        tolerance = {"rtol": 1e-4, "atol": 1e-5} if engine == "triton" else {"rtol": 1e-10, "atol": 1e-12}
        torch.testing.assert_close(got, expected, **tolerance)


def test_a_parametrized_weight_is_computed_once_a_run():
    calls = []

    class Counted(nn.Module):
        def forward(self, weight):
            calls.append(1)
            return weight * 1.0

    network = rc.Network(cells.LSTM(3, 5), 2)
    parametrize.register_parametrization(network.cell, "weight_hh_l0", Counted())
    for engine in ("reference", "stepwise", "whole", "cpu"):
        calls.clear()
        run(network, torch.randn(4, 6, 3), torch.full((4,), 6), rc.Never(), "answer", engine)
        assert len(calls) == 1, engine


@BOTH
@pytest.mark.parametrize("layers", [1, 2])
def test_agrees_with_torch_over_whole_sequences(name, layers):
    torch.manual_seed(0)
    theirs = getattr(nn, name)(3, 5, num_layers=layers, batch_first=True).double()
    ours = getattr(cells, name)(3, 5, num_layers=layers).double()
    ours.load_state_dict(theirs.state_dict())
    inputs = torch.randn(4, 7, 3, dtype=torch.float64)
    expected, last = theirs(inputs)
    features, state = step_by_step(ours, inputs)
    assert torch.allclose(features, expected, rtol=0, atol=1e-12)
    for ours_last, theirs_last in zip(state, last if name == "LSTM" else (last,), strict=True):
        assert torch.allclose(ours_last, theirs_last.transpose(0, 1), rtol=0, atol=1e-12)

    weights = torch.randn_like(expected)
    (expected * weights).sum().backward()
    (features * weights).sum().backward()
    for key, parameter in theirs.named_parameters():
        assert torch.allclose(ours.get_parameter(key).grad, parameter.grad, rtol=1e-10, atol=1e-12), key
    again = getattr(nn, name)(3, 5, num_layers=layers, batch_first=True).double()
    again.load_state_dict(ours.state_dict())
    assert again(inputs)[0].equal(expected)


@BOTH
def test_starts_like_torch(name):
    torch.manual_seed(0)
    for parameter in getattr(cells, name)(30, 100, num_layers=2).parameters():
        assert 0.095 < parameter.abs().max() <= 0.1  # uniform within ±1/√units


@BOTH
def test_state_is_passed_and_never_kept(name):
    cell = getattr(cells, name)(3, 5, num_layers=2)
    x, state = torch.randn(4, 3), cell.initial_state(4)
    assert isinstance(state, getattr(cells, f"{name}State"))
    assert all(part.shape == (4, 2, 5) and part.eq(0).all() for part in state)
    first, after = cell(x, state)
    cell(torch.randn(4, 3), after)
    second, same = cell(x, state)
    assert first.equal(second) and after.hidden.equal(same.hidden)
    assert all(part.eq(0).all() for part in state), "the state that was passed in changed"


@BOTH
@pytest.mark.parametrize("sizes", [(0, 5, 1), (3, 0, 1), (3, 5, 0), (-1, 5, 1)])
def test_sizes_must_be_positive(name, sizes):
    with pytest.raises(ValueError, match="at least 1"):
        getattr(cells, name)(*sizes)
