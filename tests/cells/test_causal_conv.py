import pytest
import torch
import torch.nn.functional as F
from step_by_step import step_by_step

import rankcode as rc
from rankcode import cells


@pytest.fixture(params=[(3, 5, 4, False), (3, 5, 4, True), (5, 5, 3, True), (5, 5, 3, False), (2, 3, 1, False)])
def cell(request):
    torch.manual_seed(0)
    cell = cells.CausalConv(*request.param).double()
    torch.nn.init.normal_(cell.norm.weight)
    torch.nn.init.normal_(cell.norm.bias)
    return cell


def plain(cell, inputs):
    """Every step on its own: the last inputs, with zeros before the first."""
    found = []
    for step in range(inputs.shape[1]):
        window = [
            inputs[:, at] if at >= 0 else torch.zeros_like(inputs[:, 0])
            for at in range(step - cell.kernel_size + 1, step + 1)
        ]
        if cell.depthwise:
            mixed = sum(value * weights for value, weights in zip(window, cell.filters, strict=True))
        else:
            mixed = torch.cat(window, 1)
        out = F.layer_norm(cell.linear(mixed), (cell.hidden_size,), cell.norm.weight, cell.norm.bias).relu()
        found.append(out + inputs[:, step] if cell.depthwise and cell.input_size == cell.hidden_size else out)
    return torch.stack(found, 1)


def test_a_step_is_a_convolution_over_the_last_inputs(cell):
    inputs = torch.randn(4, 7, cell.input_size, dtype=torch.float64)
    found, _ = step_by_step(cell, inputs)
    torch.testing.assert_close(found, plain(cell, inputs))


@pytest.mark.parametrize("first", [1, 2, 6])
def test_a_sequence_in_two_parts_gives_what_its_steps_give(cell, first):
    inputs = torch.randn(4, 7, cell.input_size, dtype=torch.float64)
    before, state = cell.forward_sequence(inputs[:, :first], cell.initial_state(4))
    after, state = cell.forward_sequence(inputs[:, first:], state)
    torch.testing.assert_close(torch.cat([before, after], 1), plain(cell, inputs))
    torch.testing.assert_close(state.inputs, F.pad(inputs, (0, 0, 2, 0))[:, -(cell.kernel_size - 1) or 9 :])


def test_it_is_saved_and_loaded(tmp_path, cell):
    network = rc.Network(cells.Stack(cell, cells.GRU(cell.hidden_size, 4).double()), 3).double()
    rc.save(network, tmp_path / "model.safetensors")
    inputs = torch.randn(5, 6, cell.input_size, dtype=torch.float64)
    wanted, found = (
        rc.decide(each, inputs, rule=rc.Threshold(0.4)) for each in (network, rc.load(tmp_path / "model.safetensors"))
    )
    assert torch.equal(wanted.steps, found.steps)
    assert torch.equal(wanted.probabilities, found.probabilities)


@pytest.mark.parametrize("sizes", [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_sizes_are_checked(sizes):
    with pytest.raises(ValueError, match="must be at least 1"):
        cells.CausalConv(*sizes)
