import pytest
import torch

from rankcode import cells


def one_neuron(weight=1.0, **settings):
    cell = cells.LIF(1, 1, **settings).double()
    with torch.no_grad():
        cell.synapses[1].weight.fill_(weight)
        cell.synapses[1].bias.zero_()
    return cell


def membranes_and_spikes(cell, currents):
    state, membranes, spikes = cell.initial_state(1), [], []
    for current in currents:
        _, state = cell(torch.tensor([[current]], dtype=torch.float64), state)
        membranes.append(state.membrane.item())
        spikes.append(state.spike.item())
    return membranes, spikes


def test_membrane_by_hand():
    # u = 0.2 · u · (1 − o) + current, a spike above 0.5
    currents = [0.40, 0.45, 0.30, 0.43, 0.41, 0.00, -0.30, 0.90]
    expected = [0.40, 0.53, 0.30, 0.49, 0.508, 0.00, -0.30, 0.84]
    membranes, spikes = membranes_and_spikes(one_neuron(), currents)
    assert membranes == pytest.approx(expected, abs=1e-12)
    assert spikes == [0, 1, 0, 0, 1, 0, 0, 1]


def test_a_spike_needs_more_than_the_threshold():
    assert membranes_and_spikes(one_neuron(), [0.5])[1] == [0]
    assert membranes_and_spikes(one_neuron(), [0.5000001])[1] == [1]


def test_other_settings():
    membranes, spikes = membranes_and_spikes(one_neuron(threshold=1.0, decay=0.5), [0.8, 0.8, 0.6, 0.6])
    assert membranes == pytest.approx([0.8, 1.2, 0.6, 0.9], abs=1e-12)
    assert spikes == [0, 1, 0, 0]


def test_what_a_layer_emits():
    x = torch.tensor([[0.7]], dtype=torch.float64)
    for emits, expected in (("spikes", 1.0), ("membranes", 0.7)):
        cell = one_neuron(emits=emits)
        features, state = cell(x, cell.initial_state(1))
        assert features.item() == pytest.approx(expected)
        assert (state.membrane.item(), state.spike.item()) == pytest.approx((0.7, 1.0))
    with pytest.raises(ValueError, match="emits"):
        cells.LIF(1, 1, emits="both")


@pytest.mark.parametrize(
    ("width", "membranes", "slopes"),
    [
        (0.5, [-0.01, 0.01, 0.49, 0.51, 0.99, 1.01], [0, 1, 1, 1, 1, 0]),
        (0.25, [0.2, 0.26, 0.5, 0.74, 0.8], [0, 2, 2, 2, 0]),
        (1.0, [-0.6, -0.4, 1.4, 1.6], [0, 0.5, 0.5, 0]),
    ],
)
def test_the_surrogate_is_a_rectangle_of_area_one(width, membranes, slopes):
    cell = one_neuron(surrogate_width=width)
    for membrane, slope in zip(membranes, slopes, strict=True):
        x = torch.tensor([[membrane]], dtype=torch.float64, requires_grad=True)
        spike, _ = cell(x, cell.initial_state(1))
        spike.backward(torch.tensor([[3.0]], dtype=torch.float64))
        assert x.grad.item() == pytest.approx(3 * slope)


@pytest.mark.parametrize(("first", "second"), [(0.4, 0.3), (0.7, 0.3), (1.2, 0.1)])
def test_gradient_through_time_by_hand(first, second):
    # u₁ = w x₁, o₁ its spike, u₂ = 0.2 u₁ (1 − o₁) + w x₂, at w = 1:
    # du₂/dw = 0.2 (1 − o₁) x₁ − 0.2 u₁ s(u₁) x₁ + x₂, s the surrogate
    cell = one_neuron(emits="membranes")
    state = cell.initial_state(1)
    for x in (first, second):
        membrane, state = cell(torch.tensor([[x]], dtype=torch.float64), state)
    membrane.backward()
    spike, slope = float(first > 0.5), float(abs(first - 0.5) < 0.5)
    expected = 0.2 * (1 - spike) * first - 0.2 * first * slope * first + second
    assert cell.synapses[1].weight.grad.item() == pytest.approx(expected, abs=1e-12)


def test_images_are_flattened():
    cell = cells.LIF(12, 5)
    features, state = cell(torch.randn(2, 1, 4, 3), cell.initial_state(2))
    assert features.shape == state.spike.shape == (2, 5)
    assert set(features.unique().tolist()) <= {0.0, 1.0}


@pytest.mark.parametrize(("pool", "kernel", "shape"), [(1, 3, (6, 8, 4)), (2, 3, (6, 4, 2)), (1, 5, (6, 8, 4))])
def test_convolutional_shapes(pool, kernel, shape):
    cell = cells.ConvLIF(2, 6, (8, 4), kernel_size=kernel, pool_size=pool)
    assert cell.output_shape == shape
    state = cell.initial_state(3)
    assert state.membrane.shape == (3, *shape)
    features, after = cell(torch.randn(3, 2, 8, 4), state)
    assert features.shape == after.membrane.shape == after.spike.shape == (3, *shape)


def test_convolutional_values():
    cell = cells.ConvLIF(1, 2, (3, 4), pool_size=1).double()
    x, state = torch.randn(2, 2, 1, 3, 4, dtype=torch.float64), cell.initial_state(2)
    _, first = cell(x[0], state)
    features, second = cell(x[1], first)
    expected = 0.2 * first.membrane * (1 - first.spike) + cell.synapses(x[1])
    assert torch.allclose(second.membrane, expected)
    assert features.equal((expected > 0.5).double())


def test_pooling_averages_the_input():
    cell = cells.ConvLIF(1, 1, (4, 4), kernel_size=1, pool_size=2, emits="membranes").double()
    with torch.no_grad():
        cell.synapses[1].weight.fill_(1.0)
        cell.synapses[1].bias.zero_()
    image = torch.arange(16.0, dtype=torch.float64).reshape(1, 1, 4, 4)
    membrane, _ = cell(image, cell.initial_state(1))
    assert membrane.flatten().tolist() == [2.5, 4.5, 10.5, 12.5]


def test_an_even_kernel_is_refused():
    with pytest.raises(ValueError, match="odd"):
        cells.ConvLIF(1, 2, (4, 4), kernel_size=4)
