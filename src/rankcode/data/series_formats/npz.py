"""NumPy's .npz format: arrays X, y and perhaps lengths, X_test, y_test, … An array is in memory once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import IO
from zipfile import ZipFile

import numpy as np

from rankcode.data.open_file import open_file
from rankcode.data.series import Options, Series, series_of
from rankcode.data.sources import SPLIT_NAMES, BadData


def read_npz(path: Path, options: Options) -> dict[str, Series]:
    """The splits of a file. Its arrays are read one by one, each after its header is checked."""
    splits: dict[str, dict[str, np.ndarray]] = {}
    names: list[str] = []
    try:
        with open_file(path) as file, ZipFile(file) as archive:
            for entry in archive.infolist():
                member = entry.filename.removesuffix(".npy")
                names.append(member)
                if found := re.fullmatch(r"(X|y|lengths)(?:_(\w+))?", member):
                    if (split := SPLIT_NAMES.get((found[2] or "train").lower())) is None:
                        raise BadData(f"{path}: {member} belongs to no split: these are {', '.join(SPLIT_NAMES)}")
                    arrays = splits.setdefault(split, {})
                    if found[1] in arrays:
                        raise BadData(f"{path}: it holds {member} and another {found[1]} of the same split")
                    with archive.open(entry) as content:
                        check_header(content, entry.file_size, path, member)
                    with archive.open(entry) as content:
                        arrays[found[1]] = np.lib.format.read_array(content, allow_pickle=False)
    except (BadData, OSError, MemoryError):
        raise
    except Exception:  # damage shows as any of a dozen exceptions, from numpy, zipfile and zlib
        raise BadData(f"{path}: not an .npz file, or a damaged one") from None
    if not splits:
        raise BadData(f"{path}: it must hold arrays X and y, but holds {', '.join(names) or 'nothing'}")
    for split, arrays in splits.items():
        if not options.labelled and "X" in arrays:
            arrays.setdefault("y", np.zeros(len(np.atleast_1d(arrays["X"])), int))
        if not {"X", "y"} <= arrays.keys():
            raise BadData(f"{path}: the {split} split must have X and y, but has only {' and '.join(arrays)}")
    return {
        split: series_of(arrays["X"], arrays["y"], arrays.get("lengths"), split, options, path)
        for split, arrays in splits.items()
    }


def check_header(content: IO[bytes], size: int, path: Path, member: str) -> None:
    """Raise unless an array is as large as its header announces, before memory is allocated for it."""
    version = np.lib.format.read_magic(content)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(content)
    if dtype.hasobject:
        advice = "save y.astype(str)" if member[0] == "y" else "pad its rows and give their `lengths`"
        raise BadData(f"{path}: {member} is an array of objects: {advice}")
    announced = dtype.itemsize * np.prod([int(length) for length in shape], dtype=object)
    if announced != size - content.tell():
        raise BadData(f"{path}: {member} is damaged: {announced:,} bytes announced, {size - content.tell():,} there")
