"""Live rows: raw data in as it arrives, a step of the network's inputs out as soon as it is complete.

A front end with a method `stream(rows)` can be used live. It returns `InputStreams`, which hold that many rows side by
side, so that what is computed for one row is computed for all of them in one call.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rankcode.data.arrays import as_array


class InputStreams(ABC):
    """Rows numbered from 0 that are read as they arrive. `reset` starts a row; `finish` ends it."""

    pushed: np.ndarray  # [rows] int64: raw items of each row so far, samples or steps

    @abstractmethod
    def check(self, row: int, raw: Any) -> np.ndarray:
        """A chunk of raw data as items for `push`. Bad data raises a ValueError, and the row stays as it was."""

    @abstractmethod
    def push(self, row: int, items: np.ndarray) -> None:
        """Add items that `check` returned."""

    @abstractmethod
    def finish(self, row: int) -> None:
        """Complete the steps that need the end of the row."""

    @abstractmethod
    def waiting(self) -> np.ndarray:
        """How many steps of each row are complete and have not been taken, int64 [rows]."""

    @abstractmethod
    def take(self, rows: np.ndarray, steps: int = 1) -> Tensor:
        """The next steps of each of these rows, [rows, steps, features…]."""

    @abstractmethod
    def reset(self, row: int) -> None:
        """Start a row, whatever it held before."""


class NumberStreams(InputStreams):
    """Rows of numbers in which a step of the inputs depends on the same step of the raw data alone.

    `shape` is that of a step. None: it is taken from the first data, a vector for each step. `any_layout`: steps may
    have any shape with as many values. `encode` maps steps [rows, steps, *shape] to inputs; default: as they are.
    `missing`: NaN is a missing value, which repeats the last value before it.
    """

    def __init__(
        self,
        rows: int,
        shape: tuple[int, ...] | None,
        encode: Callable[[Tensor], Tensor] | None = None,
        any_layout: bool = False,
        missing: bool = False,
    ):
        self.rows, self.shape, self.encode = rows, shape, encode
        self.any_layout, self.missing = any_layout, missing
        self.pushed = np.zeros(rows, np.int64)
        self._queues: Queues | None = None  # made when the shape is known
        self._last: Any = None  # [rows, *shape]: the last value of each channel, NaN before the first

    def check(self, row: int, raw: Any) -> np.ndarray:
        items = as_array(raw)
        if items.dtype.kind not in "fiub":
            raise ValueError(f"a stream takes numbers, not {items.dtype}")
        items = self._steps(items)
        if items.dtype.kind == "f" and not np.isfinite(items).all():
            if not self.missing:
                raise ValueError("the chunk holds NaN or infinity: none of it was read")
            if np.isinf(items).any():
                raise ValueError("the chunk holds infinity: none of it was read")
        return items

    def push(self, row: int, items: np.ndarray) -> None:
        if len(items) == 0:
            return
        if self._queues is None:
            self.shape = items.shape[1:]
            self._queues = Queues(self.rows, self.shape, torch.float64)
            self._last = np.full((self.rows, *self.shape), np.nan) if self.missing else None
        if self.missing:
            items = _filled(items, self._last[row])
            self._last[row] = items[-1]
        self._queues.append(row, items)
        self.pushed[row] += len(items)

    def finish(self, row: int) -> None:
        """No step needs the end."""

    def waiting(self) -> np.ndarray:
        return np.zeros(self.rows, np.int64) if self._queues is None else self._queues.lengths

    def take(self, rows: np.ndarray, steps: int = 1) -> Tensor:
        assert self._queues is not None, "a step is waiting"
        found = self._queues.windows(rows, 0, steps)
        self._queues.drop(rows, steps)
        return found if self.encode is None else self.encode(found)

    def reset(self, row: int) -> None:
        self.pushed[row] = 0
        if self._queues is not None:
            self._queues.clear(row)
        if self._last is not None:
            self._last[row] = np.nan

    def _steps(self, items: np.ndarray) -> np.ndarray:
        """One step or a chunk of steps as [steps, *shape]."""
        if self.shape is None:
            if items.ndim not in (1, 2):
                raise ValueError(
                    f"a step is a vector and a chunk [steps, features], not {list(items.shape)}: "
                    "for steps of another shape the cell needs an attribute input_shape"
                )
            return items[None] if items.ndim == 1 else items
        shape, given = self.shape, items.shape
        if items.size == 0 and items.ndim and given[0] == 0:
            return items.reshape(0, *shape)
        size = math.prod(shape)
        if given == shape or (items.size == size and (self.any_layout or size == 1)):
            return items.reshape(1, *shape)
        if given[1:] == shape or (items.ndim and math.prod(given[1:]) == size and (self.any_layout or size == 1)):
            return items.reshape(-1, *shape)
        raise ValueError(f"a step has shape {list(shape)} and a chunk [steps, …] of these, not {list(given)}")


def _filled(items: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Steps with every missing value replaced by the one before it."""
    if not (items.dtype.kind == "f" and np.isnan(items).any()):
        return items
    known = np.concatenate([last[None], items])
    number = np.arange(len(known)).reshape(-1, *[1] * last.ndim)
    seen = np.maximum.accumulate(np.where(np.isnan(known), 0, number), 0)
    return np.take_along_axis(known, seen, 0)[1:]


