"""Temporal digits: the paper's temporal MNIST (section 3.3) with the small digits of scikit-learn.

1,797 images of 8 × 8 pixels that come with scikit-learn; training takes seconds instead of minutes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import ClassVar

import numpy as np

from rankcode.data.sources import Arrays
from rankcode.front_ends.latency_code import LatencyCode

LEVELS = 16  # the largest pixel value


@cache
def _load() -> tuple[np.ndarray, np.ndarray]:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError("temporal digits need scikit-learn: pip install 'rankcode[data]'") from error
    images, labels = load_digits(return_X_y=True)
    return images.astype(np.uint8), labels  # [rows, 64], [rows]


@dataclass(frozen=True)
class TemporalDigits:
    """Which digit is it? Small images in which every pixel spikes once, the darkest first."""

    steps: int = 10
    """Steps an image is spread over."""
    flat: bool = False
    """Make each step a vector of 64 numbers instead of a 1 × 8 × 8 image."""
    split_seed: int = 0
    """Seed that divides the images into training, validation and test data (60, 20 and 20 % of each digit)."""

    name: ClassVar[str] = "temporal-digits"
    num_classes: ClassVar[int] = 10
    label_names: ClassVar[tuple[str, ...]] = tuple("0123456789")

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, not {self.steps}")

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (64,) if self.flat else (1, 8, 8)

    @property
    def front_end(self) -> LatencyCode:
        return LatencyCode(LEVELS, self.steps, self.input_shape)

    @cached_property
    def train(self) -> Arrays:
        return self._split(0.0, 0.6)

    @cached_property
    def validation(self) -> Arrays:
        return self._split(0.6, 0.8)

    @cached_property
    def test(self) -> Arrays:
        return self._split(0.8, 1.0)

    def _split(self, start: float, stop: float) -> Arrays:
        """A share of the images of each digit, in the order in which they are stored."""
        images, labels = _load()
        random = np.random.default_rng(self.split_seed)
        chosen = []
        for digit in range(self.num_classes):
            rows = random.permutation(np.flatnonzero(labels == digit))
            chosen.append(rows[round(start * len(rows)) : round(stop * len(rows))])
        rows = np.sort(np.concatenate(chosen))
        return Arrays(images[rows].reshape(len(rows), *self.input_shape), labels[rows], encode=self.front_end)
