"""Temporal MNIST (paper, sections 3.3 and B.3): every pixel of a digit spikes once within ten steps."""

from __future__ import annotations

import gzip
import math
import zlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from rankcode.data.downloads import data_folder
from rankcode.data.regular_files import open_regular
from rankcode.data.sources import Arrays, BadData
from rankcode.front_ends.latency_code import LatencyCode
from rankcode.tasks.digit_augmentation import DigitAugmentation

HELD_OUT = 5_000  # training digits used for validation; the paper uses none
BLOCK = 1 << 20  # bytes unpacked at once


@dataclass(frozen=True)
class TemporalMNIST:
    """Which digit is it? Every pixel spikes once within ten steps, the darkest first."""

    data: str | None = None
    """Folder with the four idx files, gzipped or not. Default: mnist in the folder that RANKCODE_DATA names."""
    steps: int = 10
    """Steps an image is spread over."""
    flat: bool = False
    """Make each step a vector of 784 numbers instead of a 1 × 28 × 28 image."""
    augment: bool = False
    """Augment the training digits: they are rotated, stretched, sheared and shifted a little, differently each time."""

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
        """The last training digits; their order depends neither on the digit nor on the writer."""
        return self._split("train", slice(-HELD_OUT, None))

    @cached_property
    def test(self) -> Arrays:
        return self._split("t10k", slice(None))

    def _split(self, part: str, rows: slice, augment: DigitAugmentation | None = None) -> Arrays:
        folder = data_folder() / "mnist" if self.data is None else Path(self.data)
        images = read_idx(_find(folder, f"{part}-images-idx3-ubyte"), (28, 28))
        file = _find(folder, f"{part}-labels-idx1-ubyte")
        labels = read_idx(file)
        if len(images) != len(labels):
            raise BadData(f"{file} has {len(labels):,} labels for {len(images):,} images")
        if len(images) <= HELD_OUT:
            raise BadData(f"{folder} does not hold MNIST: its images are {list(images.shape)}")
        if labels.max() > 9:
            raise BadData(f"{file} has a label {labels.max()}: a digit is 0…9")
        return Arrays(images[rows], labels[rows], encode=self.front_end, augment=augment)


def read_idx(path: Path, shape: tuple[int, ...] = ()) -> np.ndarray:
    """An idx file of bytes [items, *shape], gzipped or not. No more is unpacked than the header announces."""
    try:
        with open_regular(path) as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            return _unpacked(gzip.open(file) if packed else file, path, shape)
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise BadData(f"{path} is cut short or damaged: it does not unpack") from None


def _unpacked(file: Any, path: Path, shape: tuple[int, ...]) -> np.ndarray:
    dimensions = 1 + len(shape)
    head = file.read(4 + 4 * dimensions)
    if head[:4] != bytes([0, 0, 8, dimensions]) or len(head) < 4 + 4 * dimensions:
        raise BadData(f"{path} is not an idx file of bytes with {dimensions} dimensions: it begins {head[:4].hex()!r}")
    items, *found = np.frombuffer(head, ">u4", offset=4).tolist()
    if tuple(found) != shape:
        raise BadData(f"{path} does not hold MNIST: its images are {[items, *found]}")
    announced = items * math.prod(shape)
    content = bytearray()
    while len(content) <= announced and (block := file.read(min(BLOCK, announced + 1 - len(content)))):
        content += block
    if len(content) != announced:
        what = "cut short" if len(content) < announced else "too long"
        there = f"{len(content):,}" if len(content) < announced else "more"
        raise BadData(f"{path} is {what}: {announced:,} bytes announced, {there} there")
    return np.frombuffer(content, np.uint8).reshape(items, *shape)


def _find(folder: Path, name: str) -> Path:
    # Some copies have a dot instead of the last hyphen.
    for path in (folder / each for stem in (name, name.replace("-idx", ".idx")) for each in (stem, f"{stem}.gz")):
        if path.is_file():
            return path
    raise FileNotFoundError(
        f'there is no {name} or {name}.gz in {folder}: get it with rc.data.download("mnist", "{folder}"), '
        f"or name its folder with data=…"
    )
