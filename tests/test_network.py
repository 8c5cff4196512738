import pytest
import torch
from torch import nn

import rankcode as rc
from rankcode import cells


class Double(nn.Module):
    """A user's cell that does not say how large its features are."""

    def initial_state(self, rows):
        return torch.zeros(rows, 1)

    def forward(self, x_t, state):
        return torch.cat([x_t, x_t], 1), state


def step(network, *shape):
    return network(torch.randn(*shape), network.initial_state(shape[0]))


def test_one_step_is_the_cell_then_the_readout():
    network = rc.Network(cells.LSTM(3, 4), 5)
    x, state = torch.randn(2, 3), network.initial_state(2)
    logits, after = network(x, state)
    features, expected = network.cell(x, state)
    assert logits.equal(features @ network.readout.weight.T + network.readout.bias)
    assert all(a.equal(b) for a, b in zip(after, expected, strict=True))


def test_softmax():
    network = rc.Network(cells.LSTM(3, 4), 5)
    assert (network.activation, network.outputs, network.num_classes) == ("softmax", 5, 5)
    logits = torch.randn(2, 5)
    activations, probabilities = network.activate(logits)
    assert torch.allclose(activations, logits.exp() / logits.exp().sum(1, keepdim=True))
    assert activations.equal(probabilities)


def test_one_output_is_a_sigmoid_between_two_classes():
    network = rc.Network(cells.LSTM(3, 4), 1)
    assert (network.activation, network.outputs, network.num_classes) == ("sigmoid", 1, 2)
    logits, _ = step(network, 6, 3)
    assert logits.shape == (6, 2) and logits[:, 0].eq(0).all()
    activations, _ = network.activate(logits)
    assert torch.allclose(activations[:, 1], logits[:, 1].sigmoid())
    assert torch.allclose(activations.sum(1), torch.ones(6))


def test_a_spiking_output_layer_shows_its_membranes():
    for cell in (cells.LIF(3, 4, emits="membranes"), cells.Stack(cells.LIF(3, 6), cells.LIF(6, 4, emits="membranes"))):
        network = rc.Network(cell, 4)
        assert network.activation == "membrane" and isinstance(network.readout, nn.Identity)
        logits, state = step(network, 2, 3)
        membrane = state[-1].membrane if isinstance(cell, cells.Stack) else state.membrane
        assert logits.equal(membrane)
        activations, probabilities = network.activate(logits)
        assert activations.equal(membrane) and torch.allclose(probabilities, membrane.softmax(1))


def test_spikes_or_a_readout_after_membranes_make_a_softmax():
    assert rc.Network(cells.LIF(3, 4), 5).activation == "softmax"
    readout = nn.Linear(4, 5)
    network = rc.Network(cells.LIF(3, 4, emits="membranes"), 5, readout=readout)
    assert network.activation == "softmax" and network.readout is readout


def test_any_module_may_read_out():
    readout = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 5))
    network = rc.Network(cells.GRU(3, 4), 5, readout=readout)
    logits, state = step(network, 2, 3)
    assert logits.equal(readout(state.hidden[:, -1]))


def test_images_are_flattened():
    network = rc.Network(cells.ConvLSTM(1, 2, (4, 3)), 5)
    logits, _ = step(network, 2, 1, 4, 3)
    assert logits.shape == (2, 5)
    assert [type(part) for part in network.readout] == [nn.Flatten, nn.Linear]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_cell_that_does_not_say_its_size(dtype):
    network = rc.Network(Double(), 3).to(dtype)
    decision = rc.decide(network, torch.randn(2, 4, 5, dtype=dtype))
    assert network.readout[1].weight.shape == (3, 10)
    assert decision.probabilities.dtype == dtype


def test_dtype_follows_the_parameters():
    network = rc.Network(cells.LSTM(3, 4), 5).double()
    assert all(part.dtype == torch.float64 for part in network.initial_state(2))
    assert rc.decide(network, torch.randn(2, 4, 3)).probabilities.dtype == torch.float64
    assert rc.decide(network, torch.ones(2, 4, 3, dtype=torch.int64)).probabilities.dtype == torch.float64


def test_logits_are_never_of_low_precision():
    network = rc.Network(cells.LSTM(3, 4), 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits, state = step(network, 2, 3)
    assert logits.dtype == torch.float32
    assert all(part.dtype == torch.float32 for part in state)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: rc.Network(nn.Linear(3, 4), 2), "initial_state"),
        (lambda: rc.Network(object(), 2), "initial_state"),
        (lambda: rc.Network(cells.LSTM, 2), "initial_state"),
        (lambda: rc.Network(cells.LSTM(3, 4), 0), "output"),
        (lambda: rc.Network(cells.LSTM(3, 4), 2, activation="relu"), "activation"),
        (lambda: rc.Network(cells.LSTM(3, 4), 2, activation="sigmoid"), "sigmoid"),
        (lambda: rc.Network(cells.LSTM(3, 4), 1, activation="softmax"), "sigmoid"),
        (lambda: step(rc.Network(cells.LSTM(3, 4), 5, readout=nn.Linear(4, 6)), 2, 3), "readout"),
        (lambda: step(rc.Network(cells.ConvLSTM(1, 2, (4, 3)), 2, readout=nn.Identity()), 2, 1, 4, 3), "readout"),
    ],
)
def test_what_is_refused(make, says):
    with pytest.raises(ValueError, match=says) as error:
        make()
    assert "\n" not in str(error.value)


class Checked(nn.Linear):
    """A readout with checkpoints of its class, or as a property."""

    checkpoints = (2, 4)


class Computed(nn.Linear):
    @property
    def checkpoints(self):
        return (self.in_features,)


def test_checkpoints_are_found_wherever_the_readout_has_them():
    own = nn.Linear(4, 3)
    own.checkpoints = (1, 5)
    for readout, expected in ((Checked(4, 3), (2, 4)), (Computed(4, 3), (4,)), (own, (1, 5)), (nn.Linear(4, 3), None)):
        assert rc.Network(cells.LSTM(3, 4), 3, readout).checkpoints == expected
