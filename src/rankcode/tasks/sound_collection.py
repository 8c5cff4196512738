"""Labelled recordings: a folder for each class, or the feature cache of one, as the rows of a task."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from rankcode.data.feature_cache import Frames, Recording, cached_frames, is_cache, open_cache
from rankcode.data.sound_files import folders, sound_files
from rankcode.data.sources import SPLIT_NAMES, BadData, Packed, digest, steps_of
from rankcode.front_ends.audio import Audio, LogMel
from rankcode.tasks.speech_augmentation import SpeechAugmentation
from rankcode.tasks.splits import Splits

NOISE = "_background_noise_"  # the folder of background noise, which is not a class
FRAMES_AT_ONCE = 1 << 16  # for mean and standard deviation, which take 20 times the memory of the frames: 26 MB
LISTS = {"validation": "validation_list.txt", "test": "testing_list.txt"}  # the names in Speech Commands


class SoundRows(Packed):
    """Rows of frames with the length of each recording, from which the milliseconds heard follow."""

    def __init__(
        self,
        frames: Frames,
        index: np.ndarray,
        labels: Sequence[int],
        front_end: Audio,
        augment: SpeechAugmentation | None = None,
        folder: Path | None = None,
    ):
        chosen = torch.from_numpy(index)
        super().__init__(frames.values, frames.offsets[chosen], frames.lengths[chosen], labels, front_end, augment)
        self.samples, self.names, self.folder = frames.samples[chosen], frames.names[index], folder

    def raw(self, row: int) -> Path:
        """The file of a recording."""
        if self.folder is None:
            raise BadData("the data is a feature cache, without the recordings")
        return self.folder / self.names[row]

    def fingerprint(self) -> str:
        """Changes with the names, lengths, labels or number of the recordings."""
        return digest([*self.names, self.samples.numpy(), self.labels.numpy()])

    def heard(self, steps: Tensor, first: int = 0) -> Tensor | None:
        """Milliseconds of each recording, from row `first` on, that an answer after `steps` steps depends on."""
        return self.encode.heard(steps, self.samples[first : first + len(steps)])  # type: ignore[union-attr]


class SoundCollection:
    """The recordings of a folder, each with a label and, where the folder gives it, a split."""

    def __init__(self, frames: Frames, folder: Path | None = None):
        self.frames, self.folder = frames, folder  # None: a feature cache, without the recordings
        self.log_mel, self.context = LogMel(**frames.settings["log_mel"]), int(frames.settings["context"])
        self.labels, self.splits, self.left_out = frames.labels, frames.splits, list(frames.left_out)

    @classmethod
    def read(
        cls,
        folder: Path,
        context: int,
        skip_bad: bool = False,
        log_mel: LogMel | None = None,
        recordings_of: Callable[[Path], Iterable[Recording]] | None = None,
    ) -> SoundCollection:
        """From a folder, by default one with a folder of recordings for each class, or from a feature cache of one."""
        if is_cache(folder):
            collection = cls(open_cache(folder))
            if collection.context != context:
                raise ValueError(f"{folder} was made for a context of {collection.context} frames, not {context}")
            return collection
        recordings = list((recordings_of or recordings_by_class)(folder))
        frames_of = log_mel or LogMel()
        at_least = frames_of.shortest(context)
        settings = {"log_mel": asdict(frames_of), "context": context}
        frames = cached_frames(folder, recordings, lambda path: frames_of.read(path, at_least), settings, skip_bad)
        return cls(frames, folder)

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
        frames = steps_of(self.frames.values, self.frames.lengths, index, FRAMES_AT_ONCE)
        return Audio.of(frames, self.log_mel, self.context)

    def rows(self, index: np.ndarray, labels: Sequence[int], front_end: Audio, augment: bool = False) -> SoundRows:
        augmentation = self.augmentation(front_end) if augment else None
        return SoundRows(self.frames, index, labels, front_end, augmentation, self.folder)

    def augmentation(self, front_end: Audio) -> SpeechAugmentation:
        """With the background noise in the folder, if there is any."""
        frames, offsets = self.frames, self.frames.offsets
        noise = [frames.values[offsets[k] :][: frames.lengths[k]] for k in (self.splits == NOISE).nonzero()[0]]
        return SpeechAugmentation(front_end.mean, torch.cat(noise) if noise else None)


class SoundSplits(Splits[SoundRows]):
    """The splits of one collection. A recording whose label is not a class name belongs to the last class."""

    name: ClassVar[str]
    label_names: ClassVar[tuple[str, ...]]

    @cached_property
    @abstractmethod
    def sound(self) -> SoundCollection: ...

    @cached_property
    def front_end(self) -> Audio:
        return self.sound.front_end(self._index("train"))

    def _index(self, split: str) -> np.ndarray:
        index = np.flatnonzero(self.sound.splits == split)
        if len(index) == 0:
            raise BadData(f"the data of {self.name} has no recording for the {split} split")
        return index

    def _split(self, split: str, augment: bool = False) -> SoundRows:
        index = self._index(split)
        number = {word: label for label, word in enumerate(self.label_names)}
        labels = [number.get(word, len(number) - 1) for word in self.sound.labels[index]]
        return self.sound.rows(index, labels, self.front_end, augment)


def recordings_by_class(folder: Path) -> Iterator[Recording]:
    """Recordings in a folder for each class, which may be in a folder for each split; in order of name.

    The split comes from the folders, from lists of validation and test files as in Speech Commands, or is ''.
    """
    inside, listed = folders(folder), listed_splits(folder)
    given = {SPLIT_NAMES.get(path.name.lower()) for path in inside if path.name != NOISE}
    by_split = "train" in given and None not in given
    for outer in inside:
        for word in folders(outer) if by_split and outer.name != NOISE else [outer]:
            for file in sound_files(word):
                name = (word.relative_to(folder) / file).as_posix()
                if word.name == NOISE:
                    split = NOISE
                elif by_split:
                    split = SPLIT_NAMES[outer.name.lower()]
                else:
                    split = "" if listed is None else listed.get(name, "train")
                yield Recording(name, word.name, split)


def listed_splits(folder: Path) -> dict[str, str] | None:
    """The split of each file in the publisher's lists; None without lists."""
    if not all((folder / name).is_file() for name in LISTS.values()):
        return None
    return {name.strip(): split for split, file in LISTS.items() for name in (folder / file).read_text().splitlines()}
