"""State that is passed in and out: a tensor, None, or a (nested, named) tuple of them, the row first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

State = Any  # a tensor, None, or a (nested) tuple of them


def map_state(change: Callable[..., Tensor], state: State, *others: State) -> State:
    """Apply `change` to every tensor of a state, and to the tensors at the same place of the others."""
    if isinstance(state, Tensor):
        return change(state, *others)
    if state is None:
        return None
    if isinstance(state, tuple | list):
        parts = [map_state(change, *same) for same in zip(state, *others, strict=True)]
        return type(state)(*parts) if hasattr(state, "_fields") else type(state)(parts)
    raise TypeError(f"a state is made of tensors and tuples, not of {type(state).__name__}")
