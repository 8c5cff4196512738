"""Labelled time series in memory, and the checks that every row passes, whatever file it comes from."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rankcode.data.sources import BadData


@dataclass(frozen=True)
class Series:
    """The rows of one split, one after the other without padding."""

    values: np.ndarray  # [steps of all rows, channels], float32 or float64; NaN: missing
    lengths: np.ndarray  # [rows], steps
    labels: list[str]  # as the user calls the classes
    places: list[int]  # the number of each row in its file, from 1 on

    def rows(self) -> list[np.ndarray]:
        """Each row [steps, channels]."""
        return np.split(self.values, self.lengths.cumsum()[:-1])


@dataclass
class BadRows:
    """Decides what happens to a bad row: an error, or a line in `left_out` where that is a list."""

    path: Path
    left_out: list[str] | None
    last: str = field(default="", init=False)

    def add(self, where: str, reason: str | BadData) -> None:
        self.last = f"{self.path}, {where}: {reason}"
        if self.left_out is None:
            raise BadData(f"{self.last}; skip_bad=True leaves it out")
        self.left_out.append(self.last)

    def none_left(self) -> BadData:
        """The error where no row is good."""
        return BadData(f"{self.last} (and no other row is good)" if self.last else f"{self.path}: it has no rows")


def collect(
    path: Path,
    rows: Iterable[tuple[str, Any]],
    parse: Callable[[Any], tuple[np.ndarray, str]],
    left_out: list[str] | None,
    channels: int | None = None,
    classes: Collection[str] = (),
    padded: bool = True,
) -> Series:
    """Every good row. `rows` are (where, content), and `parse` turns a content into values [steps, channels] and label.

    `padded`: steps missing at the end of a row mean that the row is shorter.
    """
    values, labels, places, bad = [], [], [], BadRows(path, left_out)
    for place, (where, content) in enumerate(rows, start=1):
        try:
            row, label = parse(content)
            row, label = as_floats(row), label_name(label)
            if is_missing(label):
                raise BadData("its label is missing")
            if classes and label not in classes:
                raise BadData(f"its label {short(repr(label))} is not among those listed")
            if row.shape[1] != (channels := channels or row.shape[1]):
                raise BadData(f"it has {row.shape[1]} channels, not {channels}")
            (length,), (reason,) = scan(row[None], np.array([len(row)]), padded)
            if reason:
                raise BadData(reason)
        except BadData as reason:
            bad.add(where, reason)
        else:
            values.append(row[:length])
            labels.append(label)
            places.append(place)
    if not values:
        raise bad.none_left()
    return Series(np.concatenate(values), np.array([len(row) for row in values]), labels, places)


def scan(block: np.ndarray, lengths: np.ndarray, padded: bool) -> tuple[np.ndarray, list[str]]:
    """Rows [rows, steps, channels] of these lengths: where each one ends, and what is wrong with it, or ''."""
    step = np.arange(1, block.shape[1] + 1)
    inside = step <= lengths[:, None]  # [rows, steps]
    there = inside & ~np.isnan(block).all(2)
    last = np.where(there, step, 0).max(1, initial=0)
    with np.errstate(over="ignore"):
        large = (np.isinf(block.astype(np.float32, copy=False)).any(2) & inside).any(1)
    reasons = [
        "all of its values are missing"
        if end == 0
        else "it has a value that is infinite, or too large for 32 bits"
        if too_large
        else ""
        for end, too_large in zip(last.tolist(), large.tolist(), strict=True)
    ]
    return last if padded else lengths, reasons


def as_floats(values: np.ndarray) -> np.ndarray:
    """In 32 bits where these hold every value of the type, else in 64."""
    return values.astype(np.float32 if np.can_cast(values.dtype, np.float32) else np.float64, copy=False)


def label_name(text: str) -> str:
    """The label without blanks around it, and '3' for '3.0'."""
    text = text.strip()
    whole = re.fullmatch(r"[+-]?\d+\.\d*(e[+-]?\d+)?", text, re.IGNORECASE) and float(text).is_integer()
    return str(int(float(text))) if whole else text


def is_missing(label: str) -> bool:
    return label.lower() in ("", "?", "nan")


def short(text: str) -> str:
    return text if len(text) <= 40 else text[:40] + "…"
