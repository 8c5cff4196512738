"""Series from tables, whatever file or frame they come from.

Wide form has a record for each series and a column for each step. Long form has a record for each step of a series,
with columns for the id of the series, the time and the values.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from math import isnan, nan
from pathlib import Path
from typing import Any

import numpy as np

from rankcode.data.columns import TIME_NAMES, Roles, no_label, roles_of
from rankcode.data.series import Columns, Options, Series, collect, short
from rankcode.data.sources import SPLIT_NAMES, BadData

MISSING = {"", "?", "na", "n/a", "nan", "<na>", "nat", "null", "none"}  # in lower case
LOOKED_AT = 1 << 20  # values that are examined to tell labels from values
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass
class Table:
    """The records of a table, by their columns."""

    path: Path
    names: Sequence[str]
    roles: Roles
    texts: dict[int, list[str]]  # of the columns that are not values
    times: np.ndarray | None  # [records], numbers or datetime64
    values: np.ndarray  # [records, value columns], float64
    problems: dict[int, str]  # bad record → what is wrong with it
    lines: Sequence[int] | None = None  # the line of each record in its file
    first: int = 0  # the number of the first record in its file

    def where(self, record: int) -> str:
        return f"row {self.first + record + 1}" if self.lines is None else f"line {self.lines[record]}"


def table_of_records(
    path: Path, names: Sequence[str], records: Iterable[tuple[int, list[str]]], options: Options
) -> Table:
    """From the (line, fields) of each record. Values take 8 bytes each, whatever their text."""
    roles, lines, times, values = roles_of(path, names, options), array("q"), array("d"), array("d")
    texts: dict[int, list[str]] = {column: [] for column in roles.texts}
    seen: dict[str, str] = {}  # equal texts are kept once
    problems: dict[int, str] = {}
    parse_time: Callable[[str], float] | None = None
    for record, (line, fields) in enumerate(records):
        lines.append(line)
        if len(fields) != len(names):
            problems[record] = f"the number of its fields is {len(fields)}, not {len(names)} as in the first line"
            fields = [*fields, *[""] * len(names)][: len(names)]
        for column, kept in texts.items():
            kept.append(seen.setdefault(fields[column], fields[column]))
        if roles.time is not None:
            parse_time = parse_time or _time_parser(fields[roles.time])
            times.append(_tried(parse_time, fields[roles.time], problems, record))
        for column in roles.candidates:
            fields[column] = "nan"
        try:
            values.extend(map(float, [fields[column] for column in roles.values]))
        except ValueError:
            del values[record * len(roles.values) :]
            for column in roles.values:
                values.append(_tried(number, fields[column], problems, record, names[column]))
    moments = np.frombuffer(times, np.float64)
    if parse_time is _date:
        moments = moments.astype(np.int64).view("datetime64[us]")
    block = np.frombuffer(values, np.float64).reshape(-1, len(roles.values))
    return Table(path, names, roles, texts, None if roles.time is None else moments, block, problems, lines)


def table_of_columns(
    path: Path,
    names: Sequence[str],
    size: int,
    column: Callable[[int], np.ndarray],
    options: Options,
    first: int = 0,
) -> Table:
    """From `column(number)`, an array [size] of any type for each column. `first`: the number of the first record."""
    roles, problems = roles_of(path, names, options), {}
    texts = {each: _as_texts(column(each)) for each in roles.texts}
    values = np.full((size, len(roles.values)), nan)
    for place, each in enumerate(roles.values):
        content = values[:, place] if each in roles.candidates else column(each)
        if content.dtype.kind in "biuf":
            values[:, place] = content
        else:
            for record, text in enumerate(_as_texts(content)):
                values[record, place] = _tried(number, text, problems, record, names[each])
    times = None if roles.time is None else column(roles.time)
    if times is not None and times.dtype.kind not in "biufmM":
        written = _as_texts(times)
        parse_time = _time_parser(written[0] if written else "0")
        parsed = [_tried(parse_time, text, problems, record) for record, text in enumerate(written)]
        times = np.array(parsed)
        if parse_time is _date:
            times = times.astype(np.int64).view("datetime64[us]")
    elif times is not None:
        missing = np.isnat(times) if times.dtype.kind in "mM" else np.isnan(times)
        problems |= {int(record): "its time is missing" for record in np.flatnonzero(missing)}
    return Table(path, names, roles, texts, times, values, problems, first=first)


def splits_of(table: Table, options: Options) -> dict[str, Series]:
    """The splits of a table; 'train' if it names none."""
    roles = table.roles
    ids = None if roles.id is None else [name.strip() for name in table.texts[roles.id]]
    if ids is None or (roles.time is None and len(set(ids)) == len(ids)):
        return _wide(table, ids, options)
    if roles.time is None:
        raise BadData(
            f"{table.path}: ids are repeated in {table.names[roles.id or 0]!r}, so it is in long form, but it has no "
            f"column {' or '.join(TIME_NAMES)}"
        )
    return _long(table, ids, options)


def _wide(table: Table, ids: list[str] | None, options: Options) -> dict[str, Series]:
    roles, label, guessed = table.roles, table.roles.label, options.label is None
    values = table.values
    if roles.candidates:
        label, values = _guessed_label(table, options.labelled)
    if label is None and options.labelled:
        raise BadData(no_label(table.path, table.names, options))
    labels = table.texts[label] if options.labelled and label is not None else None
    places = [f"row {table.first + n + 1}" if ids is None else f"id {ids[n]}" for n in range(len(values))]

    def parse(record: int) -> tuple[np.ndarray, str]:
        if record in table.problems:
            raise BadData(table.problems[record])
        return values[record][:, None], "none" if labels is None else labels[record]

    named = None if label is None else table.names[label]
    rows = ((table.where(record), record) for record in range(len(values)))
    found = _collected(table, rows, places, range(len(values)), parse, options, padded=True, whole=values[:, :, None])
    return {split: replace(series, columns=Columns(named, guessed)) for split, series in found.items()}


def _long(table: Table, ids: list[str], options: Options) -> dict[str, Series]:
    roles, times, values = table.roles, table.times, table.values
    assert times is not None and roles.id is not None and roles.time is not None
    numbers: dict[str, int] = {}  # in order of first appearance
    series = np.array([numbers.setdefault(name, len(numbers)) for name in ids], int)
    order = np.lexsort((times, series))  # a stable sort
    if (np.diff(order) != 1).any():
        series, times, values = series[order], times[order], values[order]
    bounds = np.searchsorted(series, np.arange(len(numbers) + 1))
    labels = table.texts[roles.label] if options.labelled and roles.label is not None else None

    def parse(number: int) -> tuple[np.ndarray, str]:
        steps = slice(bounds[number], bounds[number + 1])
        records = order[steps].tolist()
        if table.problems and (bad := [record for record in sorted(records) if record in table.problems]):
            raise BadData(f"{table.where(bad[0])}: {table.problems[bad[0]]}")
        if not ids[records[0]]:
            raise BadData(f"{table.where(min(records))}: its id is missing")
        own = times[steps]
        for twice in np.flatnonzero(own[1:] == own[:-1])[:1]:
            lines = " and ".join(table.where(record) for record in records[twice : twice + 2])
            time = f"{own[twice]:.15g}" if own.dtype.kind in "biuf" else own[twice]
            raise BadData(f"time {time} occurs twice, in {lines}")
        for column, what in () if labels is None else ((roles.split, "splits"), (roles.label, "labels")):
            found = [] if column is None else list(dict.fromkeys(table.texts[column][each] for each in records))
            if column is not None and len(found) > 1:
                two = " and ".join(short(repr(each)) for each in found[:2])
                raise BadData(f"it has two {what} in column {table.names[column]!r}, {two}")
        return values[steps], "none" if labels is None else labels[records[0]]

    rows = ((f"id {short(repr(name))}", number) for name, number in numbers.items())
    firsts = order[bounds[:-1]].tolist() if len(order) else []
    places = [f"id {name}" for name in numbers]
    found = _collected(table, rows, places, firsts, parse, options, padded=False, whole=values[None])
    named = None if roles.label is None else table.names[roles.label]
    channels = tuple(table.names[column] for column in roles.values)
    columns = Columns(named, options.label is None, table.names[roles.id], table.names[roles.time], channels)
    return {split: replace(each, columns=columns) for split, each in found.items()}


def _collected(
    table: Table,
    rows: Iterable[tuple[str, int]],
    places: list[str],
    records: Sequence[int],
    parse: Callable[[int], tuple[np.ndarray, str]],
    options: Options,
    **more: Any,
) -> dict[str, Series]:
    """`collect`, for each split. `records` holds a record of each row, which says the split."""
    if table.roles.split is None or not options.labelled or not places:
        return {"train": collect(table.path, rows, parse, options.left_out, names=places, **more)}
    written = table.texts[table.roles.split]
    splits: dict[str, tuple[list[tuple[str, int]], list[str]]] = {}
    for row, place, record in zip(rows, places, records, strict=True):
        split = SPLIT_NAMES.get(written[record].strip().lower())
        if split is None:
            known = ", ".join(SPLIT_NAMES)
            table.problems[record] = f"its split {short(repr(written[record]))} is none of {known}"
        of_split, names = splits.setdefault(split or "train", ([], []))
        of_split.append(row)
        names.append(place)
    return {
        split: collect(table.path, of_split, parse, options.left_out, names=names, **more)
        for split, (of_split, names) in splits.items()
    }


def _guessed_label(table: Table, labelled: bool) -> tuple[int | None, np.ndarray]:
    """The column of labels in wide form, None if none is likely, and the values of the others.

    It is the first or else the last column, if it holds text, or few whole numbers unlike the others. If no labels are
    needed, only a column of text is taken.
    """
    found, values, candidates = None, table.values, table.roles.candidates
    places = {column: table.roles.values.index(column) for column in candidates}
    problems: dict[int, dict[int, str]] = {column: {} for column in candidates}
    for column, place in places.items():
        for record, text in enumerate(table.texts[column]):
            values[record, place] = _tried(number, text, problems[column], record, table.names[column])
    for column, place in places.items():
        others = np.delete(values[: max(2, LOOKED_AT // values.shape[1])], place, axis=1)
        few = _few_whole(values[:, place], len(values)) and not _few_whole(others, len(values))
        if (few and labelled and not problems[column]) or 2 * len(problems[column]) > len(values):
            found = column
            break
    for column in candidates:
        if column != found:
            table.problems |= problems[column]
    if found is not None:
        values = values[:, 1:] if places[found] == 0 else values[:, :-1]
    return found, values


def _few_whole(values: np.ndarray, records: int) -> bool:
    """Whether all are whole numbers, with several distinct values but at most one for every two records."""
    distinct = np.unique(values[~np.isnan(values)])
    return 1 < len(distinct) <= max(2, records // 2) and bool((distinct == np.floor(distinct)).all())


# From text to numbers


def number(text: str) -> float:
    """NaN if it is missing."""
    if text.strip().lower() in MISSING:
        return nan
    try:
        return float(text)
    except ValueError:
        if re.fullmatch(r"\s*[+-]?\d+,\d+\s*", text):
            raise BadData(f"{short(repr(text))} has a decimal comma: write numbers with a decimal point") from None
        raise BadData(f"not a number: {short(repr(text))}") from None


def is_number(text: str) -> bool:
    try:
        number(text)
    except BadData:
        return False
    return True


def _tried(
    parse: Callable[[str], float], text: str, problems: dict[int, str], record: int, column: str | None = None
) -> float:
    """The number, or NaN and an entry in `problems`."""
    try:
        return parse(text)
    except BadData as reason:
        problems.setdefault(record, f"{reason}{'' if column is None else f' in column {short(repr(column))}'}")
        return nan if column is not None else 0.0


def _time_parser(first: str) -> Callable[[str], float]:
    """How the times of a table are written, from the first of them."""
    return _count if is_number(first) else _date


def _count(text: str) -> float:
    try:
        time = number(text)
    except BadData:
        raise BadData(f"its time {short(repr(text))} is not a number, as the first time is") from None
    if isnan(time):
        raise BadData("its time is missing")
    return time


def _date(text: str) -> float:
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise BadData(f"its time {short(repr(text))} is neither a number nor an ISO date") from None
    return (moment.replace(tzinfo=moment.tzinfo or UTC) - EPOCH) // timedelta(microseconds=1)


def _as_texts(values: np.ndarray) -> list[str]:
    texts = (each.decode(errors="replace") if isinstance(each, bytes) else str(each) for each in values.tolist())
    return ["" if text.lower() in MISSING else text for text in texts]
