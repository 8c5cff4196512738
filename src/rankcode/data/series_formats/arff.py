"""The .arff format of Weka, in which the UCR and UEA archives are published as well."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from rankcode.data.series import Options, Series, collect, label_name
from rankcode.data.series_formats.text_lines import channels_of, header_of, lines_of
from rankcode.data.sources import BadData

QUOTED = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""


def read_arff(path: Path, options: Options) -> dict[str, Series]:
    """A numeric attribute for each step, or a relational one with the channels, then the class."""
    lines = lines_of(path, comments="%")
    types, bag = [], False  # the attributes inside a bag are the steps of its channels
    for keyword, rest in header_of(path, lines):
        if keyword == "@attribute" and not bag:
            types.append(re.sub(rf"^(?:{QUOTED}|[^\s{{]+)\s*", "", rest))  # without its name
            bag = types[-1].lower() == "relational"
        elif keyword == "@end":
            bag = False
    *types, label_type = [kind if kind.startswith("{") else kind.lower() for kind in types] or [""]
    if not label_type.startswith("{"):
        raise BadData(f"{path}: its last attribute must be the class, {{a,b,…}}")
    relational = types == ["relational"]
    if not relational and set(types) - {"numeric", "real", "integer"}:
        raise BadData(f"{path}: before the class, its attributes must be numeric, or a single relational one")

    def parse(line: str) -> tuple[np.ndarray, str]:
        values, label = _without_label(line.strip())
        if relational:  # 'the first channel\nthe second', with a backslash and an n
            if values[:1] not in ("'", '"') or len(values) < 2 or values[-1] != values[0]:
                raise BadData("its channels are not in quotes, or its label is missing")
            return channels_of(values[1:-1].removesuffix("\\n").split("\\n")), label
        if values.count(",") + 1 != len(types):
            raise BadData(f"it has {values.count(',') + 1} values for {len(types)} attributes")
        return channels_of([values]), label

    listed = re.findall(rf"{QUOTED}|[^,\s][^,]*", label_type.strip("{} \t"))
    names = {label_name(_unquoted(name)) for name in listed}
    return {"train": collect(path, lines, parse, options.left_out, classes=names)}


def _without_label(line: str) -> tuple[str, str]:
    """A line of an .arff file without its last field, and that field. Not by a regular expression, whose time could
    grow with the square of the line's length."""
    comma = line.rfind(",")
    if line[-1] in "'\"":
        opening = line.rfind(line[-1], 0, -1)
        while opening > 0 and line[opening - 1] == "\\":
            opening = line.rfind(line[-1], 0, opening)
        before = line[: max(opening, 0)].rstrip()
        if before.endswith(","):
            comma = len(before) - 1
    if comma < 0:
        raise BadData("it has no values, or no label")
    return line[:comma].strip(), _unquoted(line[comma + 1 :])


def _unquoted(text: str) -> str:
    text = text.strip()
    return re.sub(r"\\(.)", r"\1", text[1:-1]) if re.fullmatch(QUOTED, text) else text
