"""Images as spike times (paper, section 3.3): every pixel spikes exactly once, darkest ink first."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rankcode.data.arrays import as_array, as_tensor
from rankcode.front_ends.input_streams import NumberStreams
from rankcode.front_ends.protocol import FrontEnd, StoredRow


def latency_code(images: Tensor, levels: int, steps: int) -> Tensor:
    """Latency-coded images: [rows, …] integers in 0…levels to [rows, steps, …] float32 of zeros and ones.

    Ink of intensity v = value / levels in (0, 1] fires at step `steps` − ⌈`steps` · v⌉ + 1, no ink at the last
    step. The arithmetic is on integers, so that no pixel on the boundary between two steps depends on rounding.
    """
    if images.is_floating_point() or images.is_complex():
        raise ValueError(f"images must hold integers, not {images.dtype}")
    values = images.int()
    within = images.dtype == torch.uint8 and levels == 255  # then no value can be out of range
    if not within and values.numel() and not 0 <= int(values.min()) <= int(values.max()) <= levels:
        raise ValueError(f"image values must lie in 0…{levels}")
    filled = (steps * values + levels - 1) // levels  # ⌈steps · v⌉
    fires = (steps - filled + 1).clamp(max=steps)  # [rows, …]
    step = torch.arange(1, steps + 1, device=images.device).view(-1, *[1] * (images.dim() - 1))
    return (fires[:, None] == step).float()


@dataclass(frozen=True)
class LatencyCode(FrontEnd):
    """Images of bytes to sequences: a step is an image, or a vector where `shape` has one entry."""

    levels: int
    """The largest pixel value."""
    steps: int
    """Steps an image is spread over."""
    shape: tuple[int, ...]
    """Shape of one step."""

    def __post_init__(self) -> None:
        if self.levels < 1 or self.steps < 1 or not self.shape or min(self.shape) < 1:
            raise ValueError(f"levels, steps and shape must be positive: {self.levels}, {self.steps}, {self.shape}")

    @property
    def reads(self) -> str:
        return f"images of {math.prod(self.shape)} pixels in 0…{self.levels}"

    @property
    def output_shape(self) -> tuple[int, ...]:
        return self.shape

    def __call__(self, stored: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        if stored[0].numel() != math.prod(self.shape):
            raise ValueError(f"images must have shape {list(self.shape)}, not {list(stored.shape[1:])}")
        return latency_code(stored.reshape(len(stored), *self.shape), self.levels, self.steps), None

    def num_steps(self, lengths: Tensor) -> Tensor:
        return torch.full_like(lengths, self.steps)

    def stream(self, rows: int) -> LatencyStreams:
        return LatencyStreams(self, rows)

    def rows(self, data: Any, left_out: list[str] | None = None) -> Iterable[tuple[str, Any]]:
        """Images, or one image [height, width]."""
        one = tuple(getattr(data, "shape", ())) == self.shape[-2:]
        return super().rows([data] if one else data)

    def read(self, raw: Any) -> StoredRow:
        image = as_tensor(raw)
        if image.numel() != math.prod(self.shape):
            raise ValueError(f"an image must have shape {list(self.shape)}, not {list(image.shape)}")
        return StoredRow(image.reshape(self.shape), 1)


class LatencyStreams(NumberStreams):
    """Live images. Floats or booleans are steps, as the image appears: 1 for the pixels that appear at a step, 0 for
    all others. Integers are a whole image, whose steps are all complete at once."""

    def __init__(self, code: LatencyCode, rows: int):
        super().__init__(rows, code.shape, any_layout=True)
        self.code = code

    def check(self, row: int, raw: Any) -> np.ndarray:
        items = as_array(raw)
        if items.dtype.kind in "iu":
            stored = self.code.read(items).values
            steps = latency_code(stored[None], self.code.levels, self.code.steps)[0].numpy()
        else:
            steps = super().check(row, items)
            if not np.isin(steps, (0, 1)).all():
                raise ValueError(
                    "a step of an image is 1 where a pixel appears and 0 elsewhere; other values were given"
                )
        if self.pushed[row] + len(steps) > self.code.steps:
            given = int(self.pushed[row]) + len(steps)
            raise ValueError(f"an image is complete after {self.code.steps} steps, and these would be {given}")
        return steps
