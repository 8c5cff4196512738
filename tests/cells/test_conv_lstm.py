import math

import pytest
import torch

from rankcode import cells


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def by_pixel(cell, images):
    """Hidden maps after every image of one row, with plain loops over pixels, maps and the kernel."""
    weight, bias = cell.gates.weight.tolist(), cell.gates.bias.tolist()
    units, (height, width), reach = cell.hidden_channels, cell.image_size, cell.kernel_size // 2
    blank = [[[0.0] * width for _ in range(height)] for _ in range(units)]
    hidden, memory, result = blank, blank, []

    def gate(number, stack, y, x):
        total = bias[number]
        for channel, image in enumerate(stack):
            for dy in range(-reach, reach + 1):
                for dx in range(-reach, reach + 1):
                    if 0 <= y + dy < height and 0 <= x + dx < width:
                        total += weight[number][channel][dy + reach][dx + reach] * image[y + dy][x + dx]
        return total

    for image in images.tolist():
        stack = image + hidden
        new_hidden = [[[0.0] * width for _ in range(height)] for _ in range(units)]
        new_memory = [[[0.0] * width for _ in range(height)] for _ in range(units)]
        for unit in range(units):
            for y in range(height):
                for x in range(width):
                    i, f, g, o = (gate(k * units + unit, stack, y, x) for k in range(4))
                    c = sigmoid(f) * memory[unit][y][x] + sigmoid(i) * math.tanh(g)
                    new_memory[unit][y][x] = c
                    new_hidden[unit][y][x] = sigmoid(o) * math.tanh(c)
        hidden, memory = new_hidden, new_memory
        result.append(hidden)
    return torch.tensor(result, dtype=torch.float64)


@pytest.mark.parametrize("kernel", [1, 3])
def test_against_plain_loops(kernel):
    torch.manual_seed(0)
    cell = cells.ConvLSTM(2, 2, (3, 4), kernel_size=kernel).double()
    inputs = torch.randn(2, 3, 2, 3, 4, dtype=torch.float64)  # [rows, steps, channels, height, width]
    state, features = cell.initial_state(2), []
    for step in range(3):
        now, state = cell(inputs[:, step], state)
        features.append(now)
        assert now.equal(state.hidden)
    features = torch.stack(features, 1)
    for row in range(2):
        assert torch.allclose(features[row], by_pixel(cell, inputs[row]), rtol=0, atol=1e-12)


def test_state_and_features():
    cell = cells.ConvLSTM(1, 6, [5, 7], kernel_size=5)
    assert cell.output_shape == (6, 5, 7)
    state = cell.initial_state(3)
    assert isinstance(state, cells.ConvLSTMState)
    assert all(part.shape == (3, 6, 5, 7) and part.eq(0).all() for part in state)
    features, after = cell(torch.randn(3, 1, 5, 7), state)
    assert features.shape == after.cell.shape == (3, 6, 5, 7)
    assert all(part.eq(0).all() for part in state), "the state that was passed in changed"


def test_an_even_kernel_is_refused():
    with pytest.raises(ValueError, match="odd"):
        cells.ConvLSTM(1, 2, (4, 4), kernel_size=2)
