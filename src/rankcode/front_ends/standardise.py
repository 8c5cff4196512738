"""Series of numbers as a network reads them: missing values filled, every channel on a common scale."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rankcode.device_constants import constant


@dataclass(frozen=True)
class Standardise:
    """Subtracts the mean of each channel and divides by its deviation, both of the training data.

    A missing value (NaN) repeats the last one before it; at the beginning of a row it is the mean. Nothing
    looks ahead, so a stream gives the same inputs as the whole row.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def output_shape(self) -> tuple[int, ...]:
        return (len(self.mean),)

    def __call__(self, stored: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        if stored.dim() != 3:
            raise ValueError(f"series must have shape [rows, steps, {len(self.mean)}], not {list(stored.shape)}")
        if stored.shape[2] != len(self.mean):
            raise ValueError(f"the series have {stored.shape[2]} values a step, and the network reads {len(self.mean)}")
        stored = stored.to(torch.promote_types(stored.dtype, torch.float32))
        mean, deviation = (constant(tuple(part), stored.dtype, stored.device) for part in (self.mean, self.std))
        inputs = (stored - mean) / deviation
        missing = inputs.isnan()
        if missing.any():
            step = torch.arange(stored.shape[1], device=stored.device)[:, None].expand_as(missing)
            last_seen = torch.where(missing, -1, step).cummax(1).values
            inputs = inputs.gather(1, last_seen.clamp(min=0)).masked_fill(last_seen < 0, 0.0)
        return inputs, lengths

    def steps(self, lengths: Tensor) -> Tensor:
        """Steps of rows of these lengths, as they are stored."""
        return lengths

    @classmethod
    def of(cls, rows: list[Tensor]) -> Standardise:
        """From training rows [steps, channels]; a channel that never changes keeps its scale."""
        values = torch.cat(rows).double().numpy()  # NumPy adds in the same order whatever the number of threads
        there = np.maximum((~np.isnan(values)).sum(0), 1)
        mean = np.nansum(values, 0) / there
        deviation = np.sqrt(np.nansum(np.square(values - mean), 0) / there)
        deviation = np.where(deviation > 1e-12 * (1 + np.abs(mean)), deviation, 1.0)
        return cls(tuple(mean.tolist()), tuple(deviation.tolist()))
