"""Tables in .csv files, in wide or long form, with or without a header."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from itertools import chain, pairwise
from pathlib import Path

from rankcode.data.columns import INDEX_NAMES, KNOWN_NAMES, is_named
from rankcode.data.series import Options, Series
from rankcode.data.series_formats.text_lines import lines_of
from rankcode.data.sources import BadData
from rankcode.data.tables import is_number, number, splits_of, table_of_records

MARKS = ";\t,"  # a comma may be a decimal comma if another mark separates fields
FEWEST_NUMBERED = 8  # consecutive numbers: taken for column names, not for the values of a series


def read_csv(path: Path, options: Options) -> dict[str, Series]:
    """Fields are separated by commas, semicolons or tabs."""
    records = _records(path)
    line, first = next(records, (1, []))
    if not first:
        raise BadData(f"{path}: the file is empty")
    if len(first) == 1:
        raise BadData(f"{path}, line {line}: fields must be separated by commas, semicolons or tabs")
    names = first
    if not _is_header(first, options.label):
        names, records = [f"column {place}" for place in range(1, len(first) + 1)], chain([(line, first)], records)
    return splits_of(table_of_records(path, names, records, options), options)


def _records(path: Path) -> Iterator[tuple[int, list[str]]]:
    """(number of its line, fields) of each record."""
    where, lines = "line 1", lines_of(path)

    def texts(first: str) -> Iterator[str]:
        nonlocal where
        yield first
        for where, line in lines:  # noqa: B007 (the outer `where` is what is read)
            yield line

    try:
        for where, first in lines:
            unquoted = re.sub(r'"[^"]*"', "", first)
            mark = next((mark for mark in MARKS if mark in unquoted), ",")
            for fields in csv.reader(texts(first), delimiter=mark, skipinitialspace=mark != "\t"):
                yield int(where.removeprefix("line ")), fields
    except csv.Error as error:
        raise BadData(f"{path}, {where}: {error}") from None


def _is_header(fields: list[str], label: str | None) -> bool:
    """Whether these are names of columns, not values."""
    if label in fields or is_named(fields[0], INDEX_NAMES) or any(is_named(field, KNOWN_NAMES) for field in fields):
        return True
    texts = {place for place, field in enumerate(fields) if not is_number(field)}
    if texts not in (set(), {0}, {len(fields) - 1}):  # the first or the last field may be a label
        return True
    numbers = [number(field) for place, field in enumerate(fields) if place not in texts]
    # The names that pandas gives: 0, 1, 2, …
    return len(numbers) >= FEWEST_NUMBERED and numbers[0] in (0, 1) and all(b - a == 1 for a, b in pairwise(numbers))
