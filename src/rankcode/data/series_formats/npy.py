"""NumPy's .npy format: NAME.npy holds X, and NAME_labels.npy beside it y; or X.npy and y.npy, X_train.npy and
y_train.npy, and so on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rankcode.data.open_file import open_file
from rankcode.data.series import BLOCK_BYTES, Options, Series, series_of
from rankcode.data.series_formats.npz import check_header
from rankcode.data.sources import BadData


def read_npy(path: Path, options: Options) -> dict[str, Series]:
    """An array [rows, steps] or [rows, steps, channels]."""
    values: Any = _read(path, "X")
    labels = _read(label_file(path), "y") if options.labelled else np.zeros(len(np.atleast_1d(values)), int)
    return {"train": series_of(values, labels, options=options, path=path)}


def label_file(path: Path) -> Path:
    """The file of the labels of an array."""
    files = [path.with_name(f"{path.stem}_labels{path.suffix}")]
    if path.stem == "X" or path.stem.startswith("X_"):
        files.append(path.with_name(f"y{path.name[1:]}"))
    found = next((file for file in files if file.exists()), None)
    if found is None:
        raise BadData(f"{path}: there is no file of its labels, {' or '.join(file.name for file in files)}")
    return found


def npy_blocks(path: Path, options: Options) -> Iterator[Callable[[], Series]]:
    """The same without labels, in blocks of rows."""
    array = _read(path, "X") if path.stat().st_size > BLOCK_BYTES else None
    if array is None or array.ndim < 2:
        yield lambda: read_npy(path, options)["train"]
        return
    count, rows = len(array), max(1, BLOCK_BYTES // array[0].nbytes)
    del array

    def block(first: int) -> Series:
        # Mapped again for each block: pages that were read would otherwise stay in the memory of the process.
        values = np.array(np.load(path, mmap_mode="r")[first : first + rows])
        return series_of(values, np.zeros(len(values), int), options=options, path=path, first=first)

    yield from (partial(block, first) for first in range(0, count, rows))


def is_labels(path: Path) -> bool:
    """Whether a file holds the labels of another one, by its name."""
    return path.suffix.lower() == ".npy" and (path.stem.endswith("_labels") or path.stem.split("_")[0] == "y")


def _read(path: Path, what: str) -> np.ndarray:
    """The array, memory-mapped if it is large: processes share it, and it may be larger than memory."""
    try:
        with open_file(path) as file:
            size = path.stat().st_size
            check_header(file, size, path, what)
    except (BadData, OSError, MemoryError):
        raise
    except Exception:  # damage shows as any of several exceptions
        raise BadData(f"{path}: not an .npy file, or a damaged one") from None
    # Read-only: of a mapping that may be written to, Linux allows no more than there is memory.
    return np.load(path, mmap_mode="r" if size > BLOCK_BYTES else None)
