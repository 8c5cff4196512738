"""Temporal MNIST (paper, sections 3.3 and B.3): every pixel of a digit spikes once within ten steps."""

from __future__ import annotations

import gzip
import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from rankcode.data.downloads import data_folder
from rankcode.data.open_file import open_file
from rankcode.data.sources import Arrays, BadData
from rankcode.tasks.digit_augmentation import DigitAugmentation
from rankcode.tasks.temporal_images import TemporalImages

HELD_OUT = 5_000  # training digits used for validation; the paper uses none
BLOCK = 1 << 20  # bytes unpacked at once


@dataclass(frozen=True)
class TemporalMNIST(TemporalImages):
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
    side: ClassVar[int] = 28
    levels: ClassVar[int] = 255

    def _split(self, split: str, augment: bool = False) -> Arrays:
        """The last training digits validate; their order depends neither on the digit nor on the writer."""
        folder = data_folder() / "mnist" if self.data is None else Path(self.data)
        part = "t10k" if split == "test" else "train"
        images = read_idx(_find(folder, f"{part}-images-idx3-ubyte"), (28, 28))
        file = _find(folder, f"{part}-labels-idx1-ubyte")
        labels = read_idx(file)
        if len(images) != len(labels):
            raise BadData(f"{file} has {len(labels):,} labels for {len(images):,} images")
        if len(images) <= HELD_OUT:
            raise BadData(f"{folder} does not hold MNIST: its images are {list(images.shape)}")
        if labels.max() > 9:
            raise BadData(f"{file} has a label {labels.max()}: a digit is 0…9")
        rows = {"train": slice(-HELD_OUT), "validation": slice(-HELD_OUT, None), "test": slice(None)}[split]
        return Arrays(images[rows], labels[rows], None, self.front_end, DigitAugmentation() if augment else None)


def read_idx(path: Path, shape: tuple[int, ...] = ()) -> np.ndarray:
    """An idx file of bytes [items, *shape], gzipped or not. No more is unpacked than the header announces."""
    try:
        with open_file(path) as file:
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
