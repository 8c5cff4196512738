"""Whole sequences read in C: features, state and every gradient are those of PyTorch's layers."""

import pytest
import torch
from torch import nn

import rankcode as rc
from rankcode.compiled import layer, library, sequence
from rankcode.state import map_state

needs_compiler = pytest.mark.skipif(library.functions() is None, reason="needs a C compiler when rankcode is installed")
KINDS = {"LSTM": nn.LSTM, "GRU": nn.GRU}


def cells(kind, layers, dtype=torch.float32):
    """One of ours and PyTorch's, in float64, with the same weights."""
    torch.manual_seed(0)
    ours, theirs = getattr(rc.cells, kind)(4, 21, layers), KINDS[kind](4, 21, layers, batch_first=True)
    theirs.load_state_dict(ours.state_dict())
    return ours.to(dtype), theirs.double()


def leaves(parts):
    return [part.detach().clone().requires_grad_() for part in parts]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # in C, and with PyTorch's own layers
@pytest.mark.parametrize("rows, steps", [(1, 1), (1, 6), (5, 1), (130, 9)])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_sequences_and_gradients_are_those_of_torch(kind, layers, rows, steps, dtype, rubbish_in_fresh_memory):
    ours, theirs = cells(kind, layers, dtype)
    inputs = torch.randn(rows, steps, 4, dtype=dtype)
    state = map_state(torch.randn_like, ours.initial_state(rows))
    inputs, *parts = leaves([inputs, *state])
    before = [part.detach().double().transpose(0, 1).contiguous().requires_grad_() for part in parts]
    wide = inputs.detach().double().requires_grad_()
    expected, last = theirs(wide, before[0] if kind == "GRU" else tuple(before))
    features, after = ours.forward_sequence(inputs, type(state)(*parts))
    close = {"rtol": 1e-4, "atol": 2e-5} if dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-11}
    last = [part.transpose(0, 1) for part in ((last,) if kind == "GRU" else last)]
    for one, other in zip((features, *after), (expected, *last), strict=True):
        torch.testing.assert_close(one.double(), other, **close)
    weights = [torch.randn_like(part) for part in (expected, *last)]
    sums = [
        sum((part.double() * weight).sum() for part, weight in zip(found, weights, strict=True))
        for found in ((features, *after), (expected, *last))
    ]
    got = torch.autograd.grad(sums[0], [inputs, *parts, *ours.parameters()])
    true = torch.autograd.grad(sums[1], [wide, *before, *theirs.parameters()])
    for number, (one, other) in enumerate(zip(got, true, strict=True)):
        if 0 < number <= len(parts):
            other = other.transpose(0, 1)
        assert (one.double() - other).norm() <= 10 * close["atol"] * (1 + other.norm())
    with torch.no_grad():
        assert ours.forward_sequence(inputs, type(state)(*parts))[0].equal(features)


@needs_compiler
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wanted", ["inputs", "state", "weights"])
def test_gradients_are_computed_for_what_needs_them(kind, wanted):
    ours, _ = cells(kind, 1)
    inputs, state = torch.randn(7, 5, 4), map_state(torch.randn_like, ours.initial_state(7))
    found = []
    for alone in (False, True):
        ours.requires_grad_(not alone or wanted == "weights")
        x = inputs.clone().requires_grad_(not alone or wanted == "inputs")
        parts = [part.clone().requires_grad_(not alone or wanted == "state") for part in state]
        features, after = ours.forward_sequence(x, type(state)(*parts))
        assert features.grad_fn.name() == "_SequenceBackward"
        of = {"inputs": [x], "state": parts, "weights": list(ours.parameters())}[wanted]
        total = features.square().sum() + sum(part.sum() for part in after)
        found.append([torch.autograd.grad(total, of, retain_graph=True), torch.autograd.grad(total, of)])
    for each in zip(*(gradients for pair in found for gradients in pair), strict=True):
        assert all(each[0].equal(other) for other in each[1:])


@needs_compiler
def test_pieces_of_memory_and_threads_change_nothing(set_threads, monkeypatch):
    ours, _ = cells("LSTM", 2)
    inputs = torch.randn(60, 11, 4, requires_grad=True)

    def outcome():
        features, _ = ours.forward_sequence(inputs, ours.initial_state(60))
        return [features.detach(), *torch.autograd.grad(features.square().sum(), [inputs, *ours.parameters()])]

    expected = outcome()
    monkeypatch.setattr(layer, "MIN_PARALLEL_SIZE", 0)
    monkeypatch.setattr(layer, "MAX_CHUNK_VALUES", 2**11)
    monkeypatch.setattr(layer, "MAX_CHUNKS_AT_ONCE", 1)
    set_threads(3)
    found = outcome()
    assert found[0].equal(expected[0])
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@needs_compiler
def test_what_is_left_to_pytorch():
    inputs, weight = torch.randn(2, 3, 4), nn.Parameter(torch.randn(3))
    assert sequence.reads(inputs, weight)
    assert not sequence.reads(inputs.double(), weight) and not sequence.reads(inputs, weight.double())
    assert not sequence.reads(inputs[:0]) and not sequence.reads(inputs.to("meta"))
    with torch.autocast("cpu", torch.bfloat16):
        assert not sequence.reads(inputs)
    with torch._subclasses.FakeTensorMode() as mode:
        assert not sequence.reads(mode.from_tensor(inputs))
