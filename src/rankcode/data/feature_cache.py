"""Frames of many recordings, computed once and then memory-mapped from one file.

A cache is a folder: `frames.u8` holds the frames of all recordings one after the other; `index.npz` their lengths,
names, labels and splits; `manifest.json`, written last, what the cache was computed from. A cache without a manifest,
or one that does not match the recordings and settings, is computed again. The work is done in shards, which are kept
until all are complete, so that an interrupted computation resumes.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from rankcode.data.downloads import data_folder
from rankcode.data.regular_files import open_regular, size_of
from rankcode.data.sources import BadData
from rankcode.progress import Progress
from rankcode.saving.files import alone_in, write_whole

FORMAT = 2
SHARD = 500  # recordings
INDEX = ("names", "labels", "splits", "samples", "lengths")  # the columns of index.npz
Settings = dict[str, Any]  # of the front end, as JSON
Read = Callable[[Path], tuple[Tensor, int]]  # a file to its frames [frames, bands], bytes, and its number of samples


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
    return (folder / "manifest.json").is_file() and (folder / "frames.u8").is_file()


def cached_frames(
    folder: Path,
    recordings: Sequence[Recording],
    read: Read,
    settings: Settings,
    skip_bad: bool = False,
    progress: bool = True,
) -> Frames:
    """The frames of these recordings of a folder, from the cache, which is computed if it does not exist.

    `settings` describe `read`: other settings have another cache. A file that cannot be used is an error or, with
    `skip_bad`, left out and listed.
    """
    folder = folder.resolve()
    named = hashlib.sha256(json.dumps([str(folder), FORMAT, settings]).encode()).hexdigest()[:12]
    cache = data_folder() / "features" / f"{folder.name}-{named}"
    jobs = [_Job(folder, part, read, settings) for part in _shards(recordings)]
    fingerprint = hashlib.sha256("".join(job.key for job in jobs).encode()).hexdigest()
    frames = _found(cache, fingerprint)
    if frames is None:
        with alone_in(cache, wait=True):
            frames = _found(cache, fingerprint)
            if frames is None:
                _make(cache, jobs, settings, fingerprint, progress)
                frames = open_cache(cache)
    if frames.left_out and not skip_bad:
        first, *others = frames.left_out
        raise BadData(f"{first}{f' (and {len(others)} more files)' if others else ''}; skip_bad=True leaves it out")
    return frames


def open_cache(cache: Path) -> Frames:
    """A complete cache, wherever it was computed."""
    try:
        with open_regular(cache / "manifest.json") as file:
            manifest = json.load(file)
        if manifest["format"] != FORMAT:
            raise ValueError(f"format {manifest['format']}, not {FORMAT}")
        with open_regular(cache / "index.npz") as file, np.load(file, allow_pickle=False) as index:
            names, labels, splits, samples, lengths = (index[key] for key in INDEX)
        with open_regular(cache / "frames.u8") as file:
            total, there = int(lengths.sum()) * int(manifest["bands"]), size_of(file)
        if total != there:
            raise ValueError(f"frames.u8 has {there:,} bytes, not {total:,}")
        values = torch.from_file(str(cache / "frames.u8"), shared=False, size=total, dtype=torch.uint8)
        return Frames(
            values=values.view(int(lengths.sum()), manifest["bands"]),
            lengths=torch.from_numpy(lengths),
            samples=torch.from_numpy(samples),
            names=names,
            labels=labels,
            splits=splits,
            settings=dict(manifest["settings"]),
            left_out=tuple(manifest["left_out"]),
        )
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, EOFError, BadZipFile, zlib.error) as error:
        raise BadData(f"{cache} is not a feature cache this version can read: {error}") from None


class _Job:
    """The recordings of one shard, and a key that changes when they, their files or the settings do."""

    def __init__(self, folder: Path, recordings: Sequence[Recording], read: Read, settings: Settings):
        self.folder, self.recordings, self.read = folder, recordings, read
        stats = [os.stat(folder / recording.name) for recording in recordings]
        content = [FORMAT, settings, recordings, [(stat.st_size, stat.st_mtime_ns) for stat in stats]]
        self.key = hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def shard(self, cache: Path) -> Path:
        return cache / "shards" / f"{self.key[:32]}.npz"

    def make(self, cache: Path) -> None:
        frames, samples, bad = [], [], []
        for recording in self.recordings:
            try:
                values, size = self.read(self.folder / recording.name)
            except BadData as error:
                samples.append(-1)
                bad.append(str(error))
                continue
            samples.append(size)
            frames.append(values)
        buffer = io.BytesIO()
        values = torch.cat(frames).numpy() if frames else np.empty((0, 0), np.uint8)
        lengths = np.array([len(part) for part in frames], dtype=np.int64)
        np.savez(buffer, frames=values, lengths=lengths, samples=np.array(samples), bad=np.array(bad, dtype=str))
        write_whole(self.shard(cache), buffer.getvalue())


def _shards(recordings: Sequence[Recording]) -> Iterator[Sequence[Recording]]:
    return (recordings[first : first + SHARD] for first in range(0, len(recordings), SHARD))


def _found(cache: Path, fingerprint: str) -> Frames | None:
    try:
        made_of = json.loads((cache / "manifest.json").read_text())["fingerprint"]
        return open_cache(cache) if made_of == fingerprint else None
    except (OSError, ValueError, KeyError, TypeError):  # BadData is a ValueError
        return None


def _make(cache: Path, jobs: list[_Job], settings: Settings, fingerprint: str, progress: bool) -> None:
    (cache / "shards").mkdir(parents=True, exist_ok=True)
    (cache / "manifest.json").unlink(missing_ok=True)
    for leftover in cache.glob(".*.part"):
        leftover.unlink()
    missing = [job for job in jobs if not job.shard(cache).exists()]
    done, total = sum(len(job.recordings) for job in jobs if job not in missing), sum(len(j.recordings) for j in jobs)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the workers share the cores among themselves
    workers = ThreadPoolExecutor(os.cpu_count() or 1)
    try:
        with Progress(total, progress, done=done) as bar:
            for job, _ in zip(missing, workers.map(lambda job: job.make(cache), missing), strict=True):
                done += len(job.recordings)
                if bar.due(done):
                    bar.show(done, f"{done:,} of {total:,} recordings")
    finally:
        workers.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)
    _join(cache, jobs, settings, fingerprint)


def _join(cache: Path, jobs: list[_Job], settings: Settings, fingerprint: str) -> None:
    """All shards as one cache; the manifest, which makes it valid, is written last."""
    part = cache / f".frames.u8.{os.getpid()}.part"
    kept: list[Recording] = []
    columns: dict[str, list[int]] = {"samples": [], "lengths": []}
    left_out: list[str] = []
    bands = 0
    with open(part, "wb") as file:
        for job in jobs:
            with np.load(job.shard(cache)) as shard:
                bands = max(bands, shard["frames"].shape[1])
                file.write(shard["frames"].tobytes())
                left_out += shard["bad"].tolist()
                samples = shard["samples"].tolist()
                kept += [recording for recording, size in zip(job.recordings, samples, strict=True) if size >= 0]
                columns["samples"] += [size for size in samples if size >= 0]
                columns["lengths"] += shard["lengths"].tolist()
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, cache / "frames.u8")
    index: dict[str, Any] = {name: np.array(column, dtype=np.int64) for name, column in columns.items()}
    index |= {name: np.array([recording[k] for recording in kept], dtype=str) for k, name in enumerate(INDEX[:3])}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **index)
    write_whole(cache / "index.npz", buffer.getvalue())
    manifest = {"format": FORMAT, "settings": settings, "fingerprint": fingerprint, "bands": bands}
    manifest |= {"recordings": len(kept), "left_out": left_out}
    write_whole(cache / "manifest.json", json.dumps(manifest, indent=2).encode() + b"\n")
    shutil.rmtree(cache / "shards", ignore_errors=True)
