"""Frames of many recordings, worked out once and then mapped from one file.

A cache is a folder: `frames.u8`, the frames of all recordings one after the other; `index.npz`, where each of
them lies and what it is; `manifest.json`, written last, which says what the cache was made from. A cache
without a manifest, or with one that does not fit the recordings and settings of today, is made anew. The work
is done in shards that are kept until all are there, so that what was cut off goes on.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rankcode.data.downloads import data_folder
from rankcode.data.sound_files import read_audio
from rankcode.data.sources import BadData
from rankcode.front_ends.audio import LogMel, shortest
from rankcode.progress import Progress
from rankcode.saving.files import alone_in, write_whole

FORMAT = 1
SHARD = 500  # recordings


class Recording(NamedTuple):
    """One recording of a folder."""

    name: str  # path inside the folder, with forward slashes
    label: str
    split: str


@dataclass(frozen=True)
class Frames:
    """The frames of many recordings."""

    values: Tensor  # [frames of all, bands], bytes, mapped from the file
    offsets: Tensor  # [recordings]: where a recording's frames begin
    lengths: Tensor  # [recordings]: frames
    samples: Tensor  # [recordings]: samples the recording had
    names: np.ndarray
    labels: np.ndarray
    splits: np.ndarray
    log_mel: LogMel
    context: int
    left_out: tuple[str, ...]  # files that could not be used, each with the reason


def is_cache(folder: Path) -> bool:
    return (folder / "manifest.json").is_file() and (folder / "frames.u8").is_file()


def cached_frames(
    folder: Path,
    recordings: Sequence[Recording],
    log_mel: LogMel,
    context: int,
    skip_bad: bool = False,
    progress: bool = True,
) -> Frames:
    """The frames of these recordings of a folder, from the cache, which is made where it is not there.

    A file that cannot be used stops it, or, with `skip_bad`, is left out and listed.
    """
    folder = folder.resolve()
    settings = {"format": FORMAT, "log_mel": asdict(log_mel), "context": context}
    named = hashlib.sha256(json.dumps([str(folder), settings]).encode()).hexdigest()[:12]
    cache = data_folder() / "features" / f"{folder.name}-{named}"
    jobs = [_Job(folder, part, settings) for part in _shards(recordings)]
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
        raise BadData(f"{first}{f' (and {len(others)} more files)' if others else ''}; --skip-bad goes on without")
    return frames


def open_cache(cache: Path) -> Frames:
    """A finished cache, wherever it was made."""
    try:
        manifest = json.loads((cache / "manifest.json").read_text())
        if manifest["format"] != FORMAT:
            raise ValueError(f"format {manifest['format']}, not {FORMAT}")
        log_mel, context = LogMel(**manifest["log_mel"]), int(manifest["context"])
        with np.load(cache / "index.npz", allow_pickle=False) as index:
            names, labels, splits, samples = (index[key] for key in ("names", "labels", "splits", "samples"))
        lengths = 1 + np.maximum(samples, shortest(log_mel, context)) // log_mel.hop
        total, there = int(lengths.sum()) * log_mel.n_mels, (cache / "frames.u8").stat().st_size
        if total != there:
            raise ValueError(f"frames.u8 has {there:,} bytes, not {total:,}")
        values = torch.from_file(str(cache / "frames.u8"), shared=False, size=total, dtype=torch.uint8)
        left_out = tuple(manifest["left_out"])
    except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile, zlib.error) as error:
        raise BadData(f"{cache} is not a feature cache this version can read: {error}") from None
    lengths = torch.from_numpy(lengths)
    return Frames(
        values=values.view(-1, log_mel.n_mels),
        offsets=lengths.cumsum(0) - lengths,
        lengths=lengths,
        samples=torch.from_numpy(samples),
        names=names,
        labels=labels,
        splits=splits,
        log_mel=log_mel,
        context=context,
        left_out=left_out,
    )


class _Job:
    """The recordings of one shard, and a key that changes when they, their files or the settings do."""

    def __init__(self, folder: Path, recordings: Sequence[Recording], settings: dict[str, Any]):
        self.folder, self.recordings, self.settings = folder, recordings, settings
        stats = [os.stat(folder / recording.name) for recording in recordings]
        content = [settings, recordings, [(stat.st_size, stat.st_mtime_ns) for stat in stats]]
        self.key = hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def shard(self, cache: Path) -> Path:
        return cache / "shards" / f"{self.key[:32]}.npz"

    def make(self, cache: Path) -> None:
        log_mel = LogMel(**self.settings["log_mel"])
        least = shortest(log_mel, self.settings["context"])
        frames, samples, bad = [], [], []
        for recording in self.recordings:
            try:
                waveform = torch.from_numpy(read_audio(self.folder / recording.name, log_mel.sample_rate))
            except BadData as error:
                samples.append(-1)
                bad.append(str(error))
                continue
            samples.append(len(waveform))
            frames.append(log_mel.frames(F.pad(waveform, (0, max(0, least - len(waveform))))))
        buffer = io.BytesIO()
        values = torch.cat(frames).numpy() if frames else np.empty((0, log_mel.n_mels), np.uint8)
        np.savez(buffer, frames=values, samples=np.array(samples), bad=np.array(bad, dtype=str))
        write_whole(self.shard(cache), buffer.getvalue())


def _shards(recordings: Sequence[Recording]) -> Iterator[Sequence[Recording]]:
    return (recordings[first : first + SHARD] for first in range(0, len(recordings), SHARD))


def _found(cache: Path, fingerprint: str) -> Frames | None:
    try:
        made_of = json.loads((cache / "manifest.json").read_text())["fingerprint"]
        return open_cache(cache) if made_of == fingerprint else None
    except (OSError, ValueError, KeyError, TypeError):  # BadData is a ValueError
        return None


def _make(cache: Path, jobs: list[_Job], settings: dict[str, Any], fingerprint: str, progress: bool) -> None:
    (cache / "shards").mkdir(parents=True, exist_ok=True)
    (cache / "manifest.json").unlink(missing_ok=True)
    for leftover in cache.glob(".*.part"):
        leftover.unlink()
    missing = [job for job in jobs if not job.shard(cache).exists()]
    done, total = sum(len(job.recordings) for job in jobs if job not in missing), sum(len(j.recordings) for j in jobs)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # each worker is one thread; they share the cores among themselves
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


def _join(cache: Path, jobs: list[_Job], settings: dict[str, Any], fingerprint: str) -> None:
    """All shards as one cache; the manifest, which makes it one, comes last."""
    part = cache / f".frames.u8.{os.getpid()}.part"
    kept: list[Recording] = []
    samples: list[int] = []
    left_out: list[str] = []
    with open(part, "wb") as file:
        for job in jobs:
            with np.load(job.shard(cache)) as shard:
                file.write(shard["frames"].tobytes())
                left_out += shard["bad"].tolist()
                for recording, count in zip(job.recordings, shard["samples"].tolist(), strict=True):
                    if count >= 0:
                        kept.append(recording)
                        samples.append(count)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, cache / "frames.u8")
    names, labels, splits = (np.array([recording[k] for recording in kept], dtype=str) for k in range(3))
    buffer = io.BytesIO()
    np.savez_compressed(buffer, names=names, labels=labels, splits=splits, samples=np.array(samples, dtype=np.int64))
    write_whole(cache / "index.npz", buffer.getvalue())
    manifest = {**settings, "fingerprint": fingerprint, "recordings": len(kept), "left_out": left_out}
    write_whole(cache / "manifest.json", json.dumps(manifest, indent=2).encode() + b"\n")
    shutil.rmtree(cache / "shards", ignore_errors=True)
