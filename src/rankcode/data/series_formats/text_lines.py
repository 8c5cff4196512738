"""Text files of series: their lines, their headers, and numbers from text. Files are read line by line."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from rankcode.data.open_file import open_file
from rankcode.data.series import short
from rankcode.data.sources import BadData


def lines_of(path: Path, comments: str = "") -> Iterator[tuple[str, str]]:
    """('line 1', its text with the line end) of every line that is neither blank nor a comment.

    A line that is not UTF-8 is read as Latin-1. If the last line ends with a number and without a line end, the number
    may be cut short: a warning says so.
    """
    # Only \n, \r and \r\n end a line, unlike with str.splitlines.
    with io.TextIOWrapper(open_file(path), encoding="utf-8-sig", errors="surrogateescape") as file:
        line = "\n"
        for number, line in enumerate(file, start=1):
            if "\0" in line:
                raise BadData(f"{path}: not a text file")
            if not line.isascii():
                content = line.encode(errors="surrogateescape")
                try:
                    line = content.decode()
                except UnicodeDecodeError:
                    line = content.decode("latin-1")
            if line.strip() and not line.lstrip().startswith(tuple(comments)):
                yield f"line {number}", line
        if line[-1].isdigit() or line[-1] in ".+-":
            message = f"{path}: its last line has no line end: if the file was cut short, its last number is wrong"
            warnings.warn(message, stacklevel=2)


def header_of(path: Path, lines: Iterator[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """(keyword, the rest of the line) of every line before @data."""
    for where, line in lines:
        keyword, *rest = line.split(maxsplit=1)
        if not keyword.startswith("@"):
            raise BadData(f"{path}, {where}: a line before @data must begin with @, not {short(repr(line.strip()))}")
        if keyword.lower() == "@data":
            return
        yield keyword.lower(), rest[0].strip() if rest else ""
    raise BadData(f"{path}: it has no @data line")


def channels_of(texts: list[str], separator: str | None = ",") -> np.ndarray:
    """[steps, channels] from the text of each channel."""
    if not any(text.strip() for text in texts):
        raise BadData("it has no values")
    fields = [text.replace("?", "nan").split(separator) for text in texts]
    steps = [len(channel) for channel in fields]
    if min(steps) != max(steps):
        raise BadData(f"its channels differ in length, from {min(steps)} to {max(steps)} steps")
    try:
        return np.array(fields, dtype=np.float64).T
    except ValueError as error:  # "could not convert string to float: 'abc'"
        raise BadData(f"not a number: {short(str(error).partition(': ')[2])}") from None
