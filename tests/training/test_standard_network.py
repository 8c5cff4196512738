"""The networks that the command line trains."""

from types import SimpleNamespace

import pytest
import torch

import rankcode as rc
from rankcode import cells
from rankcode.training.standard_network import HIDDEN_SIZES, standard_network

SERIES = SimpleNamespace(name="series", input_shape=(3,), num_classes=2)
IMAGES = SimpleNamespace(name="images", input_shape=(1, 4, 4), num_classes=5)


@pytest.mark.parametrize("task", [SERIES, IMAGES], ids=lambda task: task.name)
@pytest.mark.parametrize("cell", HIDDEN_SIZES)
def test_every_cell_reads_its_task(cell, task):
    if cell.startswith("conv") and task is SERIES:
        with pytest.raises(ValueError, match=f"^a {cell} reads images, and the steps of this data are not images$"):
            standard_network(task, cell, 4)
        return
    network, inputs = standard_network(task, cell, 4), torch.randn(2, 3, *task.input_shape)
    decision = rc.decide(network, inputs.flatten(2) if cell in ("lstm", "gru") else inputs)
    assert decision.probabilities.shape == (2, task.num_classes)
    spiking = cell in ("lif", "conv-lif")
    assert network.activation == ("membrane" if spiking else "sigmoid" if task is SERIES else "softmax")


def test_layers_and_a_hidden_layer_of_the_readout():
    network = standard_network(IMAGES, "gru", 4, num_layers=2, readout_layer_size=7)
    assert isinstance(network.cell, cells.GRU) and network.cell.num_layers == 2
    first, _, last = network.readout
    assert (first.in_features, first.out_features, last.out_features) == (4, 7, 5)


@pytest.mark.parametrize("cell", ["conv-lstm", "conv-lif"])
def test_the_width_of_convolutions(cell):
    network = standard_network(IMAGES, cell, 2, kernel_size=5)
    convolutions = [part for part in network.modules() if isinstance(part, torch.nn.Conv2d)]
    assert convolutions and {part.kernel_size for part in convolutions} == {(5, 5)}


@pytest.mark.parametrize(
    ("cell", "settings", "said"),
    [
        ("lif", {"num_layers": 2}, "num_layers is for lstm and gru, not for lif"),
        ("conv-lif", {"readout_layer_size": 2}, "readout_layer_size is for lstm and gru, not for conv-lif"),
        ("gru", {"kernel_size": 3}, "kernel_size is for conv-lstm and conv-lif, not for gru"),
        ("lstm", {"decay": 0.5}, "decay is for lif and conv-lif, not for lstm"),
        ("lstm", {"hidden_size": 0}, "hidden_size must be at least 1, not 0"),
        ("gru", {"num_layers": 0}, "num_layers must be at least 1, not 0"),
    ],
)
def test_settings_that_do_not_go_together(cell, settings, said):
    with pytest.raises(ValueError, match=f"^{said}$"):
        standard_network(IMAGES, cell, **{"hidden_size": 4} | settings)


@pytest.mark.parametrize("hidden_size", [10**6, 2**60])
def test_a_network_that_is_too_large_is_named(hidden_size):
    said = r"^there is not enough memory for this network[^\n]*: choose a smaller hidden_size"
    with pytest.raises(MemoryError, match=said):
        standard_network(SERIES, "lstm", hidden_size)
