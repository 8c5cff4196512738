"""Labelled time series as the rows of a task."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from rankcode.data.series import Series
from rankcode.data.sources import Packed, digest, steps_of
from rankcode.front_ends.protocol import FrontEnd
from rankcode.front_ends.standardise import Standardise


class SeriesCollection:
    """Rows of numbers, each of its own length. All splits share one tensor.

    Values are kept in float32, unless the front end that reads them needs float64: `front_end`, or else one for all
    rows.
    """

    def __init__(self, found: dict[str, Series], left_out: list[str], front_end: FrontEnd | None = None):
        self.left_out = left_out
        parts = [torch.from_numpy(series.values) for series in found.values()]
        self.values = torch.cat(parts) if len(parts) > 1 else parts[0]
        self.lengths = torch.from_numpy(np.concatenate([series.lengths for series in found.values()]))
        self.labels = np.array([label for series in found.values() for label in series.labels])
        given = found if len(found) > 1 else {"": next(iter(found.values()))}
        self.columns = next(iter(found.values())).columns
        self.splits = np.array([split for split, series in given.items() for _ in series.labels])
        if not (front_end or Standardise.of(self.values.split(1 << 20))).needs_float64:
            self.values = self.values.float()

    @property
    def reads(self) -> str:
        """What a front end for these series reads."""
        return Standardise.reads_of(self.values.shape[1])

    def fingerprint(self) -> str:
        """Changes with the values, labels, lengths and splits."""
        return digest([",".join(self.labels), ",".join(self.splits), self.lengths.numpy(), self.values.numpy()])

    def front_end(self, index: np.ndarray) -> Standardise:
        """Standardises with the mean and standard deviation of these rows."""
        return Standardise.of(steps_of(self.values, self.lengths, index)).reading(self.columns)

    def rows(self, index: np.ndarray, labels: Sequence[int], front_end: Standardise, augment: bool = False) -> Packed:
        if augment:
            raise ValueError("augment=True is for sound, and this data is not sound")
        chosen, offsets = torch.from_numpy(index), self.lengths.cumsum(0) - self.lengths
        return Packed(self.values, offsets[chosen], self.lengths[chosen], labels, front_end)
