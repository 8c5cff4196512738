"""The networks that the command line trains."""

from __future__ import annotations

import math
from typing import Any, Literal

from torch import nn

from rankcode import cells
from rankcode.network import Network
from rankcode.training.out_of_memory import memory_for

CellName = Literal["lstm", "gru", "conv-lstm", "lif", "conv-lif"]
HIDDEN_SIZES = {"lstm": 125, "gru": 125, "lif": 256, "conv-lstm": 8, "conv-lif": 16}
MAX_SIZE = 2**60  # PyTorch counts in 64 bits


@memory_for("this network", "choose a smaller hidden_size or fewer layers")
def standard_network(
    task: Any,
    cell: CellName,
    hidden_size: int,
    num_layers: int = 1,
    decay: float | None = None,
    readout_layer_size: int | None = None,
    kernel_size: int | None = None,
) -> Network:
    """The network the command line trains: one sigmoid output for two classes, else one for each class."""
    shape, outputs = task.input_shape, 1 if task.num_classes == 2 else task.num_classes
    if cell in ("conv-lstm", "conv-lif") and len(shape) != 3:
        raise ValueError(f"a {cell} reads images, and the steps of this data are not images")
    for name, given, kinds in (
        ("num_layers", num_layers != 1, ("lstm", "gru")),
        ("readout_layer_size", readout_layer_size is not None, ("lstm", "gru")),
        ("kernel_size", kernel_size is not None, ("conv-lstm", "conv-lif")),
        ("decay", decay is not None, ("lif", "conv-lif")),
    ):
        if given and cell not in kinds:
            raise ValueError(f"{name} is for {' and '.join(kinds)}, not for {cell}")
    sizes = {"hidden_size": hidden_size, "num_layers": num_layers, "readout_layer_size": readout_layer_size}
    for name, value in sizes.items():
        if value is not None and not 1 <= value <= MAX_SIZE:
            raise ValueError(f"{name} must be {'at least 1' if value < 1 else f'at most {MAX_SIZE:,}'}, not {value}")
    kernel_size, decay = 3 if kernel_size is None else kernel_size, 0.9 if decay is None else decay
    if cell == "conv-lstm":
        return Network(cells.ConvLSTM(shape[0], hidden_size, shape[1:], kernel_size), outputs)
    if cell in ("lstm", "gru"):
        kind = cells.LSTM if cell == "lstm" else cells.GRU
        readout = None
        if readout_layer_size is not None:
            readout = nn.Sequential(
                nn.Linear(hidden_size, readout_layer_size), nn.ReLU(), nn.Linear(readout_layer_size, outputs)
            )
        return Network(kind(math.prod(shape), hidden_size, num_layers), outputs, readout)
    # A spiking network; its last cell has a neuron for each class, whose membranes are the activations.
    lower: list[nn.Module] = []
    if cell == "conv-lif":
        lower.append(cells.ConvLIF(shape[0], hidden_size, shape[1:], kernel_size, decay=decay))
        lower.append(cells.ConvLIF(hidden_size, hidden_size, shape[1:], kernel_size, pool_size=2, decay=decay))
        shape = (hidden_size, shape[1] // 2, shape[2] // 2)
    lower.append(cells.LIF(math.prod(shape), 128 if cell == "conv-lif" else hidden_size, decay=decay))
    top = cells.LIF(lower[-1].output_shape[0], task.num_classes, decay=decay, emits="membranes")  # type: ignore[index]
    return Network(cells.Stack(*lower, top), task.num_classes)
