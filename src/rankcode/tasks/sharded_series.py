"""Series in many files, shards, which may together be larger than the memory.

The shards are read one after the other, and their rows are written to a cache that is mapped into memory, so that all
processes of a machine share them. Only names, labels and lengths are kept in the memory of each process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rankcode.data.arrays import as_tensor
from rankcode.data.feature_cache import DTYPES, cached, key_of
from rankcode.data.series import Columns, NoGoodRow, Options, Series
from rankcode.data.series_files import options_like, read_file
from rankcode.data.series_formats.npy import label_file
from rankcode.data.sources import BadData
from rankcode.front_ends.protocol import FrontEnd
from rankcode.front_ends.standardise import Standardise
from rankcode.tasks.series_collection import SeriesCollection, in_blocks


class NeedsFloat64(Exception):  # noqa: N818 (it is no error of the user)
    """A shard has a channel that varies too little around its mean for float32."""


def read_shards(
    path: Path, shards: Sequence[tuple[str, Path]], options: Options, front_end: FrontEnd | None = None
) -> SeriesCollection:
    """The rows of all shards, given by their splits and paths, as if they were in one file."""
    path = path.resolve()
    if front_end is not None:
        return _collected(path, shards, options, "f64" if front_end.needs_float64 else "f32", check=False)
    try:
        return _collected(path, shards, options, "f32", check=True)
    except NeedsFloat64:
        return _collected(path, shards, options, "f64", check=False)


def _collected(
    path: Path, shards: Sequence[tuple[str, Path]], options: Options, dtype: str, check: bool
) -> SeriesCollection:
    settings = {"label": options.label, "layout": options.layout, "channels": options.channels, "dtype": dtype}
    first = cache(lambda: _First.read(*shards[0], options))  # not read if all are in the cache
    jobs = [_Shard(split, file, first, dtype, check, settings) for split, file in shards]
    frames = cached(path, dtype, settings, jobs, skip_bad=options.left_out is not None)
    ids = frames.names[frames.names != ""]
    if len(set(ids.tolist())) < len(ids):
        names, counts = np.unique(ids, return_counts=True)
        name = names[counts > 1][0]
        raise BadData(f"{path}: the {name} is in several files: all steps of a series must be in the same")
    columns = frames.settings["columns"]
    if columns is not None:
        columns = Columns(**columns | {"values": tuple(columns["values"])})
    one_split = len(set(frames.splits.tolist())) == 1
    splits = np.full(len(frames.splits), "") if one_split else frames.splits
    return SeriesCollection(frames.values, frames.lengths, frames.labels, splits, columns, list(frames.left_out))


class _First(NamedTuple):
    """The first shard, which the others resemble."""

    file: Path
    options: Options  # for the others
    channels: int
    columns: Columns | None

    @classmethod
    def read(cls, split: str, file: Path, options: Options) -> _First:
        left_out = None if options.left_out is None else []
        series = next(iter(read_file(file, split, options._replace(left_out=left_out)).values()))
        return cls(file, options_like(series, options), series.values.shape[1], series.columns)


class _Shard:
    """A line of the index of the cache."""

    size = 1

    def __init__(
        self, split: str, file: Path, first: Callable[[], _First], dtype: str, check: bool, settings: dict[str, Any]
    ):
        self.split, self.file, self.first, self.dtype, self.check = split, file, first, dtype, check
        files = [file, *([label_file(file)] if file.suffix.lower() == ".npy" else [])]
        self.key = key_of(files, str(file), split, settings)

    def run(self) -> tuple[np.ndarray, dict[str, Any]]:
        _, options, channels, columns = self.first()
        left_out = None if options.left_out is None else []
        try:
            found = read_file(self.file, self.split, options._replace(left_out=left_out))
        except NoGoodRow as error:
            if left_out is None:
                raise
            left_out, found = left_out or [str(error)], {}
        steps = [self._steps(series) for series in found.values()]
        values = steps[0] if len(steps) == 1 else np.concatenate([*steps, np.empty((0, channels))])
        kept = [
            [place if place.startswith("id ") else "", label, split, int(length), int(length)]
            for split, series in found.items()
            for place, label, length in zip(series.places, series.labels, series.lengths, strict=True)
        ]
        settings = {"columns": None if columns is None else asdict(columns)}
        about = {"settings": settings, "recordings": kept, "left_out": left_out or []}
        return np.ascontiguousarray(values, DTYPES[self.dtype]), about

    def _steps(self, series: Series) -> np.ndarray:
        values, first = series.values, self.first()
        if values.shape[1] != first.channels:
            there = f"{self.file} has {values.shape[1]} channels, and {first.file.name} has {first.channels}"
            raise BadData(f"{there}: the files of a set must have the same")
        is_wide = values.dtype == np.float64 and self.dtype == "f32"
        if is_wide and self.check and Standardise.of(in_blocks(as_tensor(values))).needs_float64:
            raise NeedsFloat64
        return values
