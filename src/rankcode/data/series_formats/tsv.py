"""The .tsv format of the UCR archive: a label and the values of one channel on each line."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rankcode.data.series import Options, Series, collect
from rankcode.data.series_formats.text_lines import channels_of, lines_of
from rankcode.data.sources import BadData


def read_tsv(path: Path, options: Options) -> dict[str, Series]:
    """Fields are separated by tabs, commas or blanks."""
    widths: set[int] = set()

    def parse(line: str) -> tuple[np.ndarray, str]:
        separator = next((mark for mark in "\t," if mark in line), None)
        label, *values = line.rstrip("\n").rstrip(" \t,").split(separator, maxsplit=1) or [""]
        width = len(line.split(separator))
        if not line.endswith("\n") and len(widths) == 1 and width < max(widths):
            raise BadData(f"it is cut short: {width} fields, {max(widths)} on the lines before, and no line end")
        widths.add(width)
        return channels_of(values, separator), label

    return {"train": collect(path, lines_of(path), parse, options.left_out)}
