"""The text formats of the UCR and UEA archives: .ts, .tsv and .arff. Files are read line by line."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from rankcode.data.regular_files import open_regular
from rankcode.data.series import Options, Series, collect, label_name, short
from rankcode.data.sources import BadData

QUOTED = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
BLOCK = 1 << 20  # bytes read at once to find out the encoding


def read_tsv(path: Path, options: Options) -> dict[str, Series]:
    """A label and the values of one channel on each line, separated by tabs, commas or blanks."""
    widths: set[int] = set()

    def parse(line: str) -> tuple[np.ndarray, str]:
        separator = next((mark for mark in "\t," if mark in line), None)
        label, *values = line.rstrip("\n").rstrip(" \t,").split(separator, maxsplit=1) or [""]
        width = len(line.split(separator))
        if not line.endswith("\n") and len(widths) == 1 and width < max(widths):
            raise BadData(f"it is cut short: {width} fields, {max(widths)} on the lines before, and no line end")
        widths.add(width)
        return _channels(values, separator), label

    return {"train": collect(path, _lines(path), parse, options.left_out)}


def read_ts(path: Path, options: Options) -> dict[str, Series]:
    """Channels and the label separated by colons; values by commas. The header announces classes and sizes."""

    def parse(line: str) -> tuple[np.ndarray, str]:
        text, colon, label = line.rpartition(":") if has_labels else (line, ":", "none")
        if not colon:
            raise BadData("its label is missing")
        values = _channels(text.split(":"))
        if len(values) != (steps[0] if steps else len(values)):
            raise BadData(f"it has {len(values)} steps, not {steps[0]} as announced or as in the rows before")
        if equal_length == "true" and not steps:
            steps.append(len(values))
        return values, label

    lines = _lines(path, comments="#%")
    header = dict(_header(path, lines))
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


def read_arff(path: Path, options: Options) -> dict[str, Series]:
    """Weka's format: one numeric attribute for each step, or a relational one with the channels, then the class."""
    lines = _lines(path, comments="%")
    types, bag = [], False  # the attributes inside a bag are the steps of its channels
    for keyword, rest in _header(path, lines):
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
            return _channels(values[1:-1].removesuffix("\\n").split("\\n")), label
        if values.count(",") + 1 != len(types):
            raise BadData(f"it has {values.count(',') + 1} values for {len(types)} attributes")
        return _channels([values]), label

    listed = re.findall(rf"{QUOTED}|[^,\s][^,]*", label_type.strip("{} \t"))
    names = {label_name(_unquoted(name)) for name in listed}
    return {"train": collect(path, lines, parse, options.left_out, classes=names)}


def _without_label(line: str) -> tuple[str, str]:
    """A line of an .arff file without its last field, and that field. No regular expression, whose time could grow
    with the square of the length of the line."""
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


def _channels(texts: list[str], separator: str | None = ",") -> np.ndarray:
    """[steps, channels] from the text of each channel."""
    if not any(text.strip() for text in texts):
        raise BadData("it has no values")
    fields = [text.replace("?", "nan").split(separator) for text in texts]
    steps = [len(channel) for channel in fields]
    if min(steps) != max(steps):
        raise BadData(f"its channels differ in length, from {min(steps)} to {max(steps)} steps")
    try:
        return np.stack([np.array(channel, dtype=np.float64) for channel in fields], axis=1)
    except ValueError as error:  # "could not convert string to float: 'abc'"
        raise BadData(f"not a number: {short(str(error).partition(': ')[2])}") from None


def _lines(path: Path, comments: str = "") -> Iterator[tuple[str, str]]:
    """('line 1', its text with the line end) of every line that is neither blank nor a comment."""
    encoding = _encoding(path)
    with open(path, encoding=encoding) as file:  # only \n, \r and \r\n end a line, unlike with str.splitlines
        for number, line in enumerate(file, start=1):
            if line.strip() and not line.lstrip().startswith(tuple(comments)):
                yield f"line {number}", line


def _encoding(path: Path) -> str:
    """UTF-8, or Latin-1 for a text that is not."""
    decoder, encoding, blank = codecs.getincrementaldecoder("utf-8-sig")(), "utf-8-sig", True
    with open_regular(path) as file:
        while content := file.read(BLOCK):
            blank = blank and not content.strip()
            if b"\0" in content:
                raise BadData(f"{path}: not a text file")
            try:
                decoder.decode(content)
            except UnicodeDecodeError:
                encoding = "latin-1"
                decoder = codecs.getincrementaldecoder("latin-1")()
        try:
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            encoding = "latin-1"
    if blank:
        raise BadData(f"{path}: the file is empty")
    return encoding


def _header(path: Path, lines: Iterator[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """(keyword, the rest of the line) of every line above the data."""
    for where, line in lines:
        keyword, *rest = line.split(maxsplit=1)
        if not keyword.startswith("@"):
            raise BadData(f"{path}, {where}: a line before @data must begin with @, not {short(repr(line.strip()))}")
        if keyword.lower() == "@data":
            return
        yield keyword.lower(), rest[0].strip() if rest else ""
    raise BadData(f"{path}: it has no @data line")
