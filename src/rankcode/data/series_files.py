"""Files of labelled time series: finding the splits of a set, and reading them in any of the formats.

A split may be in several files, its shards. A file that cannot be read at all is an error. A bad row is an error, or it
is left out and listed, as the caller chooses. Where rows cannot differ in width (in all formats but .ts and tables in
long form), steps missing at the end of a row mean that the row is shorter.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rankcode.data.manifest import is_manifest, listed_files
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
        for split, (file, *shards) in _split_files(Path(path), alone).items():
            if shards:
                raise BadData(f"{path}: its {split} split is in several files, which are not read at once")
            for name, series in read_file(file, split, options).items():
                if name in found:
                    raise BadData(f"{file}: the {name} split is given twice")
                found[name] = series
                options = options_like(series, options)
    widths = {name: series.values.shape[1] for name, series in found.items()}
    if len(set(widths.values())) > 1:
        raise BadData(f"{path}: the splits differ in channels: {', '.join(f'{n} {c}' for n, c in widths.items())}")
    return {name: found[name] for name in SPLITS if name in found}


def read_file(file: Path, split: str, options: Options) -> dict[str, Series]:
    """The splits in a file; `split` is the one that its name says, for rows of which the file says nothing."""
    with _reading(file):
        found = READERS[file.suffix.lower()](file, options)
    return {split if inside == "train" else inside: series for inside, series in found.items()}


def options_like(series: Series, options: Options) -> Options:
    """The options for other files of the same set: a table has the same columns, in any order."""
    if series.columns is None:
        return options
    return options._replace(label=series.columns.label, channel_names=series.columns.values)


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
    splits, or 'part-1.csv, row 3'. Only a .tsv and an .arff need labels. Large .npy and .parquet files are read in
    blocks, and shards one by one."""
    path, options = Path(path), options._replace(labelled=False)
    if path.suffix.lower() in BLOCK_READERS and path.is_file():
        with _reading(path):
            for block in good_blocks(BLOCK_READERS[path.suffix.lower()](path, options), options.left_out):
                yield from zip(block.places, block.rows(), strict=True)
        return
    if shards := shards_of(path):
        for _, file in shards:
            try:
                yield from ((f"{file.name}, {place}", values) for place, values in read_rows(file, options))
            except BadData as error:
                if options.left_out is None:
                    raise
                options.left_out.append(str(error))
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
    shard: int | None = None  # 7 of part-007.csv and train-00007-of-00010.parquet


# A number at the end, of how many perhaps, or before the identifier that Spark appends.
NUMBERED = re.compile(r"(.+?)[-_.](\d+)(?:-of-\d+|-[\da-f]{8}-[\da-f-]{27}.*)?", re.IGNORECASE)


def _data_file(path: Path, folder_split: str | None = None, numbered: bool = True) -> DataFile:
    """`folder_split`: that of its folder. `numbered`: a number at the end of the name may be that of a shard."""
    number = NUMBERED.fullmatch(path.stem) if numbered else None
    name = number[1] if number else path.stem
    found = re.fullmatch(rf"(?:(.+)_)?({'|'.join(SPLIT_NAMES)})", name, re.IGNORECASE)
    split = None
    if found and (found[1] or number):
        name, split = found[1] or "", SPLIT_NAMES[found[2].lower()]
    shard = int(number[2]) if number else None
    return DataFile(path, path.suffix.lower(), name.casefold(), split or folder_split, shard)


def _data_files(folder: Path) -> list[DataFile]:
    """Those in the folder and in its folders that are called like splits, in order, shards by their number."""
    splits = {
        inside: SPLIT_NAMES[inside.name.lower()]
        for inside in folder.iterdir()
        if inside.is_dir() and inside.name.lower() in SPLIT_NAMES
    }
    paths = {
        path: split
        for inside, split in {folder: None, **splits}.items()
        for path in sorted(inside.iterdir())
        if path.suffix.lower() in FORMATS and path.is_file() and path.name[0] != "." and not is_labels(path)
    }
    files = [_data_file(path, split) for path, split in paths.items()]
    places = Counter((file.format, file.set, file.split) for file in files if file.shard is not None)
    sharded = {(form, name) for (form, name, _), count in places.items() if count > 1}
    files = [
        file if (file.format, file.set) in sharded else _data_file(file.path, paths[file.path], numbered=False)
        for file in files
    ]
    return sorted(files, key=lambda file: (file.path.parent, file.set, file.shard or 0))


def _split_files(path: Path, alone: bool) -> dict[str, list[Path]]:
    this = _only_file(path) if path.is_dir() else _data_file(path, numbered=False)
    this.path.stat()  # raises if there is no such file, even if its other splits exist
    if this.format not in FORMATS:
        raise BadData(f"{path}: series are read from {', '.join(FORMATS)} or a folder that holds one")
    if alone and not path.is_dir():
        return {"train": [path]}
    splits: dict[str, list[DataFile]] = {}
    for file in _data_files(path if path.is_dir() else path.parent) if this.split or path.is_dir() else []:
        is_part = file.split or file.shard is not None or file == this
        if is_part and (file.format, file.set) == (this.format, this.set):
            split = file.split or "train"
            shards = splits.setdefault(split, [])
            shards.append(file)
            if len(shards) > 1 and any(each.shard is None for each in shards):
                raise BadData(f"{path}: {shards[0].path.name} and {file.path.name} are both for {split}")
    if "train" not in splits:  # the only rows to train on, whatever the name of the file
        return {"train": [file.path for file in splits.get(this.split or "train", [this])]}
    return {split: [file.path for file in splits[split]] for split in SPLITS if split in splits}


def shards_of(path: Path) -> list[tuple[str, Path]]:
    """The split and path of each file, if a split of a set is in several files or the path is a list of files."""
    found: dict[str, list[Path]] = {}
    if path.is_dir():
        found = _split_files(path, alone=True) if is_series(path) else {}
        found = found if any(len(shards) > 1 for shards in found.values()) else {}
    elif is_manifest(path, FORMATS) and Path(next(listed_files(path), "")).suffix.lower() in FORMATS:
        for file in map(Path, listed_files(path)):
            if file.suffix.lower() not in FORMATS or not file.is_file():
                raise BadData(f"{path} lists {file}, which is not a file of series: {', '.join(FORMATS)}")
            split = _data_file(file, SPLIT_NAMES.get(file.parent.name.lower())).split
            found.setdefault(split or "train", []).append(file)
        if "train" not in found:  # the only rows, whatever the names of the files
            found = {"train": [file for split in SPLITS for file in found.get(split, ())]}
    return [(split, file) for split in SPLITS for file in found.get(split, ())]


def _only_file(folder: Path) -> DataFile:
    """The file to train on, the first if there are several, of the one set in a folder."""
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
    alike = [file for file in train if file.format == train[0].format]
    if len(sets) > 1 or (len(alike) > 1 and any(file.shard is None for file in alike)):
        names = ", ".join(file.path.name for file in files[:8]) + ", …" * (len(files) > 8)
        shards = "; the files of one set end in numbers: part-000.csv, part-001.csv, …"
        raise BadData(f"{folder}: which of its files is meant? It holds {names}{shards}")
    return train[0]
