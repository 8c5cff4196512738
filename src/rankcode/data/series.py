"""Labelled time series in memory, from rows of a file or from arrays, and the checks that every row passes."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from rankcode.data.arrays import as_array
from rankcode.data.sources import BadData

Layout = Literal["auto", "steps-first", "channels-first"]
ARRAYS = "arrays"  # in place of a path, for data that was given as arrays
BLOCK_BYTES = 1 << 24  # of a large file that are read at once
LARGEST = np.finfo(np.float32).max
SKIP_HINT = "; skip_bad=True leaves it out"
SUSPICIOUS = 5  # times as many values as steps: more likely [rows, channels, steps] than [rows, steps, channels]


class NoGoodRow(BadData):
    """Every row is bad."""


@dataclass(frozen=True)
class Columns:
    """The names of the columns that a table was read from; `str` gives them in one line."""

    label: str | None  # None: it has no labels
    guessed: bool  # the label column was not named by the user
    id: str | None = None  # of long form; None: wide form
    time: str | None = None  # of long form
    values: tuple[str, ...] = ()  # the channels of long form

    def __str__(self) -> str:
        form = "wide form, a row for each series"
        if self.time is not None:
            values = ", ".join(map(repr, self.values[:8])) + ", …" * (len(self.values) > 8)
            form = f"long form with id {self.id!r}, time {self.time!r} and values {values}"
        label = "without labels" if self.label is None else f"label column {short(repr(self.label))}"
        return f"{form}; {label}{' (guessed)' * (self.guessed and self.label is not None)}"


@dataclass(frozen=True)
class Series:
    """The rows of one split, one after the other without padding."""

    values: np.ndarray  # [steps of all rows, channels], float32 or float64; NaN: missing
    lengths: np.ndarray  # [rows], steps
    labels: list[str]  # the user's own names of the classes
    places: list[str]  # where each row is in its file: "row 3", or "id a7"
    columns: Columns | None = None  # of the table that the rows were read from

    def rows(self) -> list[np.ndarray]:
        """Each row [steps, channels]."""
        return np.split(self.values, self.lengths.cumsum()[:-1])


class Options(NamedTuple):
    """How files are read."""

    left_out: list[str] | None = None  # a bad row is appended here and left out; None: it raises BadData
    labelled: bool = True  # rows without labels are an error
    layout: Layout = "auto"  # of an array with three dimensions
    channels: int | None = None  # number that a network reads, which determines the layout
    label: str | None = None  # column of a table that holds the labels; may be absent from data for a trained network
    channel_names: tuple[str, ...] = ()  # columns of a table in long form that a network reads


def collect(
    path: Path,
    rows: Iterable[tuple[str, Any]],
    parse: Callable[[Any], tuple[np.ndarray, str]],
    left_out: list[str] | None,
    channels: int | None = None,
    classes: Collection[str] = (),
    padded: bool = True,
    whole: np.ndarray | None = None,
    names: Sequence[str] | None = None,
) -> Series:
    """Every good row. `rows` are (where, content), and `parse` turns a content into values [steps, channels] and label.

    `padded`: steps missing at the end of a row mean that the row is shorter. `whole` [rows, steps, channels] holds the
    rows already: it is not copied if all of it is good. `names` are those of the rows, "row 1" and so on by default.
    """
    values, labels, places, message = [], [], [], ""
    for place, (where, content) in enumerate(rows):
        try:
            row, label = parse(content)
            row, label = _checked(as_floats(row), padded), label_name(label)
            if label.lower() in ("", "?", "nan"):
                raise BadData("its label is missing")
            if classes and label not in classes:
                raise BadData(f"its label {short(repr(label))} is not among those listed")
            if row.shape[1] != (channels := channels or row.shape[1]):
                raise BadData(f"it has {row.shape[1]} channels, not {channels}")
        except BadData as reason:
            message = f"{path}, {where}: {reason}"
            if left_out is None:
                raise BadData(message + SKIP_HINT) from None
            left_out.append(message)
        else:
            values.append(row)
            labels.append(label)
            places.append(f"row {place + 1}" if names is None else names[place])
    if not values:
        raise NoGoodRow(f"{message} (and no other row is good)" if message else f"{path}: it has no rows")
    lengths = np.array([len(row) for row in values])
    if whole is not None and lengths.sum() == whole.shape[0] * whole.shape[1]:
        return Series(as_floats(whole).reshape(-1, whole.shape[2]), lengths, labels, places)
    return Series(np.concatenate(values), lengths, labels, places)


def good_blocks(blocks: Iterable[Callable[[], Series]], left_out: list[str] | None) -> Iterator[Series]:
    """The rows of a file in blocks, each read when needed. A block without a good row is skipped if bad rows are."""
    found, problem = False, None
    for read in blocks:
        try:
            block = read()
        except NoGoodRow as error:
            if left_out is None:
                raise
            problem = error
        else:
            found = True
            yield block
            del block  # before the next one is read
    if not found and problem is not None:
        raise problem


def series_of(
    X: Any,  # noqa: N803
    y: Any,
    lengths: Any = None,
    split: str = "train",
    options: Options = Options(),  # noqa: B008 (it cannot be changed)
    path: Path = Path(ARRAYS),
    first: int = 0,
) -> Series:
    """Series from arrays: X [rows, steps] or [rows, steps, channels], or a list of rows of different lengths.

    `first`: the number of the first of these rows in its file.
    """
    listed = isinstance(X, list | tuple)
    try:
        rows: Any = [as_array(row) for row in X] if listed else np.atleast_1d(as_array(X))
        labels, lengths = as_array(y), None if lengths is None else as_array(lengths)
    except ValueError as error:
        raise BadData(f"{path}, X and y of the {split} split: {error}") from None
    labels, size = labels.astype(str) if labels.dtype == object else labels, len(rows)

    def check(name: str, array: np.ndarray, kinds: str, shape_fits: bool, form: str) -> None:
        if not (shape_fits and array.dtype.kind in kinds):
            found = f"{array.dtype} {list(array.shape)}"
            raise BadData(f"{path}: {name} of the {split} split must be {form}, not {found}")

    if not listed:
        check("X", rows, "biuf", rows.ndim in (2, 3), "numbers [rows, steps] or [rows, steps, channels]")
    for number, row in enumerate(rows if listed else ()):
        check(f"X[{number}]", row, "biuf", row.ndim in (1, 2), "numbers [steps] or [steps, channels]")
    check("y", labels, "biufUS", labels.shape == (size,), f"integers or strings [{size}]")
    if lengths is not None:
        check("lengths", lengths, "iu", lengths.shape == (size,), f"integers [{size}]")
    rows = _steps_first(rows, options, f"{path}: X of the {split} split")

    def parse(row: int) -> tuple[np.ndarray, str]:
        values, label = rows[row], labels[row].item()
        if isinstance(label, float) and not (np.isnan(label) or label.is_integer()):
            raise BadData(f"its label {label} is not a whole number")
        if lengths is not None:
            if not 1 <= lengths[row] <= len(values):
                raise BadData(f"its length {lengths[row]} is not within 1…{len(values)}")
            values = values[: lengths[row]]
        return values, label.decode(errors="replace") if isinstance(label, bytes) else str(label)

    numbered = ((f"X[{first + row}] of {split}", row) for row in range(size))
    names = [f"row {first + row + 1}" for row in range(size)]
    padded, whole = lengths is None and not listed, None if listed else rows
    return collect(path, numbered, parse, options.left_out, padded=padded, whole=whole, names=names)


def _steps_first(rows: Any, options: Options, what: str) -> Any:
    """An array [rows, steps, channels], or a list of rows [steps, channels], in whichever layout the rows are."""
    listed = isinstance(rows, list)
    shapes = {row.shape for row in rows if row.ndim == 2} if listed else {rows.shape[1:]} if rows.ndim == 3 else set()
    turned = options.layout == "channels-first"
    if options.channels is not None:
        turned = all(steps == options.channels != values for steps, values in shapes)
    elif options.layout == "auto" and shapes and all(steps * SUSPICIOUS <= values for steps, values in shapes):
        steps, values = shapes.pop()
        raise BadData(
            f"{what} has {steps} step{'s' * (steps > 1)} of {values} values if it is [rows, steps, channels]: if it is "
            f'[rows, channels, steps], give layout="channels-first", otherwise layout="steps-first"'
        )
    if listed:
        return [row[:, None] if row.ndim == 1 else row.T if turned else row for row in rows]
    return rows[:, :, None] if rows.ndim == 2 else rows.transpose(0, 2, 1) if turned else rows


def _checked(row: np.ndarray, padded: bool) -> np.ndarray:
    if np.isfinite(row.sum()) and row.size and (row.dtype == np.float32 or np.abs(row).max() <= LARGEST):
        return row  # every value is finite; a sum is much cheaper than checking each
    there = np.flatnonzero(~np.isnan(row).all(axis=1))
    if len(there) == 0:
        raise BadData("all of its values are missing")
    if (np.abs(row) > LARGEST).any():
        raise BadData("it has a value that is infinite, or too large for 32 bits")
    return row[: there[-1] + 1] if padded else row


def as_floats(values: np.ndarray) -> np.ndarray:
    """In float32 if it can represent every value of the type, otherwise in float64."""
    return values.astype(np.float32 if np.can_cast(values.dtype, np.float32) else np.float64, copy=False)


@lru_cache
def label_name(text: str) -> str:
    """The label without surrounding blanks, and '3' for '3.0'."""
    text = text.strip()
    whole = re.fullmatch(r"[+-]?\d+\.\d*(e[+-]?\d+)?", text, re.IGNORECASE) and float(text).is_integer()
    return str(int(float(text))) if whole else text


def short(text: str) -> str:
    return text if len(text) <= 40 else text[:40] + "…"
