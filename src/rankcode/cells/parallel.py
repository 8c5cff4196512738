"""Cells side by side: each reads the same inputs."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from rankcode.state import State


class Parallel(nn.Module):
    """A cell made of cells that read the same inputs. Its features are those of all cells, flattened, one after
    another; a `readouts.EnsembleReadout` takes them apart again."""

    def __init__(self, *cells: nn.Module):
        super().__init__()
        if not cells or not all(hasattr(cell, "initial_state") for cell in cells):
            raise ValueError("at least one cell is needed, and nothing but cells: modules with initial_state")
        shapes = {tuple(getattr(cell, "input_shape", getattr(cells[0], "input_shape", ()))) for cell in cells}
        if len(shapes) > 1:
            raise ValueError(f"cells side by side read the same inputs, not inputs of the shapes {sorted(shapes)}")
        self.cells = nn.ModuleList(cells)
        for name in ("input_shape", "input_size"):
            if hasattr(cells[0], name):
                setattr(self, name, getattr(cells[0], name))
        if all(hasattr(cell, "output_shape") for cell in cells):
            self.output_shape = (sum(math.prod(cell.output_shape) for cell in cells),)  # type: ignore[arg-type]

    def initial_state(self, batch_size: int) -> State:
        return tuple(cell.initial_state(batch_size) for cell in self.cells)  # type: ignore[operator]

    def forward(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        return _joined([cell(x_t, before) for cell, before in zip(self.cells, state, strict=True)])

    def forward_block(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """For cells that all have `forward_block` or `forward_sequence`."""
        return _joined([_block(cell, inputs, before) for cell, before in zip(self.cells, state, strict=True)])


def _block(cell: Any, inputs: Tensor, state: State) -> tuple[Tensor, State]:
    if inputs.shape[1] == 1:  # a stream that is read step by step gives exactly what `forward` gives
        return cell(inputs[:, 0], state)
    if hasattr(cell, "forward_block"):
        return cell.forward_block(inputs, state)
    features, state = cell.forward_sequence(inputs, state)
    return features[:, -1], state


def _joined(found: list[tuple[Tensor, State]]) -> tuple[Tensor, State]:
    features, states = zip(*found, strict=True)
    return torch.cat([part.flatten(1) for part in features], 1), states
