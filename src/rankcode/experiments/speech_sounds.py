"""The recordings that the pretrained network "speech-commands" is trained on, and their augmentation."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rankcode.data.sound_files import sound_blocks
from rankcode.front_ends.audio import HIGHEST, LOWEST, LogMel
from rankcode.tasks.sound_collection import NOISE
from rankcode.tasks.speech_commands import KEYWORDS, NOISE_PARTS, recordings

LABELS = (*KEYWORDS, "unknown", "silence")
UNKNOWN, SILENCE = len(KEYWORDS), len(KEYWORDS) + 1
SECOND = 16_000  # samples
LOG_MEL = LogMel(n_mels=40, hop_ms=20)
VOICE = "dude_miaowing"  # the recording of background noise with a voice in it


class Mix(NamedTuple):
    """What recordings are mixed with when they are augmented."""

    silent: float = 0.08  # share of the rows that become silence
    follows: float = 0.3  # share of the rows that follow the end of another recording
    noise_ratios: tuple[float, float] = (-5.0, 30.0)  # level of a recording, pauses included, over noise, in dB
    hard_silence: bool = False  # louder noise as silence, more often with a voice in it, and synthetic noise


class Sounds(NamedTuple):
    """Recordings of at most a second, and background noise."""

    samples: Tensor  # [recordings, SECOND], int16, zeros after the end
    lengths: Tensor  # [recordings]
    labels: Tensor  # [recordings]
    noise: Tensor  # [samples], float32
    voice: Tensor  # [samples], the noise with a voice in it

    @classmethod
    def read(cls, folder: Path, split: str = "train") -> Sounds:
        samples, lengths, labels, noise = [], [], [], {}
        for name, word, own_split in recordings(folder):
            if own_split not in (split, NOISE):
                continue
            sound = np.concatenate(list(sound_blocks(folder / name, SECOND)))
            if own_split == NOISE:
                begin, end = (int(part * len(sound)) for part in NOISE_PARTS[split])
                noise[Path(name).stem] = torch.from_numpy(sound[begin:end])
                continue
            sound = (sound[:SECOND] * 32767).astype(np.int16)
            samples.append(torch.from_numpy(np.pad(sound, (0, SECOND - len(sound)))))
            lengths.append(len(sound))
            labels.append(KEYWORDS.index(word) if word in KEYWORDS else UNKNOWN)
        noises = torch.cat(list(noise.values())), noise[VOICE]
        return cls(torch.stack(samples), torch.tensor(lengths), torch.tensor(labels), *noises)

    def to(self, device: torch.device) -> Sounds:
        return Sounds(*(part.to(device) for part in self))


def log_mel(samples: Tensor) -> Tensor:
    """Samples [rows, samples] to ln of power [rows, frames, bands], as `LogMel` in float32 and without rounding."""
    window, filters = (table.to(samples) for table in LOG_MEL.tables())
    half = LOG_MEL.window // 2
    spectrum = torch.fft.rfft(F.pad(samples, (half, half)).unfold(1, LOG_MEL.window, LOG_MEL.hop) * window)
    return ((spectrum.real**2 + spectrum.imag**2) @ filters + 1e-6).log().clamp(LOWEST, HIGHEST)


def synthetic_noise(count: int, generator: torch.Generator) -> Tensor:
    """Coloured noise [count, SECOND], from white to brown, some of it with a tone that swells and fades."""
    device = generator.device
    slope, pitch, speed, volume, toned = torch.rand(5, count, 1, generator=generator, device=device)
    white = torch.randn(count, SECOND, generator=generator, device=device)
    hertz = torch.fft.rfftfreq(SECOND, 1 / SECOND, device=device).clamp(min=40)
    coloured = torch.fft.irfft(torch.fft.rfft(white) * (hertz / 40) ** (-1.2 * slope), SECOND)
    coloured = 0.1 * coloured / coloured.square().mean(1, keepdim=True).sqrt()
    angle = 2 * math.pi * torch.arange(SECOND, device=device) / SECOND
    tone = (80 * 50**pitch * angle).sin() * 0.1 * (1 + (8 * speed * angle).sin())
    return coloured * volume + tone * (toned < 0.4)


def augmented(sounds: Sounds, rows: Tensor, generator: torch.Generator, mix: Mix) -> tuple[Tensor, Tensor]:
    """New variants of recordings as ln of power, and their labels; some of them are silence instead."""
    device, count = rows.device, len(rows)

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(shape or (count,), generator=generator, device=device)

    def some(share: float) -> Tensor:
        return uniform(0, 1) < share

    silent, follows = some(mix.silent), some(mix.follows)
    time = torch.arange(SECOND, device=device)
    labels = sounds.labels[rows].where(~silent, SILENCE)
    samples = (sounds.samples[rows].float() / 32768).where(~silent[:, None], 0.0)
    speed, shift = uniform(0.87, 1.15).where(some(0.6), 1.0), uniform(-1600, 1600)
    shift = shift.where(~follows, -uniform(0, 4000))
    place = (time - SECOND / 2) * speed[:, None] + SECOND / 2 + shift[:, None]
    left = place.floor().clamp(0, SECOND - 2).long()
    moved = torch.lerp(samples.gather(1, left), samples.gather(1, left + 1), place - left)
    samples = moved.where((place >= 0) & (place < sounds.lengths[rows, None] - 1), 0.0)
    others = sounds.samples[rows[torch.randperm(count, generator=generator, device=device)]].float() / 32768
    end = (uniform(1600, 6400) * (follows & ~silent)).long()[:, None]
    samples = samples + others.gather(1, (time + SECOND - end).clamp(max=SECOND - 1)).where(time < end, 0.0)
    samples = samples * 10 ** (uniform(-10, 6, count, 1) / 20)

    def cut(noise: Tensor) -> Tensor:
        return noise[uniform(0, len(noise) - SECOND).long()[:, None] + time]

    noise, silence_volume = cut(sounds.noise), uniform(0, 1) ** 2 * some(0.9)
    if mix.hard_silence:
        noise = torch.where((silent & some(0.35))[:, None], cut(sounds.voice), noise)
        noise = torch.where((silent & some(0.2))[:, None], synthetic_noise(count, generator), noise)
        silence_volume = uniform(0, 1) * some(0.95)
    loudness, noisiness = (part.square().mean(1).sqrt().clamp(min=1e-4) for part in (samples, noise))
    ratio = 10 ** (-uniform(*mix.noise_ratios) / 20)  # of noise to speech
    volume = (loudness / noisiness * ratio).where(some(0.7), 0.0)
    volume = torch.where(silent, silence_volume, volume)
    values = log_mel((samples + noise * volume[:, None]).clamp(-1, 1))

    bands = torch.randn(2, count, values.shape[2], generator=generator, device=device) * 0.12
    tilt = bands[0].cumsum(1)
    tilt = (tilt - tilt.mean(1, keepdim=True)).where(some(0.7)[:, None], 0.0)
    return (values + (tilt + bands[1])[:, None]).clamp(min=LOWEST), labels


def masked(inputs: Tensor, generator: torch.Generator) -> Tensor:
    """Inputs [rows, frames, bands] with a stretch of bands and two stretches of frames set to the mean, 0."""
    rows, frames, bands = inputs.shape
    for dim, size, longest in ((2, bands, bands // 6), (1, frames, frames // 12), (1, frames, frames // 12)):
        random = torch.rand(2, rows, 1, generator=generator, device=inputs.device)
        length = (random[0] * (longest + 1)).long()
        begin = (random[1] * (size - length + 1)).long()
        place = torch.arange(size, device=inputs.device)
        stretch = (place >= begin) & (place < begin + length)
        inputs = inputs.masked_fill(stretch.unsqueeze(3 - dim), 0.0)
    return inputs
