"""A user's own data: series in .npz, .ts, .tsv or .arff files, or sound files in a folder for each class.

Classes are called what the user calls them. What is not set aside for validation and test by the data itself
is set aside here, the same share of every class, by a seed.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from rankcode.data.feature_cache import is_cache
from rankcode.data.series_files import Series, is_series, read_series, series_of
from rankcode.data.sources import BadData, Packed, Rows, digest
from rankcode.front_ends import Audio, Standardise
from rankcode.tasks.sound import NOISE, Sound, folders, sound_files
from rankcode.tasks.splits import Splits

SPLITS = ("training", "validation", "test")
ARRAYS = "arrays"  # the path of data that came from no path
FINE = 1e4  # a mean of so many deviations leaves a thousandth of one, in 32 bits
OTHER = "unknown"  # the class that stands for every label a network was not taught


class Collection(Protocol):
    """Labelled rows, before they are split and numbered."""

    labels: Any  # of each row, the user's own
    splits: Any  # train, validation or test; empty where the data does not say
    left_out: list[str]  # what could not be used, and why

    def fingerprint(self) -> str: ...

    def front_end(self, index: np.ndarray) -> Any: ...

    def rows(self, index: np.ndarray, labels: Sequence[int], front_end: Any, augment: bool = False) -> Rows: ...


class SeriesCollection:
    """Rows of numbers, each of its own length."""

    def __init__(self, found: dict[str, Series], left_out: list[str]):
        self.left_out = left_out
        self.values = [torch.from_numpy(row) for series in found.values() for row in series.values]
        self.channels = self.values[0].shape[1]
        self.labels = np.array([label for series in found.values() for label in series.labels])
        given = found if len(found) > 1 else {"": next(iter(found.values()))}
        self.splits = np.array([split for split, series in given.items() for _ in series.labels])

    def fingerprint(self) -> str:
        rows = _as_read(self.values, Standardise.of(self.values))
        return digest([",".join(self.labels), ",".join(self.splits), *(row.numpy().tobytes() for row in rows)])

    def front_end(self, index: np.ndarray) -> Standardise:
        rows = [self.values[k] for k in index]
        return Standardise.of(_as_read(rows, Standardise.of(rows)))

    def rows(self, index: np.ndarray, labels: Sequence[int], front_end: Standardise, augment: bool = False) -> Packed:
        if augment:
            raise ValueError("--augment is for sound, and this data is not")
        chosen = _as_read([self.values[k] for k in index], front_end)
        lengths = torch.tensor([len(row) for row in chosen], dtype=torch.int64)
        return Packed(torch.cat(chosen), lengths.cumsum(0) - lengths, lengths, labels, front_end)


def _as_read(rows: list[Tensor], scale: Standardise) -> list[Tensor]:
    """In 32 bits, unless these would hold too little of what varies."""
    fine = any(abs(mean) > FINE * deviation for mean, deviation in zip(scale.mean, scale.std, strict=True))
    return rows if fine else [row.float() for row in rows]


def read_collection(path: Path, context: int, skip_bad: bool, alone: bool = False) -> Collection:
    if not path.exists():
        raise FileNotFoundError(f"there is no file or folder {path} (--data says where a run's data is now)")
    if is_series(path):
        left_out: list[str] = []
        return SeriesCollection(read_series(path, left_out if skip_bad else None, alone), left_out)
    if is_cache(path) or (path.is_dir() and any(sound_files(each) for each in folders(path))):
        return Sound.read(path, context, skip_bad)
    raise BadData(
        f"{path} is no data that rankcode reads: .npz, .ts, .tsv and .arff files, a folder of one data set of "
        f"these, or a folder that holds a folder of sound files for each class"
    )


@dataclass(frozen=True)
class OwnData(Splits[Rows]):
    """Data of your own."""

    path: str
    """A .npz, .ts, .tsv or .arff file, a folder of such, or a folder with a folder of sound files for each class."""
    validation_share: float = 0.2
    """Share of the training rows of each class that validate, where the data does not say which."""
    test_share: float = 0.2
    """Share of the rows of each class that test, where the data does not say which."""
    split_seed: int = 0
    """Which rows these are."""
    augment: bool = False
    """Alter the training recordings, where the data is sound."""
    context: int = 10
    """Frames on either side of a step's own, where the data is sound."""
    skip_bad: bool = False
    """Leave out files and rows that cannot be used, and say which."""
    fingerprint: str = ""
    """What the data was when it was first read; found out then, and compared from there on."""

    name: ClassVar[str] = "own-data"

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", str(self.path))
        for option in ("validation_share", "test_share"):
            if not 0 < getattr(self, option) < 1:
                raise ValueError(f"{option} must be between 0 and 1, not {getattr(self, option)}")

    @classmethod
    def of(cls, X, y, lengths=None, validation=None, test=None, **settings: Any) -> OwnData:  # noqa: N803
        """From arrays: X [rows, steps] or [rows, steps, channels], or a list of rows of different lengths, and y of
        numbers or strings. `validation` and `test` are (X, y[, lengths]) where they are not to be split off."""
        task, left_out = cls(ARRAYS, **settings), []
        given = {"train": (X, y, lengths), "validation": validation, "test": test}
        try:
            found = {
                split: series_of(*arrays, split=split, skipped=left_out if task.skip_bad else None)
                for split, arrays in given.items()
                if arrays is not None
            }
        except BadData as error:
            raise BadData(str(error).replace("--skip-bad", "skip_bad=True")) from None
        task.__dict__["collection"] = SeriesCollection(found, left_out)  # instead of what a path would give
        return task

    @cached_property
    def collection(self) -> Collection:
        collection = read_collection(Path(self.path), self.context, self.skip_bad)
        found = collection.fingerprint()
        if self.fingerprint not in ("", found):
            raise BadData(f"{self.path} is no longer what was trained on: evaluate it with --on, or train anew")
        object.__setattr__(self, "fingerprint", found)
        return collection

    def summary(self) -> str:
        """What was read, in a line."""
        splits = (self.train, self.validation, self.test)
        rows = ", ".join(f"{split.size:,} {name}" for split, name in zip(splits, SPLITS, strict=True))
        lengths = torch.cat([self.front_end.steps(split.lengths) for split in splits])  # type: ignore[attr-defined]
        low, high = int(lengths.min()), int(lengths.max())
        names = ", ".join(self.label_names[:12]) + ", …" * (self.num_classes > 12)
        steps = f"{low}" if low == high else f"{low} to {high}"
        classes, values = f"{self.num_classes} classes ({names})", self.input_shape[0]
        return f"{self.path}: {rows} rows; {classes}; {steps} steps of {values} values"

    @cached_property
    def left_out(self) -> list[str]:
        """What could not be used, and why."""
        return [*self.collection.left_out, *self._unseen]

    @cached_property
    def label_names(self) -> tuple[str, ...]:
        """The classes of the training data, in order: of number where all are numbers, else of name."""
        return in_order(set(self.collection.labels[self._index["train"]].tolist()))

    @property
    def num_classes(self) -> int:
        return len(self.label_names)

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.front_end.output_shape

    @cached_property
    def front_end(self) -> Audio | Standardise:
        return self.collection.front_end(self._index["train"])

    def _split(self, split: str, augment: bool = False) -> Rows:
        index = self._index[split]
        if len(index) == 0:
            raise BadData(f"{self.path} has no rows for the {split} split: its classes have too few")
        number = {name: label for label, name in enumerate(self.label_names)}
        labels = [number[name] for name in self.collection.labels[index]]
        return self.collection.rows(index, labels, self.front_end, augment)

    @cached_property
    def _index(self) -> dict[str, np.ndarray]:
        """The rows of each split."""
        labels, splits = self.collection.labels, self.collection.splits
        index = {split: np.flatnonzero(splits == split) for split in ("train", "validation", "test")}
        if not any(len(rows) for rows in index.values()):
            index["train"] = np.flatnonzero(splits == "")
        if len(index["train"]) == 0:
            raise BadData(f"{self.path} has no rows to train on")
        for split, share in (("test", self.test_share), ("validation", self.validation_share)):
            if len(index[split]) == 0:
                index["train"], index[split] = set_aside(index["train"], labels, share, (self.split_seed, split))
        known = set(labels[index["train"]].tolist())
        if len(known) < 2:
            raise BadData(f"{self.path} has only one class, {known.pop()!r}: there is nothing to tell apart")
        for split in ("validation", "test"):
            unseen = [row for row in index[split] if labels[row] not in known]
            if unseen and not self.skip_bad:
                raise BadData(
                    f"{self.path}: the label {str(labels[unseen[0]])!r} of the {split} split is not in the training "
                    f"data; --skip-bad goes on without its rows"
                )
            index[split] = np.setdiff1d(index[split], unseen)
        return index

    @cached_property
    def _unseen(self) -> list[str]:
        used = np.concatenate(list(self._index.values()))
        rows = np.setdiff1d(np.flatnonzero(self.collection.splits != NOISE), used)
        labels, counts = np.unique(self.collection.labels[rows], return_counts=True)
        return [
            f"{self.path}: {count} rows with the label {str(label)!r}, which is not in the training data"
            for label, count in zip(labels, counts, strict=True)
        ]


