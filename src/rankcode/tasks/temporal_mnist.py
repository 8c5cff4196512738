"""Temporal MNIST (paper, sections 3.3 and B.3): every pixel of a digit spikes once within ten steps."""

from __future__ import annotations

import gzip
import math
import zlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np

from rankcode.data.downloads import data_folder
from rankcode.data.sources import Arrays, BadData
from rankcode.front_ends.latency_code import LatencyCode
from rankcode.tasks.digit_augmentation import DigitAugmentation

HELD_OUT = 5_000  # training digits for validation; the paper has none


@dataclass(frozen=True)
class TemporalMNIST:
    """Which digit is it? Every pixel spikes once within ten steps, the darkest first."""

    data: str | None = None
    """Folder of the four idx files, gzipped or not. Default: mnist in the folder that RANKCODE_DATA names."""
    steps: int = 10
    """Steps an image is spread over."""
    flat: bool = False
    """Give each step as 784 numbers instead of a 1 × 28 × 28 image."""
    augment: bool = False
    """Alter the training digits: turned, stretched, slanted and moved a little, anew each time."""

    name: ClassVar[str] = "temporal-mnist"
    num_classes: ClassVar[int] = 10
    label_names: ClassVar[tuple[str, ...]] = tuple("0123456789")

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, not {self.steps}")

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (784,) if self.flat else (1, 28, 28)

    @property
    def front_end(self) -> LatencyCode:
        return LatencyCode(255, self.steps, self.input_shape)

    @cached_property
    def train(self) -> Arrays:
        return self._split("train", slice(0, -HELD_OUT), DigitAugmentation() if self.augment else None)

    @cached_property
    def validation(self) -> Arrays:
        """The last of the training digits, which are in no order of kind or writer that matters."""
        return self._split("train", slice(-HELD_OUT, None))

    @cached_property
    def test(self) -> Arrays:
        return self._split("t10k", slice(None))

    def _split(self, part: str, rows: slice, augment: DigitAugmentation | None = None) -> Arrays:
        folder = data_folder() / "mnist" if self.data is None else Path(self.data)
        images = read_idx(_find(folder, f"{part}-images-idx3-ubyte"), dimensions=3)
        file = _find(folder, f"{part}-labels-idx1-ubyte")
        labels = read_idx(file, dimensions=1)
        if len(images) != len(labels):
            raise BadData(f"{file} has {len(labels):,} labels for {len(images):,} images")
        if images.shape[1:] != (28, 28) or len(images) <= HELD_OUT:
            raise BadData(f"{folder} does not hold MNIST: its images are {list(images.shape)}")
        if labels.max() > 9:
            raise BadData(f"{file} has a label {labels.max()}: a digit is 0…9")
        return Arrays(images[rows], labels[rows], encode=self.front_end, augment=augment)


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """An idx file of bytes, gzipped or not."""
    content = path.read_bytes()
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
        except (EOFError, OSError, zlib.error):
            raise BadData(f"{path} is cut short or damaged: it does not unpack") from None
    head = 4 + 4 * dimensions
    if content[:4] != bytes([0, 0, 8, dimensions]) or len(content) < head:
        raise BadData(
            f"{path} is not an idx file of bytes with {dimensions} dimensions: it begins {content[:4].hex()!r}"
        )
    shape = [int.from_bytes(content[k : k + 4], "big") for k in range(4, head, 4)]
    if len(content) - head != math.prod(shape):
        what = "cut short" if len(content) - head < math.prod(shape) else "too long"
        raise BadData(f"{path} is {what}: {math.prod(shape):,} bytes announced, {len(content) - head:,} there")
    return np.frombuffer(content, np.uint8, offset=head).reshape(shape).copy()


def _find(folder: Path, name: str) -> Path:
    # Some copies have a dot in place of the last hyphen.
    for path in (folder / each for stem in (name, name.replace("-idx", ".idx")) for each in (stem, f"{stem}.gz")):
        if path.is_file():
            return path
    raise FileNotFoundError(
        f"there is no {name} or {name}.gz in {folder}: get it with rankcode data mnist --to {folder}, "
        f"or name another place with --data"
    )
