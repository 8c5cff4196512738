"""A user's own labelled time series, read from files.

.ts, .tsv and .arff are the formats of the UCR and UEA archives, .npz is for arrays made in Python. A file that
cannot be read at all is an error; of a bad row the reader may choose: an error, or a line that says what was left
out. Where rows cannot differ in width (all but .ts), steps missing at the end mean that the row is shorter, as in
the archives.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rankcode.data.sources import BadData

FORMATS = (".ts", ".tsv", ".arff", ".npz")  # of a set that a folder holds in several, the first is read
SPLITS = {"train": "train", "validation": "validation", "val": "validation", "test": "test"}  # as they may be written
QUOTED = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""


class Series(NamedTuple):
    """The rows of one split."""

    values: list[np.ndarray]  # one [steps, channels] for each row, each of its own length; NaN: missing
    labels: list[str]  # the user's own names
    places: list[int]  # which rows these are of all in the file, from 1 on


def is_series(path: str | Path) -> bool:
    """Whether the path names a file of series, or a folder that holds one; nothing is opened."""
    path = Path(path)
    return bool(_data_files(path)) if path.is_dir() else path.suffix.lower() in FORMATS


def read_series(path: str | Path, skipped: list[str] | None = None, alone: bool = False) -> dict[str, Series]:
    """The splits a file, or a folder, holds: 'train' always, 'validation' and 'test' where they are given.

    With `alone` a file counts for itself, without the other splits that lie beside it.

    A bad row raises BadData; where `skipped` is a list, its message is appended there and the row left out.
    """
    found: dict[str, Series] = {}
    try:
        for split, file in _split_files(Path(path), alone).items():
            for inside, series in READERS[file.suffix.lower()](file, skipped).items():
                name = split if inside == "train" else inside  # what a file holds is what its name says
                if name in found:
                    raise BadData(f"{file}: the {name} split is given twice")
                found[name] = series
    except OSError as error:
        raise BadData(f"{error.filename or path}: {error.strerror or error}") from None
    if "train" not in found:
        raise BadData(f"{path}: it has no series to train on")
    channels = {name: series.values[0].shape[1] for name, series in found.items()}
    if len(set(channels.values())) > 1:
        raise BadData(f"{path}: the splits differ in channels: {', '.join(f'{n} {c}' for n, c in channels.items())}")
    return {name: found[name] for name in SPLITS if name in found}


def read_rows(path: str | Path, skipped: list[str] | None = None) -> list[tuple[str, np.ndarray]]:
    """The rows of a file to answer to, or of a folder, each with its place: 'row 3', or 'test, row 3' where there are
    several splits. An .npz and a .ts need not have labels."""
    path = Path(path)
    reader = {".ts": _read_ts, ".npz": _read_npz}.get(path.suffix.lower())
    if reader is None or not path.is_file():
        splits = read_series(path, skipped, alone=True)
    else:
        splits = reader(path, skipped, labelled=False)
    return [
        (f"row {place}" if len(splits) == 1 else f"{split}, row {place}", values)
        for split, series in splits.items()
        for place, values in zip(series.places, series.values, strict=True)
    ]


# Which files


class DataFile(NamedTuple):
    path: Path
    format: str  # '.tsv' of GunPoint_TEST.tsv
    set: str  # 'gunpoint'
    split: str | None  # 'test'


def _data_file(path: Path) -> DataFile:
    found = re.fullmatch(rf"(.+)_({'|'.join(SPLITS)})", path.stem, re.IGNORECASE)
    name, split = (found[1], SPLITS[found[2].lower()]) if found else (path.stem, None)
    return DataFile(path, path.suffix.lower(), name.casefold(), split)


def _data_files(folder: Path) -> list[DataFile]:
    paths = (path for path in sorted(folder.iterdir()) if path.is_file() and not path.name.startswith("."))
    return [file for file in map(_data_file, paths) if file.format in FORMATS]


def _split_files(path: Path, alone: bool) -> dict[str, Path]:
    this = _only_file(path) if path.is_dir() else _data_file(path)
    this.path.stat()  # raises where there is no such file, also of one whose siblings are there
    if this.format not in FORMATS:
        raise BadData(f"{path}: series are read from {', '.join(FORMATS)} or a folder that holds one")
    if alone and not path.is_dir():
        return {"train": path}
    splits: dict[str, Path] = {}
    for file in _data_files(this.path.parent) if this.split or path.is_dir() else []:
        if (file.split or file == this) and (file.format, file.set) == (this.format, this.set):
            split = file.split or "train"
            if split in splits:
                raise BadData(f"{path}: {splits[split].name} and {file.path.name} are both for {split}")
            splits[split] = file.path
    if "train" not in splits:
        return {"train": this.path}  # there is nothing else to train on, whatever its name
    return {split: splits[split] for split in SPLITS if split in splits}


def _only_file(folder: Path) -> DataFile:
    """The file to train on, of the one set in a folder."""
    files = _data_files(folder)
    if not files:
        raise BadData(f"{folder}: a folder with no {', '.join(FORMATS)} file")
    sets = {file.set for file in files}
    # the UEA archive puts each channel of X into an .arff of its own beside the whole: XDimension1, XDimension2, …
    sets -= {name for name in sets if re.sub(r"dimension\d+$", "", name) in sets - {name}}
    files = [file for file in files if file.set in sets]
    train = [file for file in files if file.split in (None, "train")] or files
    train.sort(key=lambda file: FORMATS.index(file.format))
    if len(sets) > 1 or sum(file.format == train[0].format for file in train) > 1:
        names = ", ".join(file.path.name for file in files[:8]) + ", …" * (len(files) > 8)
        raise BadData(f"{folder}: which of its files is meant? It holds {names}")
    return train[0]


# Rows


def _collect(
    path: Path,
    rows: Iterable[tuple[str, Any]],
    parse: Callable[[Any], tuple[np.ndarray, str]],
    skipped: list[str] | None,
    channels: int | None = None,
    classes: Collection[str] = (),
    padded: bool = True,
) -> Series:
    """Every row that is good. `rows` are (where, what is there), and `parse` makes values and label of the latter."""
    series, message = Series([], [], []), ""
    for place, (where, content) in enumerate(rows, start=1):
        try:
            values, label = parse(content)
            values, label = _checked_values(values, padded), _label_name(label)
            if label.lower() in ("", "?", "nan"):
                raise BadData("its label is missing")
            if classes and label not in classes:
                raise BadData(f"its label {_short(repr(label))} is not among those listed")
            if values.shape[1] != (channels := channels or values.shape[1]):
                raise BadData(f"it has {values.shape[1]} channels, not {channels}")
        except BadData as reason:
            message = f"{path}, {where}: {reason}"
            if skipped is None:
                raise BadData(f"{message}; --skip-bad leaves it out") from None
            skipped.append(message)
        else:
            series.values.append(values)
            series.labels.append(label)
            series.places.append(place)
    if not series.values:
        raise BadData(f"{message} (and no other row is good)" if message else f"{path}: it has no rows")
    return series


def _checked_values(values: np.ndarray, padded: bool) -> np.ndarray:
    values = values.astype(np.float32 if np.can_cast(values.dtype, np.float32) else np.float64)
    there = np.flatnonzero(~np.isnan(values).all(axis=1))
    if len(there) == 0:
        raise BadData("all of its values are missing")
    with np.errstate(over="ignore"):
        large = np.isinf(values.astype(np.float32)).any()
    if large:
        raise BadData("it has a value that is infinite, or too large for 32 bits")
    return values[: there[-1] + 1] if padded else values


def _label_name(text: str) -> str:
    """The label, and '3' for '3.0'."""
    text = text.strip()
    whole = re.fullmatch(r"[+-]?\d+\.\d*(e[+-]?\d+)?", text, re.IGNORECASE) and float(text).is_integer()
    return str(int(float(text))) if whole else text


def _unquoted(text: str) -> str:
    text = text.strip()
    return re.sub(r"\\(.)", r"\1", text[1:-1]) if re.fullmatch(QUOTED, text) else text


def _short(text: str) -> str:
    return text if len(text) <= 40 else text[:40] + "…"


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
        raise BadData(f"not a number: {_short(str(error).partition(': ')[2])}") from None


# Text formats


def _lines(path: Path, comments: str = "") -> Iterator[tuple[str, str]]:
    """('line 1', what it says) of every line that is not blank, nor a comment."""
    content = path.read_bytes()
    if not content.strip():
        raise BadData(f"{path}: the file is empty")
    if b"\0" in content:
        raise BadData(f"{path}: not a text file")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("latin-1")
    # not splitlines, which takes more than line ends for a line's end
    for number, line in enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), start=1):
        if line.strip() and not line.lstrip().startswith(tuple(comments)):
            yield f"line {number}", line


def _header(path: Path, lines: Iterator[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """(keyword, what follows it) of every line above the data."""
    for where, line in lines:
        keyword, *rest = line.split(maxsplit=1)
        if not keyword.startswith("@"):
            raise BadData(f"{path}, {where}: a line before @data must begin with @, not {_short(repr(line))}")
        if keyword.lower() == "@data":
            return
        yield keyword.lower(), rest[0].strip() if rest else ""
    raise BadData(f"{path}: it has no @data line")


def _read_tsv(path: Path, skipped: list[str] | None) -> dict[str, Series]:
    def parse(line: str) -> tuple[np.ndarray, str]:
        separator = next((mark for mark in "\t," if mark in line), None)
        label, *values = line.rstrip(" \t,").split(separator, maxsplit=1) or [""]
        return _channels(values, separator), label

    return {"train": _collect(path, _lines(path), parse, skipped)}


def _read_ts(path: Path, skipped: list[str] | None, labelled: bool = True) -> dict[str, Series]:
    def parse(line: str) -> tuple[np.ndarray, str]:
        if not has_labels:
            return _channels(line.split(":")), "none"
        values, colon, label = line.rpartition(":")
        if not colon:
            raise BadData("its label is missing")
        return _channels(values.split(":")), label

    lines = _lines(path, comments="#%")
    header = dict(_header(path, lines))
    if header.get("@timestamps", "").lower().startswith("true"):
        raise BadData(f"{path}: series with time stamps are not supported")
    said, *classes = header.get("@classlabel", "").split() or [""]
    has_labels = said.lower() == "true"
    if labelled and not has_labels:
        raise BadData(f"{path}: its series have no class labels (@classLabel true …)")
    dimensions = header.get("@dimensions", header.get("@dimension", ""))
    channels = int(dimensions) if dimensions.isdecimal() else None
    if header.get("@univariate", "").lower() == "true":
        channels = 1
    names = {_label_name(name) for name in classes} if has_labels else ()
    return {"train": _collect(path, lines, parse, skipped, channels, names, padded=False)}


def _read_arff(path: Path, skipped: list[str] | None) -> dict[str, Series]:
    lines = _lines(path, comments="%")
    types, bag = [], False  # the attributes in a bag are the steps of its channels
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
        found = re.search(rf",\s*({QUOTED}|[^,]*)$", line.rstrip())
        if not found:
            raise BadData("it has no values, or no label")
        values, label = line[: found.start()].strip(), _unquoted(found[1])
        if relational:  # 'the first channel\nthe second', where \n is written as it is here
            if values[:1] not in ("'", '"') or len(values) < 2 or values[-1] != values[0]:
                raise BadData("its channels are not in quotes, or its label is missing")
            return _channels(values[1:-1].removesuffix("\\n").split("\\n")), label
        if values.count(",") + 1 != len(types):
            raise BadData(f"it has {values.count(',') + 1} values for {len(types)} attributes")
        return _channels([values]), label

    listed = re.findall(rf"{QUOTED}|[^,\s][^,]*", label_type.strip("{} \t"))
    names = {_label_name(_unquoted(name)) for name in listed}
    return {"train": _collect(path, lines, parse, skipped, classes=names)}


# Arrays


def _read_npz(path: Path, skipped: list[str] | None, labelled: bool = True) -> dict[str, Series]:
    splits: dict[str, dict[str, np.ndarray]] = {}
    member = ""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            for member in archive.files:
                if found := re.fullmatch(r"(X|y|lengths)(?:_(\w+))?", member):
                    if (split := SPLITS.get((found[2] or "train").lower())) is None:
                        raise BadData(f"{path}: {member} is of no split: they are called {', '.join(SPLITS)}")
                    arrays = splits.setdefault(split, {})
                    if found[1] in arrays:
                        raise BadData(f"{path}: it holds {member} and another {found[1]} of the same split")
                    arrays[found[1]] = archive[member]
    except (BadData, OSError):
        raise
    except Exception as error:  # damage shows as any of a dozen exceptions, from numpy, zipfile and zlib
        if "Object arrays" not in str(error):
            raise BadData(f"{path}: not an .npz file, or a damaged one") from None
        advice = "save y.astype(str)" if member[0] == "y" else "pad its rows and give their `lengths`"
        raise BadData(f"{path}: {member} is an array of objects: {advice}") from None
    if not splits:
        raise BadData(f"{path}: it must hold arrays X and y, and holds {', '.join(archive.files) or 'nothing'}")
    for arrays in splits.values():
        if not labelled and "X" in arrays:
            arrays.setdefault("y", np.zeros(len(np.atleast_1d(arrays["X"])), int))
    return {split: _from_arrays(path, split, splits[split], skipped) for split in SPLITS if split in splits}


def series_of(X, y, lengths=None, split: str = "train", skipped: list[str] | None = None) -> Series:  # noqa: N803
    """Arrays as an .npz file has them; the rows of X may also be a list, each of its own length."""
    arrays = {"y": np.asarray(y)}
    if arrays["y"].dtype == object:
        arrays["y"] = arrays["y"].astype(str)
    if isinstance(X, list | tuple):
        rows = [np.asarray(row) for row in X]
        if not rows or any(row.ndim not in (1, 2) or row.dtype.kind not in "biuf" for row in rows):
            raise BadData(f"the rows of X of the {split} split must be numbers [steps] or [steps, channels]")
        rows = [row[:, None] if row.ndim == 1 else row for row in rows]
        if len({row.shape[1] for row in rows}) > 1:
            raise BadData(f"the rows of X of the {split} split differ in channels")
        lengths = np.array([len(row) for row in rows]) if lengths is None else lengths
        padded = np.full((len(rows), max(map(len, rows)), rows[0].shape[1]), np.nan)
        for row, values in zip(padded, rows, strict=True):
            row[: len(values)] = values
        X = padded  # noqa: N806
    arrays["X"] = np.asarray(X)
    if lengths is not None:
        arrays["lengths"] = np.asarray(lengths)
    return _from_arrays(Path("arrays"), split, arrays, skipped)


def _from_arrays(path: Path, split: str, arrays: dict[str, np.ndarray], skipped: list[str] | None) -> Series:
    inputs, labels, lengths = (arrays.get(name) for name in ("X", "y", "lengths"))
    if inputs is None or labels is None:
        raise BadData(f"{path}: the {split} split must have X and y, and has only {' and '.join(arrays)}")
    rows, inputs = len(np.atleast_1d(inputs)), inputs[:, :, None] if inputs.ndim == 2 else inputs
    for name, kinds, right, form in (
        ("X", "biuf", inputs.ndim == 3, "numbers [rows, steps] or [rows, steps, channels]"),
        ("y", "biufUS", labels.shape == (rows,), f"integers or strings [{rows}]"),
        ("lengths", "iu", lengths is None or lengths.shape == (rows,), f"integers [{rows}]"),
    ):
        if name in arrays and not (right and arrays[name].dtype.kind in kinds):
            found = f"{arrays[name].dtype} {list(arrays[name].shape)}"
            raise BadData(f"{path}: {name} of the {split} split must be {form}, not {found}")

    def parse(row: int) -> tuple[np.ndarray, str]:
        values, label = inputs[row], labels[row].item()
        if isinstance(label, float) and not (np.isnan(label) or label.is_integer()):
            raise BadData(f"its label {label} is not a whole number")
        if lengths is not None:
            if not 1 <= lengths[row] <= len(values):
                raise BadData(f"its length {lengths[row]} is not within 1…{len(values)}")
            values = values[: lengths[row]]
        return values, label.decode(errors="replace") if isinstance(label, bytes) else str(label)

    numbered = ((f"X[{row}] of {split}", row) for row in range(rows))
    return _collect(path, numbered, parse, skipped, padded=lengths is None)


READERS = {".ts": _read_ts, ".tsv": _read_tsv, ".arff": _read_arff, ".npz": _read_npz}
