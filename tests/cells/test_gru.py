"""The steps and the backward pass of a GRU on a CPU."""

import pytest
import torch
from torch import nn

import rankcode as rc
from rankcode.cells.gru import MAX_OWN_BACKWARD, GRUState


@pytest.mark.parametrize("rows", [1, 5, 600])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("steps", [1, 6])
def test_sequences_and_gradients_are_those_of_torch(rows, layers, steps):
    torch.manual_seed(0)
    cell = rc.cells.GRU(4, 7, num_layers=layers).double()
    assert (MAX_OWN_BACKWARD < 600 * 7) and (MAX_OWN_BACKWARD > 5 * 7), "one way of training is not tested"
    torch_layer = nn.GRU(4, 7, layers, batch_first=True).double()
    torch_layer.load_state_dict(cell.state_dict())
    inputs = torch.randn(rows, steps, 4, dtype=torch.float64, requires_grad=True)
    hidden = torch.randn(rows, layers, 7, dtype=torch.float64, requires_grad=True)
    expected, last = torch_layer(inputs, hidden.transpose(0, 1).contiguous())
    for gradients in (False, True):
        with torch.set_grad_enabled(gradients):
            features, state = cell.forward_sequence(inputs, GRUState(hidden))
        torch.testing.assert_close(features, expected, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(state.hidden, last.transpose(0, 1), rtol=1e-10, atol=1e-12)
    weight, of_state = torch.randn_like(expected), torch.randn_like(state.hidden)
    last = last.transpose(0, 1)
    one, other = (
        torch.autograd.grad((outputs * weight).sum() + (after * of_state).sum(), [inputs, hidden, *layer.parameters()])
        for layer, outputs, after in ((cell, features, state.hidden), (torch_layer, expected, last))
    )
    for ours, theirs in zip(one, other, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)
