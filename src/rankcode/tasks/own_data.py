"""A user's own data: files of series, arrays, or sound files in a folder for each class.

Classes have the user's names. Where the data has no validation or test split, a share of every class is set aside for
it, chosen by a seed.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from rankcode.data.feature_cache import is_cache
from rankcode.data.series import ARRAYS, Columns, Layout, Options, series_of
from rankcode.data.series_files import FORMATS, is_series, read_series, shards_of
from rankcode.data.sound_files import folders, sound_files
from rankcode.data.sources import BadData, Packed
from rankcode.front_ends import FrontEnd
from rankcode.tasks.series_collection import SeriesCollection
from rankcode.tasks.sharded_series import read_shards
from rankcode.tasks.sound_collection import NOISE, SoundCollection
from rankcode.tasks.splits import Splits

OTHER = "unknown"  # the class for every label that a network was not trained on
Collection = SeriesCollection | SoundCollection  # labelled rows, before they are split and their labels numbered


@dataclass(frozen=True)
class OwnData(Splits[Packed]):
    """Data of your own."""

    path: str
    """A .csv, .parquet, .npz, .npy, .ts, .tsv or .arff file, a folder of such or a .txt that lists them, or a folder
    with a folder of sound files for each class."""
    validation_share: float = 0.2
    """Share of the training rows of each class used for validation, if the data has no validation split."""
    test_share: float = 0.2
    """Share of the rows of each class used for testing, if the data has no test split."""
    split_seed: int = 0
    """Seed that chooses these rows."""
    augment: bool = False
    """Augment the training recordings. For sound only."""
    context: int = 10
    """Frames on either side of a step's own. For sound only."""
    skip_bad: bool = False
    """Leave out files and rows that cannot be used, and list them in `left_out`."""
    layout: Layout = "auto"
    """Layout of an array X with three dimensions: steps-first is [rows, steps, channels], channels-first is [rows,
    channels, steps]. auto takes the first, and raises an error if that is improbable."""
    label: str | None = None
    """Column of labels in a .csv or .parquet file. Default: guessed; `columns` shows the choice."""
    fingerprint: str = field(default="", compare=False)
    """Fingerprint that the data must have. '' accepts any, and is replaced by that of the data when it is read."""

    name: ClassVar[str] = "own-data"

    def __post_init__(self) -> None:
        if not str(self.path):
            raise ValueError("path must name a file or a folder, not ''")
        object.__setattr__(self, "path", str(self.path))
        for option in ("validation_share", "test_share"):
            if not 0 < getattr(self, option) < 1:
                raise ValueError(f"{option} must be between 0 and 1, not {getattr(self, option)}")
        if self.split_seed < 0:
            raise ValueError(f"split_seed must be at least 0, not {self.split_seed}")
        if self.layout not in ("auto", "steps-first", "channels-first"):
            raise ValueError(f"layout must be auto, steps-first or channels-first, not {self.layout!r}")

    @classmethod
    def of(cls, X, y, lengths=None, validation=None, test=None, **settings: Any) -> OwnData:  # noqa: N803
        """From arrays: X [rows, steps] or [rows, steps, channels], or a list of rows of different lengths, and y of
        numbers or strings. `validation` and `test` are (X, y[, lengths]); if they are missing, rows are set aside for
        them."""
        task, left_out = cls(ARRAYS, **settings), []
        given = {"train": (X, y, lengths), "validation": validation, "test": test}
        options = Options(left_out if task.skip_bad else None, layout=task.layout)
        found = {
            split: series_of(*arrays, split=split, options=options)
            for split, arrays in given.items()
            if arrays is not None
        }
        object.__setattr__(task, "collection", task._checked(SeriesCollection.of(found, left_out)))
        return task

    @cached_property
    def collection(self) -> Collection:
        options = Options([] if self.skip_bad else None, layout=self.layout, label=self.label)
        return self._checked(read_collection(Path(self.path), self.context, options))

    def _checked(self, collection: Collection) -> Collection:
        if self.label is not None and getattr(collection, "columns", None) is None:
            raise ValueError(f"label={self.label!r} names a column of a .csv or .parquet file; {self.path} is neither")
        found = collection.fingerprint()
        if self.fingerprint not in ("", found):
            raise BadData(f"{self.path} is no longer what was trained on: evaluate it with rows_for, or train again")
        object.__setattr__(self, "fingerprint", found)
        return collection

    @property
    def columns(self) -> Columns | None:
        """The columns that a .csv or .parquet file was read from; None for other data."""
        return getattr(self.collection, "columns", None)

    def summary(self) -> str:
        """What was read, in one line."""
        splits = {"training": self.train, "validation": self.validation, "test": self.test}
        rows = ", ".join(f"{0 if split is None else split.size:,} {name}" for name, split in splits.items())
        steps = torch.cat([self.front_end.num_steps(split.lengths) for split in splits.values() if split is not None])
        low, high = int(steps.min()), int(steps.max())
        names = ", ".join(self.label_names[:12]) + ", …" * (self.num_classes > 12)
        length = f"{low}" if low == high else f"{low} to {high}"
        classes, values = f"{self.num_classes} classes ({names})", self.input_shape[0]
        line = f"{self.path}: {rows} rows; {classes}; {length} steps of {values} value{'s' * (values != 1)}"
        if self.columns is not None:
            line += f"; {self.columns}"
        if self.validation is None:
            line += "; no class has enough rows for a validation split, so training keeps the last weights"
        return line

    @cached_property
    def left_out(self) -> list[str]:
        """Rows and files that could not be used, each with the reason."""
        used = np.concatenate(list(self._index.values()))
        rows = np.setdiff1d(np.flatnonzero(self.collection.splits != NOISE), used)
        labels, counts = np.unique(self.collection.labels[rows], return_counts=True)
        unseen = [
            f"{self.path}: {count} rows with the label {str(label)!r}, which is not in the training data"
            for label, count in zip(labels, counts, strict=True)
        ]
        return [*self.collection.left_out, *unseen]

    @cached_property
    def label_names(self) -> tuple[str, ...]:
        """The classes of the training data: in numerical order if all are numbers, otherwise in order of name."""
        return in_order(set(self.collection.labels[self._index["train"]].tolist()))

    @property
    def num_classes(self) -> int:
        return len(self.label_names)

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.front_end.output_shape

    @cached_property
    def front_end(self) -> FrontEnd:
        return self.collection.front_end(self._index["train"])

    def _split(self, split: str, augment: bool = False) -> Packed | None:  # type: ignore[override]
        """A split; None for a validation or test split without rows."""
        index = self._index[split]
        if len(index) == 0:
            return None
        number = {name: label for label, name in enumerate(self.label_names)}
        labels = [number[name] for name in self.collection.labels[index]]
        return self.collection.rows(index, labels, self.front_end, augment)  # type: ignore[arg-type]

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
                    f"data; skip_bad=True leaves its rows out"
                )
            index[split] = np.setdiff1d(index[split], unseen)
        return index


