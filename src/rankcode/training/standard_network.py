"""The networks that the command line trains."""

from __future__ import annotations

import math
from typing import Any, Literal

from torch import nn

from rankcode import cells
from rankcode.network import Network

CellName = Literal["lstm", "gru", "conv-lstm", "lif", "conv-lif"]
UNITS = {"lstm": 125, "gru": 125, "lif": 256, "conv-lstm": 8, "conv-lif": 16}


def standard_network(
    task: Any,
    cell: CellName,
    units: int,
    layers: int = 1,
    decay: float | None = None,
    hidden: int | None = None,
    kernel: int | None = None,
) -> Network:
    """The network the command line trains: one sigmoid output for two classes, else one for each class."""
    shape, outputs = task.features, 1 if task.classes == 2 else task.classes
    if cell in ("conv-lstm", "conv-lif") and len(shape) != 3:
        raise ValueError(f"a {cell} reads images, and the steps of {task.name} are not images")
    for name, given, kinds in (
        ("layers", layers != 1, ("lstm", "gru")),
        ("hidden", hidden is not None, ("lstm", "gru")),
        ("kernel", kernel is not None, ("conv-lstm", "conv-lif")),
        ("decay", decay is not None, ("lif", "conv-lif")),
    ):
        if given and cell not in kinds:
            raise ValueError(f"{name} is for {' and '.join(kinds)}, not for {cell}")
    for name, value in {"units": units, "layers": layers, "hidden": hidden}.items():
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, not {value}")
    kernel, decay = 3 if kernel is None else kernel, 0.9 if decay is None else decay
    if cell == "conv-lstm":
        return Network(cells.ConvLSTM(shape[0], units, shape[1:], kernel), outputs)
    if cell in ("lstm", "gru"):
        kind = cells.LSTM if cell == "lstm" else cells.GRU
        readout = None
        if hidden is not None:
            readout = nn.Sequential(nn.Linear(units, hidden), nn.ReLU(), nn.Linear(hidden, outputs))
        return Network(kind(math.prod(shape), units, layers), outputs, readout)
    # A spiking network; its last cell has a neuron for each class, whose membranes are the activations.
    lower: list[nn.Module] = []
    if cell == "conv-lif":
        lower.append(cells.ConvLIF(shape[0], units, shape[1:], kernel, decay=decay))
        lower.append(cells.ConvLIF(units, units, shape[1:], kernel, pool=2, decay=decay))
        shape = (units, shape[1] // 2, shape[2] // 2)
    lower.append(cells.LIF(math.prod(shape), 128 if cell == "conv-lif" else units, decay=decay))
    top = cells.LIF(lower[-1].features[0], task.classes, decay=decay, emits="membranes")  # type: ignore[index]
    return Network(cells.Stack(*lower, top), task.classes)
