"""Google Speech Commands (paper, sections 3.4 and B.4), v0.01 or v0.02: ten keywords, and every other word.

A speaker is in one split only, given by the publisher's lists or else by the publisher's hash of the speaker.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from rankcode.data.downloads import data_folder
from rankcode.data.feature_cache import Recording
from rankcode.front_ends.audio import LogMel
from rankcode.tasks.sound_collection import SoundCollection, SoundSplits, recordings_by_class

KEYWORDS = ("yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go")
NOISE_PARTS = {"train": (0.0, 0.8), "validation": (0.8, 0.9), "test": (0.9, 1.0)}  # of each recording of noise


@dataclass(frozen=True)
class SpeechCommands(SoundSplits):
    """Which of ten keywords is spoken, or is it another word? A second of speech, 81 steps."""

    data: str | None = None
    """Folder as published, or a feature cache of it. Default: speech-commands in the folder RANKCODE_DATA."""
    augment: bool = False
    """Augment the training recordings: shift, scale and filter them, add noise and mask parts."""
    context: int = 10
    """Frames on either side of a step's own."""
    skip_bad: bool = False
    """Leave out files that cannot be used, and list them in `left_out`."""

    name: ClassVar[str] = "speech-commands"
    num_classes: ClassVar[int] = len(KEYWORDS) + 1
    label_names: ClassVar[tuple[str, ...]] = (*KEYWORDS, "unknown")

    def __post_init__(self) -> None:
        if self.context < 0:
            raise ValueError(f"context must be at least 0, not {self.context}")

    @property
    def input_shape(self) -> tuple[int, ...]:
        return ((2 * self.context + 1) * LogMel().n_mels,)

    @property
    def folder(self) -> Path:
        return data_folder() / "speech-commands" if self.data is None else Path(self.data)

    @cached_property
    def sound(self) -> SoundCollection:
        """All recordings, the background noise included."""
        return SoundCollection.read(self.folder, self.context, self.skip_bad, recordings_of=recordings)

    @property
    def left_out(self) -> list[str]:
        """Files that could not be used, each with the reason."""
        return self.sound.left_out


def recordings(folder: Path) -> Iterator[Recording]:
    """The recordings of a folder as published, in order of name, each with its word and split."""
    if not any((folder / word).is_dir() for word in KEYWORDS):
        raise FileNotFoundError(
            f"{folder} does not hold Speech Commands, folders of WAV files by word: get it with "
            f'rc.data.download("speech-commands", "{folder}"), or name its folder with data=…'
        )
    for name, word, split in recordings_by_class(folder):
        yield Recording(name, word, split or split_by_speaker(Path(name).name))


def split_by_speaker(file_name: str) -> str:
    """The split of a recording by the publisher's rule: a hash of the speaker, who is named before `_nohash_`."""
    speaker = file_name.split("_nohash_")[0]
    most = 2**27 - 1
    percent = int(hashlib.sha1(speaker.encode()).hexdigest(), 16) % (most + 1) * (100 / most)
    return "validation" if percent < 10 else "test" if percent < 20 else "train"
