"""Series in arrays: .npz files, and arrays given from Python. Memory is the array's own and a few small blocks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal
from zipfile import ZipFile

import numpy as np

from rankcode.data.arrays import as_array
from rankcode.data.regular_files import open_regular
from rankcode.data.series import BadRows, Series, as_floats, collect, is_missing, label_name, scan
from rankcode.data.sources import BadData

SPLITS = {"train": "train", "validation": "validation", "val": "validation", "test": "test"}  # as they may be written
Layout = Literal["auto", "steps-first", "channels-first"]
SUSPICIOUS = 5  # times as many values as steps: more likely [rows, channels, steps] than [rows, steps, channels]
BLOCK = 1 << 20  # values checked at once
ARRAYS = "arrays"  # stands for the path of data that was given as arrays


def read_npz(
    path: Path,
    left_out: list[str] | None,
    labelled: bool = True,
    layout: Layout = "auto",
    channels: int | None = None,
) -> dict[str, Series]:
    """The splits of an .npz file with X, y and perhaps lengths, X_test, …

    `layout` is that of X with three dimensions. `channels`: what a network reads, which tells the layout.
    """
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
    for arrays in splits.values():
        if not labelled and "X" in arrays:
            arrays.setdefault("y", np.zeros(len(np.atleast_1d(arrays["X"])), int))
    return {
        split: _from_arrays(path, split, splits[split], left_out, layout, channels)
        for split in SPLITS
        if split in splits
    }


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
    left_out: list[str] | None = None,
    layout: Layout = "auto",
) -> Series:
    """Arrays as in an .npz file; the rows of X may also be a list, each of its own length."""
    labels = as_array(y)
    arrays = {"y": labels.astype(str) if labels.dtype == object else labels}
    if lengths is not None:
        arrays["lengths"] = as_array(lengths)
    if isinstance(X, list | tuple):
        return _from_rows([as_array(row) for row in X], split, arrays, left_out, layout)
    return _from_arrays(Path(ARRAYS), split, {"X": as_array(X), **arrays}, left_out, layout, None)


def _from_rows(
    rows: list[np.ndarray], split: str, arrays: dict[str, np.ndarray], left_out: list[str] | None, layout: Layout
) -> Series:
    """From a list of rows [steps] or [steps, channels], each of its own length."""
    if not rows or any(row.ndim not in (1, 2) or row.dtype.kind not in "biuf" for row in rows):
        raise BadData(f"the rows of X of the {split} split must be numbers [steps] or [steps, channels]")
    _check_columns(Path(ARRAYS), split, arrays, len(rows))
    rows = [row[:, None] if row.ndim == 1 else row for row in rows]
    if layout == "channels-first" or all(len(row) * SUSPICIOUS <= row.shape[1] for row in rows):
        rows = [_steps_first(row[None], layout, None, f"a row of X of the {split} split")[0] for row in rows]
    if len({row.shape[1] for row in rows}) > 1:
        raise BadData(f"the rows of X of the {split} split differ in channels")
    names, lengths = _label_names(arrays["y"]), arrays.get("lengths")

    def parse(row: int) -> tuple[np.ndarray, str]:
        name, reason = names[row]
        length = len(rows[row]) if lengths is None else lengths[row]
        if reason := reason or _wrong_length(length, len(rows[row])):
            raise BadData(reason)
        return rows[row][:length], name

    numbered = ((f"X[{row}] of {split}", row) for row in range(len(rows)))
    return collect(Path(ARRAYS), numbered, parse, left_out, padded=False)


def _steps_first(inputs: np.ndarray, layout: Layout, channels: int | None, what: str) -> np.ndarray:
    """[rows, steps, channels], whichever of the two layouts it has."""
    steps, values = inputs.shape[1:]
    if channels is not None:
        return inputs.transpose(0, 2, 1) if values != channels == steps else inputs
    if layout == "auto" and steps * SUSPICIOUS <= values:
        raise BadData(
            f"{what} has {steps} step{'s' * (steps > 1)} of {values} values if it is [rows, steps, channels]: if it is "
            f'[rows, channels, steps], give layout="channels-first", otherwise layout="steps-first"'
        )
    return inputs.transpose(0, 2, 1) if layout == "channels-first" else inputs


def _from_arrays(
    path: Path,
    split: str,
    arrays: dict[str, np.ndarray],
    left_out: list[str] | None,
    layout: Layout,
    channels: int | None,
) -> Series:
    inputs, labels, lengths = (arrays.get(name) for name in ("X", "y", "lengths"))
    if inputs is None or labels is None:
        raise BadData(f"{path}: the {split} split must have X and y, and has only {' and '.join(arrays)}")
    if inputs.ndim not in (2, 3) or inputs.dtype.kind not in "biuf":
        form, found = "numbers [rows, steps] or [rows, steps, channels]", f"{inputs.dtype} {list(inputs.shape)}"
        raise BadData(f"{path}: X of the {split} split must be {form}, not {found}")
    _check_columns(path, split, arrays, len(inputs))
    if inputs.ndim == 2:
        inputs = inputs[:, :, None]
    else:
        inputs = _steps_first(inputs, layout, channels, f"{path}: X of the {split} split")
    return _checked(path, split, inputs, _label_names(labels), lengths, left_out)


def _checked(
    path: Path,
    split: str,
    inputs: np.ndarray,
    names: list[tuple[str, str]],
    lengths: np.ndarray | None,
    left_out: list[str] | None,
) -> Series:
    """The good rows of X [rows, steps, channels], one after the other."""
    rows, steps, channels = inputs.shape
    bad, ends, kept = BadRows(path, left_out), np.zeros(rows, np.int64), np.ones(rows, bool)
    for part in _parts(inputs):
        given = np.full(part.stop - part.start, steps) if lengths is None else lengths[part]
        ends[part], reasons = scan(as_floats(inputs[part]), given, padded=lengths is None)
        for row, length, reason in zip(range(part.start, part.stop), given.tolist(), reasons, strict=True):
            if reason := names[row][1] or (lengths is not None and _wrong_length(length, steps)) or reason:
                bad.add(f"X[{row}] of {split}", reason)
                kept[row] = False
    if not kept.any():
        raise bad.none_left()
    if kept.all() and (ends == steps).all():
        values = as_floats(inputs).reshape(rows * steps, channels)
    else:
        ends *= kept
        values, at = np.empty((ends.sum(), channels), as_floats(inputs[:0]).dtype), 0
        for part in _parts(inputs):
            inside = inputs[part][np.arange(steps) < ends[part, None]]
            values[at : at + len(inside)] = inside
            at += len(inside)
    chosen = np.flatnonzero(kept).tolist()
    return Series(values, ends[kept], [names[row][0] for row in chosen], [row + 1 for row in chosen])


def _check_columns(path: Path, split: str, arrays: dict[str, np.ndarray], rows: int) -> None:
    """Raise unless y, and lengths if given, have one entry for each row."""
    for name, kinds, form in (("y", "biufUS", "integers or strings"), ("lengths", "iu", "integers")):
        if name in arrays and not (arrays[name].shape == (rows,) and arrays[name].dtype.kind in kinds):
            found = f"{arrays[name].dtype} {list(arrays[name].shape)}"
            raise BadData(f"{path}: {name} of the {split} split must be {form} [{rows}], not {found}")


def _wrong_length(length: int, steps: int) -> str:
    return "" if 1 <= length <= steps else f"its length {length} is not within 1…{steps}"


def _parts(inputs: np.ndarray) -> Iterator[slice]:
    """The rows in parts of about BLOCK values."""
    at_once = max(1, BLOCK // max(1, inputs.shape[1] * inputs.shape[2]))
    return (slice(first, min(first + at_once, len(inputs))) for first in range(0, len(inputs), at_once))


def _label_names(labels: np.ndarray) -> list[tuple[str, str]]:
    """The name of the class of each row, and what is wrong with it, or ''."""
    different, which = np.unique(labels, return_inverse=True)
    found = []
    for label in different.tolist():
        if isinstance(label, float) and not (np.isnan(label) or label.is_integer()):
            found.append(("", f"its label {label} is not a whole number"))
            continue
        name = label_name(label.decode(errors="replace") if isinstance(label, bytes) else str(label))
        found.append((name, "its label is missing" if is_missing(name) else ""))
    return [found[k] for k in which.tolist()]
