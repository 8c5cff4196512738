import pytest
import torch
from torch import nn

import rankcode as rc
from rankcode import cells


class Plain(nn.Module):
    """A user's cell: no features, a bare tensor as its state."""

    def initial_state(self, rows):
        return torch.zeros(rows, 4)

    def forward(self, x_t, state):
        state = 0.5 * state + x_t
        return state.tanh(), state


def test_each_cell_reads_the_one_below():
    below, above = cells.GRU(3, 4), cells.LSTM(4, 5)
    stack = cells.Stack(below, above)
    state = stack.initial_state(2)
    low, high = below.initial_state(2), above.initial_state(2)
    for _ in range(3):
        x = torch.randn(2, 3)
        features, state = stack(x, state)
        between, low = below(x, low)
        expected, high = above(between, high)
        assert features.equal(expected)
        assert state[0].hidden.equal(low.hidden) and state[1].cell.equal(high.cell)


def test_it_looks_like_its_topmost_cell():
    stack = cells.Stack(cells.LIF(3, 4), cells.LIF(4, 2, emits="membranes"))
    assert stack.output_shape == (2,) and stack.emits == "membranes"
    assert not hasattr(cells.Stack(cells.GRU(3, 4), Plain()), "features")
    assert not hasattr(cells.Stack(cells.LIF(3, 4, emits="membranes"), cells.GRU(4, 2)), "emits")


def test_a_users_cell_in_a_stack():
    network = rc.Network(cells.Stack(cells.GRU(3, 4), Plain()), 2)
    assert rc.decide(network, torch.randn(5, 6, 3)).label.shape == (5,)


def test_an_empty_stack_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        cells.Stack()


def test_cells_that_do_not_fit_on_each_other_are_an_error():
    with pytest.raises(ValueError, match=r"cell 2 of the stack reads \[3\], but cell 1 gives \[16\]"):
        cells.Stack(cells.LSTM(3, 16), cells.LSTM(3, 16))
    cells.Stack(cells.ConvLSTM(1, 2, (4, 4)), cells.LIF(32, 5))  # flattens its inputs
    with pytest.raises(ValueError, match=r"reads \[31\], but cell 1 gives \[2, 4, 4\]"):
        cells.Stack(cells.ConvLSTM(1, 2, (4, 4)), cells.LIF(31, 5))
