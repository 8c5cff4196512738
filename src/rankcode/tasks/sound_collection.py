"""Labelled recordings: a folder for each class, or the feature cache of one, as the rows of a task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rankcode.data.feature_cache import Frames, Recording, cached_frames, is_cache, open_cache
from rankcode.data.sound_files import folders, sound_files
from rankcode.data.sources import Packed, digest, steps_of
from rankcode.front_ends.audio import Audio, LogMel
from rankcode.tasks.speech_augmentation import SpeechAugmentation

NOISE = "_background_noise_"  # the folder of background noise, which is no class
LISTS = {"validation": "validation_list.txt", "test": "testing_list.txt"}  # the names in Speech Commands
SPLITS = {"train": "train", "training": "train", "test": "test", "testing": "test", "validation": "validation"}
SPLITS |= {"valid": "validation", "val": "validation", "dev": "validation"}


class SoundRows(Packed):
    """Rows of frames with the length of each recording, from which the milliseconds heard follow."""

    def __init__(self, frames: Frames, index: np.ndarray, labels: Sequence[int], front_end: Audio, augment=None):
        chosen = torch.from_numpy(index)
        super().__init__(frames.values, frames.offsets[chosen], frames.lengths[chosen], labels, front_end, augment)
        self.samples, self.names = frames.samples[chosen], frames.names[index]

    def fingerprint(self) -> str:
        """Changes with the names, lengths, labels or number of the recordings."""
        return digest([*self.names, self.samples.numpy(), self.labels.numpy()])

    def heard(self, steps: Tensor, first: int = 0) -> Tensor | None:
        """Milliseconds of each recording, from row `first` on, that an answer after so many steps depends on."""
        return self.encode.heard(steps, self.samples[first : first + len(steps)])  # type: ignore[union-attr]


class SoundCollection:
    """The recordings of a folder, each with a label and, where the folder gives it, a split."""

    def __init__(self, frames: Frames):
        self.frames = frames
        self.log_mel, self.context = LogMel(**frames.settings["log_mel"]), int(frames.settings["context"])
        self.labels, self.splits, self.left_out = frames.labels, frames.splits, list(frames.left_out)

    @classmethod
    def read(
        cls,
        folder: Path,
        context: int,
        skip_bad: bool = False,
        recordings: list[Recording] | None = None,
        log_mel: LogMel | None = None,
    ) -> SoundCollection:
        """From a folder of recordings, by default one folder for each class, or from a feature cache of one."""
        if is_cache(folder):
            collection = cls(open_cache(folder))
            if collection.context != context:
                made_for = collection.context
                raise ValueError(f"{folder} was made for a context of {made_for} frames, not {context}")
            return collection
        recordings = list(recordings_by_class(folder)) if recordings is None else recordings
        frames_of = log_mel or LogMel()
        at_least = frames_of.shortest(context)
        settings = {"log_mel": asdict(frames_of), "context": context}
        return cls(cached_frames(folder, recordings, lambda path: frames_of.read(path, at_least), settings, skip_bad))

    @property
    def reads(self) -> str:
        """What a front end for these recordings reads."""
        return str(self.log_mel)

    def fingerprint(self) -> str:
        """Changes with the recordings: their names, labels, splits and lengths."""
        columns = (self.frames.names, self.labels, self.splits)
        return digest([*(part for column in columns for part in column), self.frames.samples.numpy()])

    def front_end(self, index: np.ndarray) -> Audio:
        """Standardises with the mean and standard deviation of these recordings."""
        return Audio.of(steps_of(self.frames.values, self.frames.lengths, index), self.log_mel, self.context)

    def rows(self, index: np.ndarray, labels: Sequence[int], front_end: Audio, augment: bool = False) -> SoundRows:
        return SoundRows(self.frames, index, labels, front_end, self.augmentation(front_end) if augment else None)

    def augmentation(self, front_end: Audio) -> SpeechAugmentation:
        """With the background noise in the folder, if there is any."""
        frames, offsets = self.frames, self.frames.offsets
        noise = [frames.values[offsets[k] :][: frames.lengths[k]] for k in (self.splits == NOISE).nonzero()[0]]
        return SpeechAugmentation(front_end.mean, torch.cat(noise) if noise else None)


def recordings_by_class(folder: Path) -> Iterator[Recording]:
    """Recordings in a folder for each class, which may stand in a folder for each split; in order of name.

    Lists of validation and test files as in Speech Commands are respected.
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


def listed_splits(folder: Path) -> dict[str, str] | None:
    """The split of each file in the publisher's lists; None without lists."""
    if not all((folder / name).is_file() for name in LISTS.values()):
        return None
    return {name.strip(): split for split, file in LISTS.items() for name in (folder / file).read_text().splitlines()}
