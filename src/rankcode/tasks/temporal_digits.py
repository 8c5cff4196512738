"""Temporal digits: the paper's temporal MNIST (section 3.3) with the small digits of scikit-learn.

1,797 images of 8 × 8 pixels that come with scikit-learn; training takes seconds instead of minutes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np

from rankcode.data.sources import Arrays
from rankcode.tasks.temporal_images import TemporalImages

SHARES = {"train": (0.0, 0.6), "validation": (0.6, 0.8), "test": (0.8, 1.0)}  # of the images of each digit


@cache
def _load() -> tuple[np.ndarray, np.ndarray]:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError("temporal digits need scikit-learn: pip install 'rankcode[sklearn]'") from error
    images, labels = map(np.asarray, load_digits(return_X_y=True))
    return images.astype(np.uint8), labels  # [rows, 64], [rows]


@dataclass(frozen=True)
class TemporalDigits(TemporalImages):
    """Which digit is it? Small images in which every pixel spikes once, the darkest first."""

    steps: int = 10
    """Steps an image is spread over."""
    flat: bool = False
    """Make each step a vector of 64 numbers instead of a 1 × 8 × 8 image."""
    split_seed: int = 0
    """Seed that divides the images into training, validation and test data (60, 20 and 20 % of each digit)."""

    name: ClassVar[str] = "temporal-digits"
    side: ClassVar[int] = 8
    levels: ClassVar[int] = 16

    def _split(self, split: str, augment: bool = False) -> Arrays:
        """A share of the images of each digit, in the order in which they are stored."""
        images, labels = _load()
        random = np.random.default_rng(self.split_seed)
        chosen = []
        for digit in range(self.num_classes):
            rows = random.permutation(np.flatnonzero(labels == digit))
            start, stop = (round(share * len(rows)) for share in SHARES[split])
            chosen.append(rows[start:stop])
        rows = np.sort(np.concatenate(chosen))
        return Arrays(images[rows].reshape(len(rows), *self.input_shape), labels[rows], encode=self.front_end)