class Queues:
    """A queue of items for each of several rows, all in one tensor, which grows to twice what the longest needs."""

    def __init__(self, rows: int, shape: tuple[int, ...], dtype: torch.dtype):
        self.begin, self.end = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        self._values = math.prod(shape)  # of an item
        self._resize(torch.empty(rows, 0, *shape, dtype=dtype))

    @property
    def lengths(self) -> np.ndarray:
        return self.end - self.begin

    def clear(self, row: int) -> None:
        self.begin[row] = self.end[row] = 0

    def append(self, row: int, items: np.ndarray) -> None:
        """Add items [length, *shape] to one row."""
        begin, end = int(self.begin[row]), int(self.end[row])
        if end + len(items) > self._size:  # as `_make_room`, for one row in less time
            self._array[row, : end - begin] = self._array[row, begin:end]
            self.begin[row], end = 0, end - begin
            self._grow(end + len(items))
        self._array[row, end : end + len(items)] = items
        self.end[row] = end + len(items)

    def append_each(self, rows: np.ndarray, counts: np.ndarray, items: Tensor) -> None:
        """Add `counts[k]` of the items to row `rows[k]`, in order."""
        if len(rows) == 1:
            return self.append(int(rows[0]), items.numpy())
        self._make_room(rows, counts)
        queued, added, first = self._array.reshape(-1), items.numpy().reshape(-1), counts.cumsum() - counts
        for count in np.unique(counts):  # few: packets have the same size
            chosen, size = np.flatnonzero(counts == count), count * self._values
            places = rows[chosen] * self._size + self.end[rows[chosen]]
            _stretches(queued, size)[places * self._values] = _stretches(added, size)[first[chosen] * self._values]
        self.end[rows] += counts

    def windows(self, rows: np.ndarray, starts: np.ndarray | int, length: int) -> Tensor:
        """Items from `starts` on, counted from the beginning of each row's queue, [rows, length, *shape]."""
        places = torch.from_numpy(rows * self._size + self.begin[rows] + starts)
        number = len(self.end) * self._size - length + 1
        flat = self._items.as_strided((number, length * self._values), (self._values, 1))
        return flat[places].view(len(rows), length, *self._items.shape[2:])

    def drop(self, rows: np.ndarray, counts: np.ndarray | int) -> None:
        """Remove the first items of these rows."""
        self.begin[rows] += counts

    def _make_room(self, rows: np.ndarray, counts: np.ndarray) -> None:
        """Move the items of rows without room for this many more to the front, and enlarge the tensor if need be."""
        full = self.end[rows] + counts > self._size
        if not full.any():
            return
        rows, counts = rows[full], counts[full]
        held = self.end[rows] - self.begin[rows]
        if longest := int(held.max()):
            places = np.minimum(self.begin[rows][:, None] + np.arange(longest), self._size - 1)
            self._array[rows, :longest] = self._array[rows[:, None], places]
        self.begin[rows], self.end[rows] = 0, held
        self._grow(int((held + counts).max()))

    def _grow(self, needed: int) -> None:
        """Have room for this many items of a row."""
        if needed > self._size:
            larger = self._items.new_empty(len(self.end), 2 * needed, *self._items.shape[2:])
            larger[:, : self._size] = self._items
            self._resize(larger)

    def _resize(self, items: Tensor) -> None:
        self._items, self._array, self._size = items, items.numpy(), items.shape[1]


def _stretches(values: np.ndarray, length: int) -> np.ndarray:
    """Every stretch of this many values, [number, length], without a copy."""
    shape = (max(0, len(values) - length + 1), length)
    return np.lib.stride_tricks.as_strided(values, shape, values.strides * 2)
