"""Files of labelled time series: finding the splits of a set, and reading them in any of the formats.

A file that cannot be read at all is an error. A bad row is an error, or it is left out and listed, as the caller
chooses. Where rows cannot differ in width (in all formats but .ts and tables in long form), steps missing at the end of
a row mean that the row is shorter.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rankcode.data.series import Options, Series, good_blocks
from rankcode.data.series_formats import ARCHIVES, BLOCK_READERS, READERS
from rankcode.data.series_formats.npy import is_labels
from rankcode.data.sources import SPLIT_NAMES, SPLITS, BadData

FORMATS = tuple(READERS)


def is_series(path: str | Path) -> bool:
    """Whether the path names a file of series, or a folder that holds one; no file is opened."""
    path = Path(path)
    return bool(_data_files(path)) if path.is_dir() else path.suffix.lower() in FORMATS


def read_series(path: str | Path, options: Options, alone: bool = False) -> dict[str, Series]:
    """The splits in a file or a folder. `alone`: read one file without the other splits beside it."""
    found: dict[str, Series] = {}
    with _reading(path):
        for split, file in _split_files(Path(path), alone).items():
            for inside, series in READERS[file.suffix.lower()](file, options).items():
                name = split if inside == "train" else inside  # the name of a file says which split it holds
                if name in found:
                    raise BadData(f"{file}: the {name} split is given twice")
                found[name] = series
                if series.columns is not None:  # the other splits have the same columns, in any order
                    options = options._replace(label=series.columns.label, channel_names=series.columns.values)
    widths = {name: series.values.shape[1] for name, series in found.items()}
    if len(set(widths.values())) > 1:
        raise BadData(f"{path}: the splits differ in channels: {', '.join(f'{n} {c}' for n, c in widths.items())}")
    return {name: found[name] for name in SPLITS if name in found}


@contextmanager
def _reading(path: str | Path) -> Iterator[None]:
    """Name the file that cannot be read."""
    try:
        yield
    except MemoryError:
        raise MemoryError(f"{path} does not fit into memory: read a part of it") from None
    except OSError as error:
        raise BadData(f"{error.filename or path}: {error.strerror or error}") from None


def read_rows(path: str | Path, options: Options) -> Iterator[tuple[str, np.ndarray]]:
    """The rows of a file or folder to predict on, each with its place: 'row 3', or 'test, row 3' if there are several
    splits. Only a .tsv and an .arff need labels. Large .npy and .parquet files are read in blocks."""
    path, options = Path(path), options._replace(labelled=False)
    if path.suffix.lower() in BLOCK_READERS and path.is_file():
        with _reading(path):
            for block in good_blocks(BLOCK_READERS[path.suffix.lower()](path, options), options.left_out):
                yield from zip(block.places, block.rows(), strict=True)
        return
    splits = read_series(path, options, alone=True)
    for split, series in splits.items():
        for place, values in zip(series.places, series.rows(), strict=True):
            yield place if len(splits) == 1 else f"{split}, {place}", values


# Which files


class DataFile(NamedTuple):
    path: Path
    format: str  # '.tsv' of GunPoint_TEST.tsv
    set: str  # 'gunpoint'
    split: str | None  # 'test'


def _data_file(path: Path) -> DataFile:
    found = re.fullmatch(rf"(.+)_({'|'.join(SPLIT_NAMES)})", path.stem, re.IGNORECASE)
    name, split = (found[1], SPLIT_NAMES[found[2].lower()]) if found else (path.stem, None)
    return DataFile(path, path.suffix.lower(), name.casefold(), split)


def _data_files(folder: Path) -> list[DataFile]:
    paths = (path for path in sorted(folder.iterdir()) if path.is_file() and not path.name.startswith("."))
    return [file for file in map(_data_file, paths) if file.format in FORMATS and not is_labels(file.path)]


def _split_files(path: Path, alone: bool) -> dict[str, Path]:
    this = _only_file(path) if path.is_dir() else _data_file(path)
    this.path.stat()  # raises if there is no such file, even if its other splits exist
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
        return {"train": this.path}  # the only rows to train on, whatever the file is called
    return {split: splits[split] for split in SPLITS if split in splits}


def _only_file(folder: Path) -> DataFile:
    """The file to train on, of the one set in a folder."""
    files = _data_files(folder)
    if not files:
        raise BadData(f"{folder}: a folder with no {', '.join(FORMATS)} file")
    files = [file for file in files if file.format in ARCHIVES] or files
    sets = {file.set for file in files}
    # The UEA archive has an .arff for each channel of X beside the whole set: XDimension1, XDimension2, …
    sets -= {name for name in sets if re.sub(r"dimension\d+$", "", name) in sets - {name}}
    files = [file for file in files if file.set in sets]
    train = [file for file in files if file.split in (None, "train")] or files
    train.sort(key=lambda file: FORMATS.index(file.format))
    if len(sets) > 1 or sum(file.format == train[0].format for file in train) > 1:
        names = ", ".join(file.path.name for file in files[:8]) + ", …" * (len(files) > 8)
        raise BadData(f"{folder}: which of its files is meant? It holds {names}")
    return train[0]
