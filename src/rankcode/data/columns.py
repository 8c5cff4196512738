"""Which columns of a table hold what: the labels, the ids and times of long form, the splits and the values."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from rankcode.data.series import Options, short
from rankcode.data.sources import BadData

# Case does not matter. `y` counts only if none of the others exists: it is often the second axis of a sensor.
LABEL_NAMES, LAST_LABEL_NAMES = ("label", "class", "target"), ("y",)
ID_NAMES = ("id", "series", "series_id", "case_id")
CLEAR_TIME_NAMES = ("time", "timestamp", "datetime")
TIME_NAMES = (*CLEAR_TIME_NAMES, "date", "t", "step")  # beside an id
SPLIT_NAME = "split"
INDEX_NAMES = ("", "unnamed: 0", "__index_level_0__")  # of the index, which pandas writes by default
KNOWN_NAMES = {*LABEL_NAMES, *LAST_LABEL_NAMES, *ID_NAMES, *TIME_NAMES, SPLIT_NAME}


class Roles(NamedTuple):
    """The numbers of the columns, from 0 on; None: the table has no such column."""

    label: int | None
    candidates: tuple[int, ...]  # that may hold the labels in wide form; their content decides
    id: int | None
    time: int | None
    split: int | None
    values: list[int]  # candidates included

    @property
    def texts(self) -> list[int]:
        """The columns that are kept as text."""
        return [each for each in (self.label, self.id, self.split, *self.candidates) if each is not None]


def is_named(name: str, known: Collection[str]) -> bool:
    return name.strip().casefold() in known


def roles_of(path: Path, names: Sequence[str], options: Options) -> Roles:
    """The columns by their names."""

    def find(known: Collection[str], what: str, advice: str = "rename or remove one") -> int | None:
        found = [column for column in sorted(free) if is_named(names[column], known)]
        if len(found) > 1:
            first, second = (repr(names[column]) for column in found[:2])
            raise BadData(f"{path}: its columns {first} and {second} could both be the {what}: {advice}")
        free.difference_update(found)
        return found[0] if found else None

    free = {column for column, name in enumerate(names) if not is_named(name, INDEX_NAMES[1:])}
    if is_named(names[0], INDEX_NAMES):
        free.discard(0)
    label = None
    if options.label is not None:
        found = [column for column in sorted(free) if names[column].strip() == options.label.strip()]
        if len(found) > 1:
            raise BadData(f"{path}: {len(found)} of its columns are called {options.label!r}")
        label = found[0] if found else None
        if label is None and options.labelled and options.channels is None:  # the user named it
            raise BadData(f"{path}: it has no column {options.label!r}; {_listed(names)}")
        free -= {label}
    channels = [column for column in sorted(free) if names[column] in options.channel_names]
    free.difference_update(channels)
    if label is None and (options.labelled or options.label is None):
        for known in (LABEL_NAMES, LAST_LABEL_NAMES):
            label = find(known, "label", naming(options)) if label is None else label
    split, series_id = find([SPLIT_NAME], "split"), find(ID_NAMES, "id")
    time = find(CLEAR_TIME_NAMES if series_id is None else TIME_NAMES, "time")
    if time is not None and series_id is None:
        raise BadData(
            f"{path}: its column {names[time]!r} looks like the time of long form, which needs a column "
            f"{' or '.join(ID_NAMES)} too; for wide form, rename or remove it"
        )
    values = sorted(free | set(channels))
    if time is not None and options.channel_names:
        found = {names[column]: column for column in channels}
        if missing := [name for name in options.channel_names if name not in found]:
            raise BadData(f"{path}: it has no column {missing[0]!r}, which was trained on; {_listed(names)}")
        values = [found[name] for name in options.channel_names]
    candidates: tuple[int, ...] = ()
    if label is None and time is not None and options.labelled:
        raise BadData(no_label(path, names, options))
    if label is None and time is None and values and (options.labelled or options.label is None):
        candidates = tuple(dict.fromkeys((values[0], values[-1])))
    if not values:
        raise BadData(f"{path}: it has no column of values; {_listed(names)}")
    return Roles(label, candidates, series_id, time, split, values)


def no_label(path: Path, names: Sequence[str], options: Options) -> str:
    return f"{path}: it is not clear which column holds the labels: {naming(options)}; {_listed(names)}"


def naming(options: Options) -> str:
    """How to say which column holds the labels."""
    return "label=… names it" if options.channels is None else f"call it {options.label or 'label'!r}"


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(short(repr(name)) for name in names[:5])
    return f"its columns are {shown}{', …' * (len(names) > 5)}"
