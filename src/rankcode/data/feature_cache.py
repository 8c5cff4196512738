"""Frames of many recordings, computed once and then memory-mapped from one file.

A cache is a folder with two files. `frames.u8` holds the frames of all recordings one after the other. `index.jsonl`
has a line for every 500 recordings: their names, labels, splits and lengths, and a key that changes with the files and
the settings. While they are computed, both files grow as `*.part`, so that an interrupted computation resumes. A cache
that is incomplete, damaged, or of other recordings or settings is computed again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rankcode.data.downloads import data_folder
from rankcode.data.open_file import open_file
from rankcode.data.sources import BadData
from rankcode.progress import Progress
from rankcode.saving.files import alone_in, writing

FORMAT = 3
RECORDINGS_PER_LINE = 500  # of the index
Settings = dict[str, Any]  # of the front end, as JSON
Read = Callable[[Path], tuple[Tensor, int]]  # from a file to its frames [frames, bands], bytes, and number of samples


class Recording(NamedTuple):
    """A recording in a folder."""

    name: str  # path relative to the folder, with forward slashes
    label: str
    split: str


@dataclass(frozen=True)
class Frames:
    """The frames of many recordings."""

    values: Tensor  # [frames of all recordings, bands], bytes, mapped from the file
    lengths: Tensor  # [recordings]: frames of each
    samples: Tensor  # [recordings]: samples of each
    names: np.ndarray
    labels: np.ndarray
    splits: np.ndarray
    settings: Settings
    left_out: tuple[str, ...] = ()  # files that could not be used, each with the reason

    @property
    def offsets(self) -> Tensor:
        """[recordings]: where the frames of each recording begin."""
        return self.lengths.cumsum(0) - self.lengths


def is_cache(folder: Path) -> bool:
    return (folder / "index.jsonl").is_file() and (folder / "frames.u8").is_file()


def cached_frames(
    folder: Path,
    recordings: Sequence[Recording],
    read: Read,
    settings: Settings,
    skip_bad: bool = False,
    progress: bool = True,
) -> Frames:
    """The frames of these recordings of a folder, from the cache, which is computed if it does not exist.

    `settings` describe `read`: different settings have different caches. A file that cannot be used is an error or,
    with `skip_bad`, left out and listed.
    """
    folder = folder.resolve()
    named = hashlib.sha256(json.dumps([str(folder), FORMAT, settings]).encode()).hexdigest()[:12]
    cache = data_folder() / "features" / f"{folder.name}-{named}"
    starts = range(0, len(recordings), RECORDINGS_PER_LINE)
    jobs = [_Job(folder, recordings[at : at + RECORDINGS_PER_LINE], read, settings) for at in starts]
    with alone_in(cache, wait=True):
        try:
            frames = open_cache(cache, [job.key for job in jobs])
        except BadData:
            _compute(cache, jobs, progress)
            frames = open_cache(cache)
    if frames.left_out and not skip_bad:
        first, *others = frames.left_out
        raise BadData(f"{first}{f' (and {len(others)} more files)' if others else ''}; skip_bad=True leaves it out")
    return frames


def open_cache(cache: Path, keys: list[str] | None = None) -> Frames:
    """A complete cache, wherever it was computed; if `keys` are given, its lines must have these keys."""
    try:
        with open_file(cache / "index.jsonl") as file:
            lines = [json.loads(line) for line in file]
        if lines[0]["format"] != FORMAT:
            raise ValueError(f"format {lines[0]['format']}, not {FORMAT}")
        if keys is not None and keys != [line["key"] for line in lines]:
            raise ValueError("it is of other recordings")
        rows = [row for line in lines for row in line["recordings"]]
        names, labels, splits, samples, lengths = zip(*rows, strict=True) if rows else ((),) * 5
        size, count = sum(line["bytes"] for line in lines), sum(lengths)
        with open_file(cache / "frames.u8") as file:
            there = os.fstat(file.fileno()).st_size
        if size != there:
            raise ValueError(f"frames.u8 has {there:,} bytes, not {size:,}")
        values = torch.from_file(str(cache / "frames.u8"), shared=False, size=size, dtype=torch.uint8)
        return Frames(
            values=values.view(count, size // max(count, 1)),
            lengths=torch.tensor(lengths, dtype=torch.int64),
            samples=torch.tensor(samples, dtype=torch.int64),
            names=np.array(names, dtype=str),
            labels=np.array(labels, dtype=str),
            splits=np.array(splits, dtype=str),
            settings=dict(lines[0]["settings"]),
            left_out=tuple(reason for line in lines for reason in line["left_out"]),
        )
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, IndexError) as error:
        raise BadData(f"{cache} is not a feature cache this version can read: {error}") from None


class _Job:
    """The recordings of one line of the index, and a key that changes when they, their files or the settings do."""

    def __init__(self, folder: Path, recordings: Sequence[Recording], read: Read, settings: Settings):
        self.folder, self.recordings, self.read, self.settings = folder, recordings, read, settings
        stats = [os.stat(folder / recording.name) for recording in recordings]
        content = [FORMAT, settings, recordings, [(stat.st_size, stat.st_mtime_ns) for stat in stats]]
        self.key = hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def run(self) -> tuple[bytes, bytes]:
        """The frames of the recordings, and their line of the index."""
        kept, frames, left_out = [], [], []
        for recording in self.recordings:
            try:
                values, samples = self.read(self.folder / recording.name)
            except BadData as error:
                left_out.append(str(error))
                continue
            frames.append(values.numpy().tobytes())
            kept.append([*recording, samples, len(values)])
        content = b"".join(frames)
        line = {"format": FORMAT, "key": self.key, "settings": self.settings, "bytes": len(content)}
        return content, json.dumps(line | {"recordings": kept, "left_out": left_out}).encode() + b"\n"


def _compute(cache: Path, jobs: list[_Job], progress: bool) -> None:
    finished = _finished(cache, jobs)
    done, total = sum(len(job.recordings) for job in jobs[: len(finished)]), sum(len(job.recordings) for job in jobs)
    left, threads, workers = jobs[len(finished) :], torch.get_num_threads(), ThreadPoolExecutor(os.cpu_count() or 1)
    torch.set_num_threads(1)  # the workers share the cores among themselves
    try:
        with (
            open(cache / "frames.u8.part", "ab") as frames,
            open(cache / "index.jsonl.part", "ab") as index,
            Progress(total, progress, done=done) as bar,
        ):
            frames.truncate(sum(json.loads(line)["bytes"] for line in finished))
            index.truncate(sum(len(line) for line in finished))
            for job, (content, line) in zip(left, workers.map(_Job.run, left), strict=True):
                _append(content, frames)
                _append(line, index)
                done += len(job.recordings)
                if bar.due(done):
                    bar.show(done, f"{done:,} of {total:,} recordings")
    finally:
        workers.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)
    (cache / "index.jsonl").unlink(missing_ok=True)  # an old index must not describe new frames
    for name in ("frames.u8", "index.jsonl"):
        os.replace(cache / f"{name}.part", cache / name)


def _append(content: bytes, file: BinaryIO) -> None:
    with writing(Path(file.name)):
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _finished(cache: Path, jobs: list[_Job]) -> list[bytes]:
    """The lines of the index that an interrupted computation of these jobs has written."""
    try:
        lines = (cache / "index.jsonl.part").read_bytes().splitlines(keepends=True)
        whole = [line for line in lines if line.endswith(b"\n")]
        same = takewhile(lambda pair: json.loads(pair[1])["key"] == pair[0].key, zip(jobs, whole, strict=False))
        finished = [line for _, line in same]
        there = (cache / "frames.u8.part").stat().st_size
        return finished if sum(json.loads(line)["bytes"] for line in finished) <= there else []
    except (OSError, ValueError, KeyError, TypeError):
        return []
