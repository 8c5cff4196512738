"""State that is passed in and out: a tensor with the row first, None, or a (nested, named) tuple of these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

State = Any  # a tensor, None, or a (nested) tuple of these


def map_state(change: Callable[..., Tensor], state: State, *others: State) -> State:
    """Apply `change` to every tensor of a state, together with the tensors at the same place in the other states."""
    if isinstance(state, Tensor):
        return change(state, *others)
    if state is None:
        return None
    if isinstance(state, tuple | list):
        parts = [map_state(change, *same) for same in zip(state, *others, strict=True)]
        return type(state)(*parts) if hasattr(state, "_fields") else type(state)(parts)
    raise TypeError(f"a state consists of tensors and tuples, not of {type(state).__name__}")


def rows_of(state: State, at: Tensor) -> State:
    """Some rows of a state."""
    return map_state(lambda part: part.index_select(0, at), state)  # a third of the time that part[at] takes
