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
MAX_BYTES = 10**8  # of a file: twice the size of MNIST's largest, which has 60,000 images


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
    """Augment the training digits: rotate, stretch, shear and shift them a little, differently each time."""

    name: ClassVar[str] = "temporal-mnist"
    side: ClassVar[int] = 28
    levels: ClassVar[int] = 255

    def _split(self, split: str, augment: bool = False) -> Arrays:
        """The last training digits are for validation; their order depends on neither digit nor writer."""
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
            content: Any = gzip.GzipFile(fileobj=file) if packed else file
            dimensions = 1 + len(shape)
            head = content.read(4 + 4 * dimensions)
            if head[:4] != bytes([0, 0, 8, dimensions]) or len(head) < 4 + 4 * dimensions:
                found = f"it begins {head[:4].hex()!r}"
                raise BadData(f"{path} is not an idx file of bytes with {dimensions} dimensions: {found}")
            items, *sizes = np.frombuffer(head, ">u4", offset=4).tolist()
            announced = items * math.prod(shape)
            if tuple(sizes) != shape or announced > MAX_BYTES:
                raise BadData(f"{path} does not hold MNIST: its images are {[items, *sizes]}")
            values = content.read(announced + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise BadData(f"{path} is cut short or damaged: it does not unpack") from None
    if len(values) != announced:
        what = "cut short" if len(values) < announced else "too long"
        raise BadData(f"{path} is {what}: it announces {announced:,} bytes")
    return np.frombuffer(values, np.uint8).reshape(items, *shape)


def _find(folder: Path, name: str) -> Path:
    # Some copies have a dot instead of the last hyphen.
    for path in (folder / each for stem in (name, name.replace("-idx", ".idx")) for each in (stem, f"{stem}.gz")):
        if path.is_file():
            return path
    raise FileNotFoundError(
        f'there is no {name} or {name}.gz in {folder}: get it with rc.data.download("mnist", "{folder}"), '
        f"or name its folder with data=…"
    )