def rows_for(network: Any, path: str | Path, skip_bad: bool = False) -> Packed:
    """All rows of some data, with the front end and class numbers of a network, to evaluate it.

    A label that the network was not trained on counts as its class `unknown`, if it has one.
    """
    names, front_end = network.label_names, network.front_end
    if names is None or front_end is None:
        raise ValueError("the network has no front end for raw data: train it on data from files")
    options = Options(
        [] if skip_bad else None,
        channels=front_end.output_shape[0],
        label=getattr(front_end, "label_column", None),
        channel_names=getattr(front_end, "channel_names", ()),
    )
    collection = read_collection(Path(path), getattr(front_end, "context", 0), options, True, front_end)
    if collection.reads != front_end.reads:
        raise BadData(f"the network reads {front_end.reads}, and {path} holds {collection.reads}")
    number = {name: label for label, name in enumerate(names)}
    index = np.flatnonzero(collection.splits != NOISE)
    labels = np.array([number.get(name, number.get(OTHER, -1)) for name in collection.labels[index].tolist()])
    unknown = collection.labels[index[labels < 0]]
    wrong = [f"{path}: the network was not trained on the label {str(label)!r}" for label in unknown]
    if wrong and not skip_bad:
        raise BadData(f"{wrong[0]}; skip_bad=True leaves its rows out")
    if len(wrong) == len(index):
        raise BadData(f"{path} has no row with a label that the network was trained on")
    rows = collection.rows(index[labels >= 0], labels[labels >= 0].tolist(), front_end)
    rows.left_out = [*collection.left_out, *wrong]
    return rows


def read_collection(
    path: Path, context: int, options: Options, alone: bool = False, front_end: FrontEnd | None = None
) -> Collection:
    """The labelled rows at a path. `alone`: read one file, not the other splits beside it. `front_end` is that of the
    network that reads them, and determines the frames of sound."""
    if not path.exists():
        raise FileNotFoundError(f"there is no file or folder {path} (data=… says where the data of a run is now)")
    if is_cache(path) or (path.is_dir() and any(True for each in folders(path) for _ in sound_files(each))):
        skip_bad = options.left_out is not None
        return SoundCollection.read(path, context, skip_bad, log_mel=getattr(front_end, "log_mel", None))
    if shards := shards_of(path):
        return read_shards(path, shards, options, front_end)
    if is_series(path):
        return SeriesCollection.of(read_series(path, options, alone), options.left_out or [], front_end)
    raise BadData(
        f"{path} is not data that rankcode reads: {', '.join(FORMATS)} files, a folder with one data set of these, or "
        f"a folder that holds a folder of sound files for each class"
    )


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
    """In numerical order if all are numbers, otherwise in order of name."""
    try:
        return tuple(sorted(names, key=lambda name: (float(name), name)))
    except ValueError:
        return tuple(sorted(names))
