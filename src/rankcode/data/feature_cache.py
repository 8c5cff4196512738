"""Frames of many recordings, or series of many files, computed once and then memory-mapped from one file.

A cache is a folder with two files. `frames.u8` holds the frames of all recordings one after the other, and `frames.f32`
or `frames.f64` the steps of all series. `index.jsonl` has a line for every 500 recordings or every file of series:
their names, labels, splits and lengths, and a key that changes with the files and the settings. While they are
computed, both files grow as `*.part`, so that an interrupted computation resumes. A cache that is incomplete, damaged,
or of other recordings or settings is computed again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from rankcode.data.arrays import as_tensor
from rankcode.data.downloads import data_folder
from rankcode.data.open_file import open_file
from rankcode.data.sources import BadData
from rankcode.progress import Progress
from rankcode.saving.files import alone_in, writing

FORMAT = 3
DTYPES = {"u8": np.uint8, "f32": np.float32, "f64": np.float64}  # by the suffix of the file of frames
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

    values: Tensor  # [frames of all recordings, bands], bytes or floats, mapped from the file: not to be written to
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


class Job(Protocol):
    """What a line of the index stands for."""

    key: str  # changes with the files and the settings
    size: int  # recordings or files

    def run(self) -> tuple[Any, dict[str, Any]]:
        """The frames as a buffer, and what the line has besides format, key and number of bytes."""
        ...


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
    starts = range(0, len(recordings), RECORDINGS_PER_LINE)
    jobs = [_Recordings(folder, recordings[at : at + RECORDINGS_PER_LINE], read, settings) for at in starts]
    threads = os.cpu_count() or 1
    return cached(folder, "u8", settings, jobs, skip_bad, progress, "recordings", threads)


def cached(
    source: Path,
    dtype: str,
    settings: Settings,
    jobs: Sequence[Job],
    skip_bad: bool,
    progress: bool = True,
    what: str = "files",
    threads: int = 1,
) -> Frames:
    """What the jobs yield for the files at `source`, from the cache, which is computed if it does not exist.

    `what` is the unit of the progress bar. No more results are in memory at once than two for each thread.
    """
    named = hashlib.sha256(json.dumps([str(source), FORMAT, settings]).encode()).hexdigest()[:12]
    cache = data_folder() / "features" / f"{source.name}-{named}"
    with alone_in(cache, wait=True):
        try:
            frames = open_cache(cache, [job.key for job in jobs], dtype)
        except BadData:
            _compute(cache, dtype, jobs, progress, what, threads)
            frames = open_cache(cache, dtype=dtype)
    if frames.left_out and not skip_bad:
        first, *others = frames.left_out
        raise BadData(f"{first}{f' (and {len(others)} more)' if others else ''}; skip_bad=True leaves it out")
    return frames


def key_of(files: Sequence[Path], *settings: Any) -> str:
    """Changes with the sizes and times of the files, and with the settings, which are JSON."""
    stats = [os.stat(file) for file in files]
    content = [FORMAT, *settings, [(stat.st_size, stat.st_mtime_ns) for stat in stats]]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def open_cache(cache: Path, keys: list[str] | None = None, dtype: str = "u8") -> Frames:
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
        with open_file(cache / f"frames.{dtype}") as file:
            there = os.fstat(file.fileno()).st_size
            if size != there:
                raise ValueError(f"{Path(file.name).name} has {there:,} bytes, not {size:,}")
            # Read-only: of a mapping that may be written to, Linux allows no more than there is memory.
            values = np.memmap(file, DTYPES[dtype], "r") if size else np.empty(0, DTYPES[dtype])
        return Frames(
            values=as_tensor(values).view(count, len(values) // max(count, 1)),
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


class _Recordings:
    """The recordings of one line of the index."""

    def __init__(self, folder: Path, recordings: Sequence[Recording], read: Read, settings: Settings):
        self.folder, self.recordings, self.read, self.settings = folder, recordings, read, settings
        self.key = key_of([folder / recording.name for recording in recordings], settings, recordings)
        self.size = len(recordings)

    def run(self) -> tuple[bytes, dict[str, Any]]:
        kept, frames, left_out = [], [], []
        for recording in self.recordings:
            try:
                values, samples = self.read(self.folder / recording.name)
            except BadData as error:
                left_out.append(str(error))
                continue
            frames.append(values.numpy().tobytes())
            kept.append([*recording, samples, len(values)])
        return b"".join(frames), {"settings": self.settings, "recordings": kept, "left_out": left_out}


def _compute(cache: Path, dtype: str, jobs: Sequence[Job], progress: bool, what: str, threads: int) -> None:
    frames_part, index_part = cache / f"frames.{dtype}.part", cache / "index.jsonl.part"
    finished = _finished(frames_part, index_part, jobs)
    done, total = sum(job.size for job in jobs[: len(finished)]), sum(job.size for job in jobs)
    left, threads_before = jobs[len(finished) :], torch.get_num_threads()
    torch.set_num_threads(1)  # the workers share the cores among themselves
    try:
        with (
            open(frames_part, "ab") as frames,
            open(index_part, "ab") as index,
            Progress(total, progress, done=done) as bar,
        ):
            frames.truncate(sum(json.loads(line)["bytes"] for line in finished))
            index.truncate(sum(len(line) for line in finished))
            for job, (content, about) in zip(left, _results(left, threads), strict=True):
                line = {"format": FORMAT, "key": job.key, "bytes": memoryview(content).nbytes, **about}
                _append(content, frames)
                _append(json.dumps(line).encode() + b"\n", index)
                done += job.size
                if bar.due(done):
                    bar.show(done, f"{done:,} of {total:,} {what}")
    finally:
        torch.set_num_threads(threads_before)
    (cache / "index.jsonl").unlink(missing_ok=True)  # an old index must not describe new frames
    for part in (frames_part, index_part):
        os.replace(part, part.with_suffix(""))


def _results(jobs: Sequence[Job], threads: int) -> Iterator[tuple[Any, dict[str, Any]]]:
    """What the jobs yield, in order, few of them ahead; with one thread, one after the other."""
    with ThreadPoolExecutor(threads) as workers:
        running: deque[Future] = deque()
        try:
            for job in jobs:
                running.append(workers.submit(job.run))
                if len(running) > 2 * (threads - 1):
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        finally:
            workers.shutdown(cancel_futures=True)


def _append(content: Any, file: BinaryIO) -> None:
    with writing(Path(file.name)):
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _finished(frames: Path, index: Path, jobs: Sequence[Job]) -> list[bytes]:
    """The lines of the index that an interrupted computation of these jobs has written."""
    try:
        lines = index.read_bytes().splitlines(keepends=True)
        whole = [line for line in lines if line.endswith(b"\n")]
        same = takewhile(lambda pair: json.loads(pair[1])["key"] == pair[0].key, zip(jobs, whole, strict=False))
        finished = [line for _, line in same]
        return finished if sum(json.loads(line)["bytes"] for line in finished) <= frames.stat().st_size else []
    except (OSError, ValueError, KeyError, TypeError):
        return []