def rows_for(network: Any, path: str | Path, skip_bad: bool = False) -> Rows:
    """All rows of some data, as this network reads them and with its names for the classes.

    A label it was not taught counts as its class `unknown`, where it has one.
    """
    names, front_end = network.label_names, network.front_end
    if names is None or not isinstance(front_end, Audio | Standardise):
        raise ValueError("the network does not know how raw data become its inputs: train it on data from files")
    collection = read_collection(Path(path), front_end.context if isinstance(front_end, Audio) else 0, skip_bad, True)
    if isinstance(front_end, Audio) != isinstance(collection, Sound):
        heard, given = ("sound", "series") if isinstance(front_end, Audio) else ("series", "sound")
        raise BadData(f"the network reads {heard}, and {path} holds {given}")
    width = getattr(collection, "channels", len(front_end.mean))
    if width != len(front_end.mean):
        raise BadData(f"{path} has {width} values a step, and the network reads {len(front_end.mean)}")
    number = {name: label for label, name in enumerate(names)}
    index = np.flatnonzero(collection.splits != NOISE)
    labels = [number.get(name, number.get(OTHER, -1)) for name in collection.labels[index].tolist()]
    kept, untaught = [], []
    for row, label in zip(index, labels, strict=True):
        (kept if label >= 0 else untaught).append((row, label))
    wrong = [f"{path}: the network was not taught the label {str(collection.labels[row])!r}" for row, _ in untaught]
    if wrong and not skip_bad:
        raise BadData(f"{wrong[0]}; --skip-bad goes on without it")
    if not kept:
        raise BadData(f"{path} has no row with a label that the network was taught")
    rows = collection.rows(np.array([row for row, _ in kept]), [label for _, label in kept], front_end)
    rows.left_out = [*collection.left_out, *wrong]
    return rows


def set_aside(index: np.ndarray, labels: np.ndarray, share: float, seed: tuple[int, str]) -> tuple[Any, Any]:
    """(the rest, a share of the rows of each class): at least one row of a class that has two, and never all."""
    random = np.random.default_rng([seed[0], zlib.crc32(seed[1].encode())])
    chosen = []
    for name in sorted(set(labels[index].tolist())):
        rows = random.permutation(index[labels[index] == name])
        count = min(max(round(share * len(rows)), 1), len(rows) - 1)
        chosen.append(rows[:count])
    aside = np.sort(np.concatenate(chosen))
    return np.setdiff1d(index, aside), aside


def in_order(names: set[str]) -> tuple[str, ...]:
    try:
        return tuple(sorted(names, key=lambda name: (float(name), name)))
    except ValueError:
        return tuple(sorted(names))
