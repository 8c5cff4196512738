"""Cells on top of each other: each cell reads the features of the cell below."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from torch import Tensor, nn

from rankcode.state import State


class Stack(nn.Module):
    """A cell made of cells, from the lowest to the topmost."""

    def __init__(self, *cells: nn.Module):
        super().__init__()
        if not cells or not all(hasattr(cell, "initial_state") for cell in cells):
            raise ValueError("a stack needs at least one cell, and nothing but cells: modules with initial_state")
        for number, (lower, upper) in enumerate(pairwise(cells), start=1):
            given, read = getattr(lower, "output_shape", None), getattr(upper, "input_shape", None)
            size = math.prod if getattr(upper, "flattens_inputs", False) else tuple
            if given is not None and read is not None and size(given) != size(read):
                raise ValueError(
                    f"cell {number + 1} of the stack reads {list(read)}, but cell {number} gives {list(given)}"
                )
        self.cells = nn.ModuleList(cells)
        for cell, names in (
            (cells[0], ("input_shape", "input_size", "flattens_inputs")),
            (cells[-1], ("output_shape", "emits")),
        ):
            for name in names:
                if hasattr(cell, name):
                    setattr(self, name, getattr(cell, name))

    def initial_state(self, batch_size: int) -> State:
        return tuple(cell.initial_state(batch_size) for cell in self.cells)  # type: ignore[operator]

    def forward(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        return self._through(self.cells, x_t, state)

    def forward_sequence(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """For cells that all have `forward_sequence`."""
        return self._through([cell.forward_sequence for cell in self.cells], inputs, state)

    def _through(self, steps: Iterable[Any], x: Tensor, state: State) -> tuple[Tensor, State]:
        states = []
        for step, below in zip(steps, state, strict=True):
            x, after = step(x, below)
            states.append(after)
        return x, tuple(states)
