"""Manifests: files that list the files to read, as text, CSV or Parquet. They are read line by line."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterator
from itertools import chain
from pathlib import Path

from rankcode.data.open_file import open_file
from rankcode.data.series_formats.parquet import opened
from rankcode.data.sources import BadData

SUFFIXES = (".txt", ".csv", ".parquet")
COLUMNS = ("path", "file", "filename", "file_name")  # that hold the names in a table; case does not matter


def is_manifest(path: str | Path, data_suffixes: Collection[str]) -> bool:
    """Whether a path names a manifest. `data_suffixes`: of files that hold data and are not manifests."""
    suffix = Path(path).suffix.lower()
    return suffix in SUFFIXES and suffix not in data_suffixes


def listed_files(path: str | Path) -> Iterator[str]:
    """The files that a manifest lists, in its order. Relative names are relative to the folder of the manifest.

    A text file has a name on each line; empty lines and lines that begin with # are skipped. A table has them in a
    column called path, file or filename, or in its only column.
    """
    path = Path(path)
    names = {".txt": _text_lines, ".csv": _csv_column, ".parquet": _parquet_column}[path.suffix.lower()](path)
    for name in names:
        if name:
            yield str(path.parent / name)


def _text_lines(path: Path) -> Iterator[str]:
    with io.TextIOWrapper(open_file(path), encoding="utf-8-sig", errors="surrogateescape") as file:
        yield from (line.strip() for line in file if not line.startswith("#"))


def _csv_column(path: Path) -> Iterator[str]:
    with io.TextIOWrapper(open_file(path), encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        rows = csv.reader(file)
        first = next(rows, [])
        column, has_header = _column(path, first)
        for row in rows if has_header else chain([first], rows):
            yield row[column] if column < len(row) else ""


def _parquet_column(path: Path) -> Iterator[str]:
    with opened(path) as table:
        name = table.schema_arrow.names[_column(path, table.schema_arrow.names)[0]]
        for batch in table.iter_batches(columns=[name]):
            yield from ("" if value is None else str(value) for value in batch.column(0).to_pylist())


def _column(path: Path, names: list[str]) -> tuple[int, bool]:
    """The column that holds file names, and whether `names` is a header."""
    found = [place for place, name in enumerate(names) if name.strip().casefold() in COLUMNS]
    if found or len(names) == 1:
        return (found or [0])[0], bool(found)
    shown = ", ".join(map(repr, names[:5]))
    raise BadData(f"{path}: none of its columns is called {', '.join(COLUMNS[:3])}; they are {shown or 'missing'}")
