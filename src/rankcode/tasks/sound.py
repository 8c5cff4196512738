"""Recordings of a folder as rows of a data set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rankcode.data.feature_cache import Frames, Recording, cached_frames, is_cache, open_cache
from rankcode.data.sound_files import SUFFIXES
from rankcode.data.sources import Packed, digest
from rankcode.front_ends.audio import Audio, LogMel
from rankcode.tasks.speech_augmentation import SpeechAugmentation

NOISE = "_background_noise_"  # the folder of recordings that are no example of anything
LISTS = {"validation": "validation_list.txt", "test": "testing_list.txt"}  # as Speech Commands has them
SPLITS = {"train": "train", "training": "train", "test": "test", "testing": "test", "validation": "validation"}
SPLITS |= {"valid": "validation", "val": "validation", "dev": "validation"}


class SoundRows(Packed):
    """Some recordings; knows how long they are, so that steps can be told in milliseconds heard."""

    def __init__(self, frames: Frames, index: np.ndarray, labels: Sequence[int], front_end: Audio, augment=None):
        chosen = torch.from_numpy(index)
        super().__init__(frames.values, frames.offsets[chosen], frames.lengths[chosen], labels, front_end, augment)
        self.samples, self.names = frames.samples[chosen], frames.names[index]

    def fingerprint(self) -> str:
        """Changes with the names, lengths, labels or number of the recordings."""
        return digest([*self.names, repr(self.samples.tolist()), repr(self.labels.tolist())])

    def heard(self, steps: Tensor, first: int = 0) -> Tensor:
        """Milliseconds of each recording, from the `first` on, that an answer after so many steps depended on."""
        return self.encode.heard(steps, self.samples[first : first + len(steps)])  # type: ignore[union-attr]


class Sound:
    """The recordings of a folder, from a feature cache, each with a label and, where it is given, a split."""

    def __init__(self, frames: Frames):
        self.frames, self.context = frames, frames.context
        self.labels, self.splits, self.left_out = frames.labels, frames.splits, list(frames.left_out)

    @classmethod
    def read(
        cls, folder: Path, context: int, skip_bad: bool = False, recordings: list[Recording] | None = None
    ) -> Sound:
        """From a folder of recordings, by default one folder a class, or from a feature cache of one."""
        if not is_cache(folder):
            recordings = list(by_class(folder)) if recordings is None else recordings
            return cls(cached_frames(folder, recordings, LogMel(), context, skip_bad))
        frames = open_cache(folder)
        if frames.context != context:
            raise ValueError(f"{folder} was made for a context of {frames.context} frames, not {context}")
        return cls(frames)

    def fingerprint(self) -> str:
        return digest([part for column in (self.frames.names, self.labels, self.splits) for part in column])

    def front_end(self, index: np.ndarray) -> Audio:
        """Normalised as these recordings are."""
        chosen = torch.zeros(len(self.labels), dtype=torch.bool)
        chosen[torch.from_numpy(index)] = True
        frame_chosen = chosen.repeat_interleave(self.frames.lengths)
        parts = zip(self.frames.values.split(100_000), frame_chosen.split(100_000), strict=True)
        return Audio.of((values[which] for values, which in parts), self.frames.log_mel, self.context)

    def rows(self, index: np.ndarray, labels: Sequence[int], front_end: Audio, augment: bool = False) -> SoundRows:
        return SoundRows(self.frames, index, labels, front_end, self.augmentation(front_end) if augment else None)

    def augmentation(self, front_end: Audio) -> SpeechAugmentation:
        """With the background noise that came with the recordings, if any did."""
        frames = self.frames
        noise = [frames.values[frames.offsets[k] :][: frames.lengths[k]] for k in (self.splits == NOISE).nonzero()[0]]
        return SpeechAugmentation(front_end.mean, torch.cat(noise) if noise else None)


def by_class(folder: Path) -> Iterator[Recording]:
    """Recordings in a folder for each class, or those in one for each split; in order of name.

    Lists of validation and test files, as Speech Commands has them, are honoured.
    """
    listed = listed_splits(folder)
    inside = folders(folder)
    given = {SPLITS.get(path.name.lower()) for path in inside if path.name != NOISE}
    if "train" in given and None not in given:
        for split in inside:
            for word in [split] if split.name == NOISE else folders(split):
                for name in sound_files(word):
                    own = NOISE if word.name == NOISE else SPLITS[split.name.lower()]
                    yield Recording((word.relative_to(folder) / name).as_posix(), word.name, own)
        return
    for word in inside:
        for path in sound_files(word):
            name = f"{word.name}/{path}"
            split = NOISE if word.name == NOISE else "" if listed is None else listed.get(name, "train")
            yield Recording(name, word.name, split)


def folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def sound_files(folder: Path) -> list[str]:
    """Names of the sound files in a folder and in those below it."""
    paths = (path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    inside = (path.relative_to(folder) for path in paths)
    return sorted(path.as_posix() for path in inside if not any(part.startswith(".") for part in path.parts))


def listed_splits(folder: Path) -> dict[str, str] | None:
    """Which files the publisher's lists set aside; None without them."""
    if not all((folder / name).is_file() for name in LISTS.values()):
        return None
    return {name.strip(): split for split, file in LISTS.items() for name in (folder / file).read_text().splitlines()}
