import pytest
import torch
from torch import nn

from rankcode import cells


def whole(cell, inputs):
    """Features of every step [rows, steps, units], and the last state."""
    state, features = cell.initial_state(len(inputs)), []
    for step in range(inputs.shape[1]):
        now, state = cell(inputs[:, step], state)
        features.append(now)
    return torch.stack(features, 1), state


@pytest.mark.parametrize("layers", [1, 2])
def test_agrees_with_torch_over_whole_sequences(layers):
    torch.manual_seed(0)
    theirs = nn.GRU(3, 5, num_layers=layers, batch_first=True).double()
    ours = cells.GRU(3, 5, layers=layers).double()
    ours.load_state_dict(theirs.state_dict())
    inputs = torch.randn(4, 7, 3, dtype=torch.float64)
    expected, hidden = theirs(inputs)
    features, state = whole(ours, inputs)
    assert torch.allclose(features, expected, rtol=0, atol=1e-12)
    assert torch.allclose(state.hidden, hidden.transpose(0, 1), rtol=0, atol=1e-12)

    weights = torch.randn_like(expected)
    (expected * weights).sum().backward()
    (features * weights).sum().backward()
    for name, parameter in theirs.named_parameters():
        assert torch.allclose(ours.get_parameter(name).grad, parameter.grad, rtol=1e-10, atol=1e-12), name


@pytest.mark.parametrize("layers", [1, 2])
def test_weights_go_to_torch_and_back(layers):
    ours = cells.GRU(3, 5, layers=layers)
    theirs = nn.GRU(3, 5, num_layers=layers, batch_first=True)
    theirs.load_state_dict(ours.state_dict())
    inputs = torch.randn(4, 7, 3)
    assert torch.allclose(theirs(inputs)[0], whole(ours, inputs)[0], atol=1e-6)
    again = cells.GRU(3, 5, layers=layers)
    again.load_state_dict(theirs.state_dict())
    assert whole(again, inputs)[0].equal(whole(ours, inputs)[0])


def test_state_is_passed_and_never_kept():
    cell = cells.GRU(3, 5, layers=2)
    x, state = torch.randn(4, 3), cell.initial_state(4)
    assert isinstance(state, cells.GRUState)
    assert state.hidden.shape == (4, 2, 5) and state.hidden.eq(0).all()
    first, after = cell(x, state)
    cell(torch.randn(4, 3), after)
    assert cell(x, state)[0].equal(first)
    assert state.hidden.eq(0).all(), "the state that was passed in changed"
