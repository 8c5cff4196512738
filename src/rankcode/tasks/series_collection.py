"""Labelled time series as the rows of a task."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from rankcode.data.arrays import as_tensor
from rankcode.data.series import Columns, Series
from rankcode.data.sources import Packed, digest, steps_of
from rankcode.front_ends.protocol import FrontEnd
from rankcode.front_ends.standardise import Standardise

VALUES_AT_ONCE = 1 << 20  # for mean and standard deviation, which take a few times the memory of the values


class SeriesCollection:
    """Rows of numbers, each of its own length. All splits share one tensor.

    Values are kept in float32, unless the front end that reads them needs float64: `front_end`, or else one for all
    rows.
    """

    def __init__(
        self,
        values: Tensor,
        lengths: Tensor,
        labels: np.ndarray,
        splits: np.ndarray,
        columns: Columns | None,
        left_out: list[str],
    ):
        self.values, self.lengths, self.labels = values, lengths, labels
        self.splits, self.columns, self.left_out = splits, columns, left_out

    @classmethod
    def of(cls, found: dict[str, Series], left_out: list[str], front_end: FrontEnd | None = None) -> SeriesCollection:
        parts = [as_tensor(series.values) for series in found.values()]
        values = torch.cat(parts) if len(parts) > 1 else parts[0]
        if values.dtype == torch.float64 and not (front_end or Standardise.of(in_blocks(values))).needs_float64:
            values = values.float()
        given = found if len(found) > 1 else {"": next(iter(found.values()))}
        return cls(
            values,
            torch.from_numpy(np.concatenate([series.lengths for series in found.values()])),
            np.array([label for series in found.values() for label in series.labels]),
            np.array([split for split, series in given.items() for _ in series.labels]),
            next(iter(found.values())).columns,
            left_out,
        )

    @property
    def reads(self) -> str:
        """What a front end for these series reads."""
        return Standardise.reads_of(self.values.shape[1])

    def fingerprint(self) -> str:
        """Changes with the values, labels, lengths and splits."""
        return digest([",".join(self.labels), ",".join(self.splits), self.lengths.numpy(), self.values.numpy()])

    def front_end(self, index: np.ndarray) -> Standardise:
        """Standardises with the mean and standard deviation of these rows."""
        at_once = steps_at_once(self.values)
        return Standardise.of(steps_of(self.values, self.lengths, index, at_once)).reading(self.columns)

    def rows(self, index: np.ndarray, labels: Sequence[int], front_end: Standardise, augment: bool = False) -> Packed:
        if augment:
            raise ValueError("augment=True is for sound, and this data is not sound")
        chosen, offsets = torch.from_numpy(index), self.lengths.cumsum(0) - self.lengths
        return Packed(self.values, offsets[chosen], self.lengths[chosen], labels, front_end)


def steps_at_once(values: Tensor) -> int:
    return max(1, VALUES_AT_ONCE // values.shape[1])


def in_blocks(values: Tensor) -> Iterable[Tensor]:
    """The steps [steps of all rows, channels] in blocks."""
    return values.split(steps_at_once(values))
