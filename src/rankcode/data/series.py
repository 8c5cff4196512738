"""Labelled time series in memory, and the checks that every row passes, whatever file it comes from."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from rankcode.data.sources import BadData

Layout = Literal["auto", "steps-first", "channels-first"]
LARGEST = np.finfo(np.float32).max


@dataclass(frozen=True)
class Series:
    """The rows of one split, one after the other without padding."""

    values: np.ndarray  # [steps of all rows, channels], float32 or float64; NaN: missing
    lengths: np.ndarray  # [rows], steps
    labels: list[str]  # the user's own names of the classes
    places: list[int]  # the number of each row in its file, from 1 on

    def rows(self) -> list[np.ndarray]:
        """Each row [steps, channels]."""
        return np.split(self.values, self.lengths.cumsum()[:-1])


class Options(NamedTuple):
    """How files are read."""

    left_out: list[str] | None = None  # a bad row is appended here and left out; None: it raises BadData
    labelled: bool = True  # rows without labels are an error
    layout: Layout = "auto"  # of an array with three dimensions
    channels: int | None = None  # that a network reads, which tells the layout


def collect(
    path: Path,
    rows: Iterable[tuple[str, Any]],
    parse: Callable[[Any], tuple[np.ndarray, str]],
    left_out: list[str] | None,
    channels: int | None = None,
    classes: Collection[str] = (),
    padded: bool = True,
    whole: np.ndarray | None = None,
) -> Series:
    """Every good row. `rows` are (where, content), and `parse` turns a content into values [steps, channels] and label.

    `padded`: steps missing at the end of a row mean that the row is shorter. `whole` [rows, steps, channels] holds the
    rows already: it is not copied if all of it is good.
    """
    values, labels, places, message = [], [], [], ""
    for place, (where, content) in enumerate(rows, start=1):
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
                raise BadData(f"{message}; skip_bad=True leaves it out") from None
            left_out.append(message)
        else:
            values.append(row)
            labels.append(label)
            places.append(place)
    if not values:
        raise BadData(f"{message} (and no other row is good)" if message else f"{path}: it has no rows")
    lengths = np.array([len(row) for row in values])
    if whole is not None and lengths.sum() == whole.shape[0] * whole.shape[1]:
        return Series(as_floats(whole).reshape(-1, whole.shape[2]), lengths, labels, places)
    return Series(np.concatenate(values), lengths, labels, places)


def _checked(row: np.ndarray, padded: bool) -> np.ndarray:
    if np.isfinite(row.sum()) and row.size and (row.dtype == np.float32 or np.abs(row).max() <= LARGEST):
        return row  # every value is finite; a sum is much cheaper than a look at each
    there = np.flatnonzero(~np.isnan(row).all(axis=1))
    if len(there) == 0:
        raise BadData("all of its values are missing")
    if (np.abs(row) > LARGEST).any():
        raise BadData("it has a value that is infinite, or too large for 32 bits")
    return row[: there[-1] + 1] if padded else row


def as_floats(values: np.ndarray) -> np.ndarray:
    """In float32 if that holds every value of the type, otherwise in float64."""
    return values.astype(np.float32 if np.can_cast(values.dtype, np.float32) else np.float64, copy=False)


@lru_cache
def label_name(text: str) -> str:
    """The label without blanks around it, and '3' for '3.0'."""
    text = text.strip()
    whole = re.fullmatch(r"[+-]?\d+\.\d*(e[+-]?\d+)?", text, re.IGNORECASE) and float(text).is_integer()
    return str(int(float(text))) if whole else text


def short(text: str) -> str:
    return text if len(text) <= 40 else text[:40] + "…"
