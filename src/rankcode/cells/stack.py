"""Cells on top of each other: each cell reads the features of the cell below."""

from __future__ import annotations

from torch import Tensor, nn

from rankcode.state import State


class Stack(nn.Module):
    """A cell made of cells, from the lowest to the topmost."""

    def __init__(self, *cells: nn.Module):
        super().__init__()
        if not cells or not all(hasattr(cell, "initial_state") for cell in cells):
            raise ValueError("a stack needs at least one cell, and nothing but cells: modules with initial_state")
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
        states = []
        for cell, below in zip(self.cells, state, strict=True):
            x_t, after = cell(x_t, below)
            states.append(after)
        return x_t, tuple(states)
