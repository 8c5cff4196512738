"""A generated stand-in for speech, for runs without data: sounds that pass through the same front end."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch

from rankcode.data.feature_cache import Frames
from rankcode.front_ends.audio import LogMel
from rankcode.tasks.sound_collection import SoundCollection, SoundSplits

CONTEXT = 10  # frames on either side of a step's own, as in Speech Commands


@dataclass(frozen=True)
class ToneSweeps(SoundSplits):
    """Is a tone in noise rising (on), falling (off) or steady (unknown)?"""

    rows: int = 240
    """Number of training recordings; validation and test data together have as many."""
    augment: bool = False
    """Alter the training recordings."""

    name: ClassVar[str] = "tone-sweeps"
    label_names: ClassVar[tuple[str, ...]] = ("on", "off", "unknown")
    num_classes: ClassVar[int] = 3
    input_shape: ClassVar[tuple[int, ...]] = ((2 * CONTEXT + 1) * LogMel().n_mels,)

    @cached_property
    def sound(self) -> SoundCollection:
        generator, log_mel, rate = torch.Generator().manual_seed(0), LogMel(sample_rate=8_000), 8_000
        labels = torch.arange(2 * self.rows) % self.num_classes
        direction = torch.tensor([1.0, -1.0, 0.0])[labels][:, None]
        start, length = (torch.rand(2, len(labels), 1, generator=generator) * 0.2).unbind()
        second = torch.arange(rate) / rate
        into = ((second - start - 0.1) / 0.5).clamp(0, 1)  # share of the tone that has passed
        octaves = direction * 3 * (into - 0.5) + torch.rand(len(labels), 1, generator=generator) - 0.5
        phase = (2 * math.pi * 900 / rate * 2**octaves).cumsum(1)
        tone = phase.sin() * ((into > 0) & (into < 1)) * 0.1
        waveform = tone + 0.02 * torch.randn(tone.shape, generator=generator)
        samples = (rate * (1 - length[:, 0])).long()
        frames = [log_mel.frames(sound[:end]) for sound, end in zip(waveform, samples.tolist(), strict=True)]
        lengths = torch.tensor([len(each) for each in frames])
        splits = np.repeat(["train", "validation", "test"], [self.rows, self.rows // 2, self.rows - self.rows // 2])
        words = np.array(self.label_names)[labels.numpy()]
        names = np.array([f"{word}/{number}.wav" for number, word in enumerate(words)])
        settings = {"log_mel": asdict(log_mel), "context": CONTEXT}
        return SoundCollection(Frames(torch.cat(frames), lengths, samples, names, words, splits, settings))
