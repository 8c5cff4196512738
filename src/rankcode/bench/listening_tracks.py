"""Long tracks of sound for always-on listening, from the recordings of Speech Commands.

There are three: keywords among other words and pauses, other words one after the other, and background noise and
silence. The two with words have background noise, a minute at each of NOISE_LEVELS in turn. Words are brought to one
loudness, as automatic gain control does: in the recordings, which thousands of people made with their own microphones,
it differs by 30 dB. A split has its own speakers and its own part of each recording of noise. Tracks are the same in
every run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rankcode.data.sound_files import sound_blocks, sound_files
from rankcode.data.sources import BadData
from rankcode.tasks.sound_collection import NOISE
from rankcode.tasks.speech_commands import KEYWORDS, NOISE_PARTS, recordings

RATE = 16_000
LOUDNESS = -23.0  # of a word, in dB of full scale: the loudest 200 ms of it
NOISE_LEVELS = (None, 20, 10, 5)  # dB that noise is softer than words; None: no noise
LEVEL_SECONDS = 60  # at one level of noise
OTHER_WORD_SHARE = 0.5  # of the keywords have another word before them
MAX_PAUSE, MAX_SHORT_PAUSE = 1.0, 0.3  # seconds before a word, among keywords and among other words


class Word(NamedTuple):
    word: str
    begin: float  # seconds
    end: float
    level: int  # of the noise, a place in NOISE_LEVELS


@dataclass(frozen=True)
class Track:
    samples: np.ndarray  # float32 in −1…1
    words: tuple[Word, ...] = ()

    @property
    def hours(self) -> float:
        return len(self.samples) / RATE / 3600


def make_tracks(folder: str | Path, split: str, share: float = 1.0) -> dict[str, Track]:
    """The tracks "keywords", "other words" and "noise", the last as long as the second, from this share of a split's
    recordings."""
    folder, draw = Path(folder), np.random.default_rng(0)
    files = [each for each in recordings(folder) if each.split == split]
    keywords = [each for each in files if each.label in KEYWORDS]
    others = [each for each in files if each.label not in KEYWORDS]
    begin, end = NOISE_PARTS[split]
    noise = [_samples(folder / NOISE / name) for name in sound_files(folder / NOISE)]
    if not (keywords and others and noise):
        raise BadData(f"{folder} does not hold keywords, other words and background noise for the split {split}")
    noise = [part[int(begin * len(part)) : int(end * len(part))] for part in noise]

    def some(files: Sequence) -> list[tuple[str, np.ndarray]]:
        chosen = draw.permutation(len(files))[: max(1, round(share * len(files)))]
        return [(files[each].label, _at_loudness(_samples(folder / files[each].name))) for each in chosen]

    key_clips, other_clips = some(keywords), some(others)
    mixed = []
    for clip in key_clips:
        if draw.random() < OTHER_WORD_SHARE:
            mixed.append(other_clips[draw.integers(len(other_clips))])
        mixed.append(clip)
    spoken = _words_track(other_clips, noise, MAX_SHORT_PAUSE, draw)
    return {
        "keywords": _words_track(mixed, noise, MAX_PAUSE, draw),
        "other words": spoken,
        "noise": Track(_noise_and_silence(noise, len(spoken.samples), draw)),
    }


def _samples(path: Path) -> np.ndarray:
    return np.concatenate(list(sound_blocks(path, RATE)))


def _at_loudness(samples: np.ndarray) -> np.ndarray:
    hop = RATE // 100
    power = np.square(samples[: len(samples) // hop * hop].reshape(-1, hop)).mean(1)
    loudest = np.sort(power)[-20:].mean() if len(power) else 0.0
    return samples * np.sqrt(10 ** (LOUDNESS / 10) / max(float(loudest), 1e-9))


def _words_track(
    clips: list[tuple[str, np.ndarray]], noise: list[np.ndarray], pause: float, draw: np.random.Generator
) -> Track:
    parts, words, length = [], [], 0
    for word, samples in clips:
        silence = int(draw.uniform(0, pause) * RATE)
        begin, length = length + silence, length + silence + len(samples)
        level = begin // (LEVEL_SECONDS * RATE) % len(NOISE_LEVELS)
        words.append(Word(word, begin / RATE, length / RATE, level))
        parts += [np.zeros(silence, np.float32), samples]
    track = np.concatenate(parts)
    for number, begin in enumerate(range(0, len(track), LEVEL_SECONDS * RATE)):
        level = NOISE_LEVELS[number % len(NOISE_LEVELS)]
        if level is not None:
            minute = track[begin : begin + LEVEL_SECONDS * RATE]
            minute += _noise(noise, len(minute), LOUDNESS - level, draw)
    return Track(track.clip(-1, 1), tuple(words))


def _noise(noise: list[np.ndarray], length: int, loudness: float, draw: np.random.Generator) -> np.ndarray:
    """Pieces of the recordings of noise, each at this loudness."""
    pieces, made = [], 0
    while made < length:
        source = noise[draw.integers(len(noise))]
        size = min(len(source), int(draw.uniform(3, 8) * RATE))
        begin = draw.integers(len(source) - size + 1)
        piece = source[begin : begin + size]
        pieces.append(piece * 10 ** (loudness / 20) / max(float(np.sqrt(np.square(piece).mean())), 1e-6))
        made += size
    return np.concatenate(pieces)[:length].astype(np.float32)


def _noise_and_silence(noise: list[np.ndarray], length: int, draw: np.random.Generator) -> np.ndarray:
    """Noise at −60…−15 dB of full scale, which sets in and ends at once, and digital silence a fifth of the times."""
    pieces, made = [], 0
    while made < length:
        size = int(draw.uniform(1, 8) * RATE)
        silent = draw.random() < 0.2
        pieces.append(np.zeros(size, np.float32) if silent else _noise(noise, size, draw.uniform(-60, -15), draw))
        made += size
    return np.concatenate(pieces)[:length].clip(-1, 1)
