"""Writing small files of series, and reading them back."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from rankcode.data.series import Options
from rankcode.data.series_files import read_series
from rankcode.data.sources import BadData

ONES = np.ones((2, 3))


def written(path, content):
    path.write_bytes(content) if isinstance(content, bytes) else path.write_text(content, encoding="utf-8")
    return path


def saved(path, **arrays):
    np.savez(path, **arrays)
    return path


def train(path, skipped=None):
    return read_series(path, Options(skipped))["train"]


def rows(series):
    """Values as nested lists, None where they are missing, and labels."""
    assert series.values.dtype in (np.float32, np.float64)
    single = [row.astype(np.float32) for row in series.rows()]
    listed = [[[None if np.isnan(v) else float(v) for v in step] for step in row] for row in single]
    return list(zip(listed, series.labels, strict=True))


def single(*values):
    return [[value] for value in values]


def says(path, *parts, skipped=None):
    """The path cannot be read, and one line that names it says so."""
    with pytest.raises(BadData) as error:
        read_series(path, Options(skipped))
    message = str(error.value)
    assert "\n" not in message and len(message) < len(str(path)) + 250
    assert all(part in message for part in (Path(path).stem, *parts)), message


def bad_row(folder, ending, header, good, bad, reason):
    """A file with bad rows among good ones is an error that names the first; `skipped` lists them all."""
    file = written(folder / f"rows{ending}", f"{header}{good}\n\n{bad}\n{good}\n{bad}\n")
    lines = [header.count("\n") + 3, header.count("\n") + 5]
    says(file, f"line {lines[0]}:", reason)
    skipped = []
    kept = rows(train(file, skipped))
    assert len(kept) == 2 and kept[0] == kept[1] == rows(train(written(folder / f"good{ending}", header + good)))[0]
    assert len(skipped) == 2
    for line, message in zip(lines, skipped, strict=True):
        assert str(file) in message and f"line {line}:" in message and reason in message and "\n" not in message
        assert len(message) < len(str(file)) + 120


def peak_of(call):
    """The most that Python and NumPy hold at once while it runs, in bytes."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
