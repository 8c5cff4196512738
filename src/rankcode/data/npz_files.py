"""Series in arrays: .npz files, and arrays given from Python. An array is in memory once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np

from rankcode.data.arrays import as_array
from rankcode.data.regular_files import open_regular
from rankcode.data.series import Options, Series, collect
from rankcode.data.sources import BadData

SPLITS = {"train": "train", "validation": "validation", "val": "validation", "test": "test"}  # as they may be written
SUSPICIOUS = 5  # times as many values as steps: more likely [rows, channels, steps] than [rows, steps, channels]
ARRAYS = "arrays"  # stands for the path of data that was given as arrays


def read_npz(path: Path, options: Options) -> dict[str, Series]:
    """The splits of an .npz file with X, y and perhaps lengths, X_test, …"""
    splits: dict[str, dict[str, np.ndarray]] = {}
    names: list[str] = []
    try:
        with open_regular(path) as file, ZipFile(file) as archive:
            for entry in archive.infolist():
                member = entry.filename.removesuffix(".npy")
                names.append(member)
                if found := re.fullmatch(r"(X|y|lengths)(?:_(\w+))?", member):
                    if (split := SPLITS.get((found[2] or "train").lower())) is None:
                        raise BadData(f"{path}: {member} is of no split: they are called {', '.join(SPLITS)}")
                    arrays = splits.setdefault(split, {})
                    if found[1] in arrays:
                        raise BadData(f"{path}: it holds {member} and another {found[1]} of the same split")
                    with archive.open(entry) as content:
                        _check_header(content, entry.file_size, path, member)
                    with archive.open(entry) as content:
                        arrays[found[1]] = np.lib.format.read_array(content, allow_pickle=False)
    except (BadData, OSError, MemoryError):
        raise
    except Exception:  # damage shows as any of a dozen exceptions, from numpy, zipfile and zlib
        raise BadData(f"{path}: not an .npz file, or a damaged one") from None
    if not splits:
        raise BadData(f"{path}: it must hold arrays X and y, and holds {', '.join(names) or 'nothing'}")
    for split, arrays in splits.items():
        if not options.labelled and "X" in arrays:
            arrays.setdefault("y", np.zeros(len(np.atleast_1d(arrays["X"])), int))
        if not {"X", "y"} <= arrays.keys():
            raise BadData(f"{path}: the {split} split must have X and y, and has only {' and '.join(arrays)}")
    order = [split for split in SPLITS if split in splits]
    return {split: series_of(**splits[split], split=split, options=options, path=path) for split in order}


def _check_header(content: Any, size: int, path: Path, member: str) -> None:
    """Raise unless an array is as large as its header announces; no memory is allocated for it before."""
    version = np.lib.format.read_magic(content)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(content)
    if dtype.hasobject:
        advice = "save y.astype(str)" if member[0] == "y" else "pad its rows and give their `lengths`"
        raise BadData(f"{path}: {member} is an array of objects: {advice}")
    announced = dtype.itemsize * np.prod([int(length) for length in shape], dtype=object)
    if announced != size - content.tell():
        raise BadData(f"{path}: {member} is damaged: {announced:,} bytes announced, {size - content.tell():,} there")


def series_of(
    X: Any,  # noqa: N803
    y: Any,
    lengths: Any = None,
    split: str = "train",
    options: Options = Options(),  # noqa: B008 (it cannot be changed)
    path: Path = Path(ARRAYS),
) -> Series:
    """Series from arrays: X [rows, steps] or [rows, steps, channels], or a list of rows of different lengths."""
    listed = isinstance(X, list | tuple)
    try:
        inputs: Any = [as_array(row) for row in X] if listed else as_array(X)
        labels, lengths = as_array(y), None if lengths is None else as_array(lengths)
    except ValueError as error:
        raise BadData(f"{path}, X and y of the {split} split: {error}") from None
    labels = labels.astype(str) if labels.dtype == object else labels
    if listed and (not inputs or any(row.ndim not in (1, 2) or row.dtype.kind not in "biuf" for row in inputs)):
        raise BadData(f"the rows of X of the {split} split must be numbers [steps] or [steps, channels]")
    size = len(inputs) if listed else len(np.atleast_1d(inputs))
    for name, array, kinds, right, form in (
        ("X", inputs, "biuf", listed or inputs.ndim in (2, 3), "numbers [rows, steps] or [rows, steps, channels]"),
        ("y", labels, "biufUS", labels.shape == (size,), f"integers or strings [{size}]"),
        ("lengths", lengths, "iu", lengths is None or lengths.shape == (size,), f"integers [{size}]"),
    ):
        if isinstance(array, np.ndarray) and not (right and array.dtype.kind in kinds):
            found = f"{array.dtype} {list(array.shape)}"
            raise BadData(f"{path}: {name} of the {split} split must be {form}, not {found}")
    inputs = _steps_first(inputs, listed, options, f"{path}: X of the {split} split")
    if listed and len({row.shape[1] for row in inputs}) > 1:
        raise BadData(f"the rows of X of the {split} split differ in channels")

    def parse(row: int) -> tuple[np.ndarray, str]:
        values, label = inputs[row], labels[row].item()
        if isinstance(label, float) and not (np.isnan(label) or label.is_integer()):
            raise BadData(f"its label {label} is not a whole number")
        if lengths is not None:
            if not 1 <= lengths[row] <= len(values):
                raise BadData(f"its length {lengths[row]} is not within 1…{len(values)}")
            values = values[: lengths[row]]
        return values, label.decode(errors="replace") if isinstance(label, bytes) else str(label)

    numbered = ((f"X[{row}] of {split}", row) for row in range(size))
    padded = lengths is None and not listed
    return collect(path, numbered, parse, options.left_out, padded=padded, whole=None if listed else inputs)


def _steps_first(inputs: Any, listed: bool, options: Options, what: str) -> Any:
    """Each row as [steps, channels], in whichever layout the rows are."""
    if not listed and inputs.ndim == 2:
        return inputs[:, :, None]
    if listed:
        inputs = [row[:, None] if row.ndim == 1 else row for row in inputs]
    shapes = {row.shape for row in inputs} if listed else {inputs.shape[1:]}
    turned = options.layout == "channels-first"
    if options.channels is not None:
        turned = all(steps == options.channels != values for steps, values in shapes)
    elif options.layout == "auto" and all(steps * SUSPICIOUS <= values for steps, values in shapes):
        steps, values = shapes.pop()
        raise BadData(
            f"{what} has {steps} step{'s' * (steps > 1)} of {values} values if it is [rows, steps, channels]: if it is "
            f'[rows, channels, steps], give layout="channels-first", otherwise layout="steps-first"'
        )
    if not turned:
        return inputs
    return [row.T for row in inputs] if listed else inputs.transpose(0, 2, 1)
