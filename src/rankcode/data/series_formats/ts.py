"""The .ts format of the UCR and UEA archives: a header that announces classes and sizes, then a row on each line."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rankcode.data.series import Options, Series, collect, label_name
from rankcode.data.series_formats.text_lines import channels_of, header_of, lines_of
from rankcode.data.sources import BadData


def read_ts(path: Path, options: Options) -> dict[str, Series]:
    """Channels and the label are separated by colons, values by commas."""

    def parse(line: str) -> tuple[np.ndarray, str]:
        text, colon, label = line.rpartition(":") if has_labels else (line, ":", "none")
        if not colon:
            raise BadData("its label is missing")
        values = channels_of(text.split(":"))
        if len(values) != (steps[0] if steps else len(values)):
            raise BadData(f"it has {len(values)} steps, not {steps[0]} as announced or as in the rows before")
        if equal_length == "true" and not steps:
            steps.append(len(values))
        return values, label

    lines = lines_of(path, comments="#%")
    header = dict(header_of(path, lines))
    if header.get("@timestamps", "").lower().startswith("true"):
        raise BadData(f"{path}: series with time stamps are not supported")
    said, *classes = header.get("@classlabel", "").split() or [""]
    has_labels = said.lower() == "true"
    if options.labelled and not has_labels:
        raise BadData(f"{path}: its series have no class labels (@classLabel true …)")
    dimensions = header.get("@dimensions", header.get("@dimension", ""))
    channels = int(dimensions) if dimensions.isdecimal() else None
    if header.get("@univariate", "").lower() == "true":
        channels = 1
    equal_length, announced = header.get("@equallength", "").lower(), header.get("@serieslength", "")
    # If lengths differ, @seriesLength is that of the longest row, or 0.
    steps = [int(announced)] if announced.isdecimal() and int(announced) > 0 and equal_length != "false" else []
    names = {label_name(name) for name in classes} if has_labels else ()
    return {"train": collect(path, lines, parse, options.left_out, channels, names, padded=False)}
