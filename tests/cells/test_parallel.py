"""Cells side by side."""

import pytest
import torch
from step_by_step import step_by_step

import rankcode as rc
from rankcode import cells
from rankcode.readouts import EnsembleReadout


def test_each_cell_reads_the_same_inputs():
    first, second = cells.ConvLSTM(1, 2, (4, 3)), cells.ConvLSTM(1, 3, (4, 3))
    both = cells.Parallel(first, second)
    assert both.input_shape == (1, 4, 3) and both.output_shape == (60,)
    state, one, other = both.initial_state(2), first.initial_state(2), second.initial_state(2)
    for _ in range(3):
        x = torch.randn(2, 1, 4, 3)
        features, state = both(x, state)
        (some, one), (more, other) = first(x, one), second(x, other)
        assert features.equal(torch.cat([some.flatten(1), more.flatten(1)], 1))
        assert state[0].hidden.equal(one.hidden) and state[1].cell.equal(other.cell)


@pytest.mark.parametrize("sizes", [[40], [1, 39], [7, 13, 20]])
def test_blocks_give_what_single_steps_give(sizes):
    inputs = torch.randn(5, 40, 2, generator=torch.Generator().manual_seed(0))
    kernels = cells.RandomKernels.for_length(2, 40, 300)
    kernels.draw(inputs, torch.full((5,), 40), torch.ones(5), torch.Generator().manual_seed(1))
    both = cells.Parallel(kernels, cells.LSTM(2, 6))
    features, state = step_by_step(both, inputs)
    block_state = both.initial_state(5)
    for part in inputs.split(sizes, 1):
        block_features, block_state = both.forward_block(part, block_state)
    assert torch.equal(block_features[:, :-6], features[:, -1, :-6])
    torch.testing.assert_close(block_features, features[:, -1])
    torch.testing.assert_close(block_state[1], state[1])


def test_gradients_reach_every_cell():
    network = rc.Network(
        cells.Parallel(cells.GRU(3, 4), cells.LSTM(3, 5)), 2,
        EnsembleReadout((torch.nn.Linear(4, 2), torch.nn.Linear(5, 2)), (4, 5)),
    )  # fmt: skip
    loss, _ = rc.UntilSpike(0.95)(network, torch.randn(6, 7, 3), torch.arange(6) % 2)
    loss.backward()
    assert all(part.grad is not None and part.grad.abs().sum() > 0 for part in network.parameters())


def test_cells_that_do_not_fit_together_are_refused():
    with pytest.raises(ValueError, match="at least one cell"):
        cells.Parallel()
    with pytest.raises(ValueError, match="at least one cell"):
        cells.Parallel(cells.GRU(3, 4), torch.nn.Linear(3, 4))
    with pytest.raises(ValueError, match=r"read the same inputs, not inputs of the shapes \[\(2,\), \(3,\)\]"):
        cells.Parallel(cells.GRU(3, 4), cells.GRU(2, 4))
