"""Series of numbers as a network reads them: missing values filled, every channel on a common scale."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from rankcode.data.arrays import as_tensor
from rankcode.data.series import Columns, Options
from rankcode.data.series_files import FORMATS, read_rows
from rankcode.device_constants import constant
from rankcode.front_ends.input_streams import NumberStreams
from rankcode.front_ends.protocol import FrontEnd, StoredRow, check_scale

MAX_MEAN_OVER_STD = 1e4  # up to this ratio, float32 resolves a thousandth of a standard deviation


@dataclass(frozen=True)
class Standardise(FrontEnd):
    """Subtracts the mean of each channel and divides by its standard deviation, both of the training data.

    A missing value (NaN) repeats the last value before it; at the beginning of a row it is the mean. No step depends
    on a later one, so a stream gives the same inputs as the whole row.
    """

    training_noise: ClassVar[float] = 0.2  # that `fit` adds to the inputs of small data sets (docs/choosing.md)

    mean: tuple[float, ...]
    std: tuple[float, ...]
    label_column: str | None = field(default=None, compare=False)
    """Column of labels in tables; rows to predict on may have it, and it is not read."""
    channel_names: tuple[str, ...] = field(default=(), compare=False)
    """Columns of tables in long form that are read."""
    file_suffixes: ClassVar[tuple[str, ...]] = FORMATS

    def __post_init__(self) -> None:
        check_scale(self.mean, self.std)

    @property
    def reads(self) -> str:
        return self.reads_of(len(self.mean))

    @staticmethod
    def reads_of(channels: int) -> str:
        """What a front end for series of this width reads."""
        return f"series of {channels} value{'s' * (channels > 1)} a step"

    @property
    def output_shape(self) -> tuple[int, ...]:
        return (len(self.mean),)

    def __call__(self, stored: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        if stored.dim() != 3:
            raise ValueError(f"series must have shape [rows, steps, {len(self.mean)}], not {list(stored.shape)}")
        self._check_channels(stored.shape[2])
        kept = torch.promote_types(stored.dtype, torch.float32)
        # In float64, so that inputs are the same whatever the precision in which equal numbers are stored.
        mean, std = (constant(tuple(part), torch.float64, stored.device) for part in (self.mean, self.std))
        inputs = ((stored - mean) / std).to(kept)
        missing = inputs.isnan()
        if missing.any():
            step = torch.arange(stored.shape[1], device=stored.device)[:, None].expand_as(missing)
            last_seen = torch.where(missing, -1, step).cummax(1).values
            inputs = inputs.gather(1, last_seen.clamp(min=0)).masked_fill(last_seen < 0, 0.0)
        return inputs, lengths

    @property
    def needs_float64(self) -> bool:
        return any(abs(mean) > MAX_MEAN_OVER_STD * std for mean, std in zip(self.mean, self.std, strict=True))

    def rows(self, data: Any, left_out: list[str] | None = None) -> Iterable[tuple[str, Any]]:
        """The rows of a data file or folder, of an array [rows, steps] or [rows, steps, channels], or of a list.

        Steps missing at the end of a row of an array mean that the row is shorter, as in files.
        """
        if isinstance(data, str | Path):
            known = {"label": self.label_column, "channel_names": self.channel_names}
            options = Options(left_out, channels=len(self.mean), **known)
            return ((f"{data}, {place}", row) for place, row in read_rows(data, options))
        if isinstance(data, list | tuple) or getattr(data, "dtype", None) == np.dtype(object):
            return super().rows(data)
        if np.ndim(data) == 3 and data.shape[2] != len(self.mean) == data.shape[1]:
            data = as_tensor(data).transpose(1, 2)  # [rows, channels, steps], as it cannot be anything else
        return ((name, _without_missing_end(row)) for name, row in super().rows(data))

    def reading(self, columns: Columns | None) -> Standardise:
        """The same for tables with these columns."""
        return self if columns is None else replace(self, label_column=columns.label, channel_names=columns.values)

    def read(self, raw: Any) -> StoredRow:
        row = super().read(raw)
        if row.values.dim() != 2:
            raise ValueError(f"a row has shape [steps, {len(self.mean)}], not {list(row.values.shape)}")
        self._check_channels(row.values.shape[1])
        if row.values.isinf().any():
            raise ValueError("it has an infinite value")
        return row

    def stream(self, rows: int) -> NumberStreams:
        """Live rows. A value that is missing (NaN) repeats the last one, as in whole rows."""
        return NumberStreams(rows, self.output_shape, lambda stored: self(stored)[0], missing=True)

    def step_module(self) -> StandardiseStep:
        return StandardiseStep(self)

    def shown(self, stored: Tensor) -> Tensor:
        """One channel in the user's own units, several on their common scale."""
        return stored if len(self.mean) == 1 else self(stored)[0]

    def _check_channels(self, channels: int) -> None:
        if channels != len(self.mean):
            raise ValueError(f"the series have {channels} values a step, and the network reads {len(self.mean)}")

    @classmethod
    def of(cls, blocks: Iterable[Tensor]) -> Standardise:
        """From the steps of the training rows [steps, channels], in blocks; a constant channel keeps its scale."""
        zero: Any = np.zeros(())
        count, mean, squares = zero, zero, zero  # of each channel: values there, their mean, squared distances from it
        for block in blocks:
            values = block.double().numpy()  # NumPy adds in the same order whatever the number of threads
            there = (~np.isnan(values)).sum(0)
            own_mean = np.nansum(values, 0) / np.maximum(there, 1)
            total = np.maximum(count + there, 1)
            shift = own_mean - mean
            squares = squares + np.nansum(np.square(values - own_mean), 0) + shift**2 * (count * there / total)
            mean, count = mean + shift * (there / total), count + there
        std = np.sqrt(squares / np.maximum(count, 1))
        std = np.where(std > 1e-12 * (1 + np.abs(mean)), std, 1.0)
        return cls(tuple(mean.tolist()), tuple(std.tolist()))


class StandardiseStep(nn.Module):
    """A step of raw values, [rows, channels] in float64, to inputs. The state is the last input of each channel, which
    a missing value repeats."""

    dtype, warm_up = torch.float64, 0
    mean: Tensor
    std: Tensor

    def __init__(self, front_end: Standardise):
        super().__init__()
        self.input_shape = front_end.output_shape
        self.register_buffer("mean", torch.tensor(front_end.mean, dtype=torch.float64))
        self.register_buffer("std", torch.tensor(front_end.std, dtype=torch.float64))

    def initial_state(self, batch_size: int) -> Tensor:
        return torch.zeros(batch_size, *self.input_shape)

    def forward(self, values: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        inputs = ((values - self.mean) / self.std).float()
        inputs = torch.where(inputs.isnan(), last, inputs)
        return inputs, inputs

    def sequence(self, raw: Any) -> Tensor:
        """A whole row, [steps, channels]."""
        return torch.as_tensor(raw, dtype=self.dtype).view(-1, *self.input_shape)


def _without_missing_end(raw: Any) -> Tensor:
    row = as_tensor(raw)
    if row.dim() == 0 or not row.is_floating_point() or row.numel() == 0:
        return row
    there = (~row.isnan().flatten(1).all(1) if row.dim() > 1 else ~row.isnan()).nonzero()
    return row[: int(there[-1]) + 1] if len(there) else row
