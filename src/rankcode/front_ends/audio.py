"""Sound as a network reads it (paper, section 3.4): log-mel frames, one byte per value, with context.

A frame is 25 ms of sound under a Hamming window, by default every 10 ms, centred, so that n samples at 16 kHz give
1 + n // 160 frames. A step of the network's input is a frame with `context` frames on either side.

Frames are stored as bytes, 0…255 over ln 1e-6…8. The bytes are what the network was trained on, so they are part of
the front end. They also make streamed and whole input exactly equal: they are computed in float64, where the order of
summation does not change the rounded byte.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from rankcode.data.arrays import as_tensor
from rankcode.data.sound_files import SUFFIXES, sound_blocks, sound_files
from rankcode.data.sources import BadData
from rankcode.device_constants import constant
from rankcode.front_ends.audio_step import AudioStep
from rankcode.front_ends.audio_streams import MAX_AMPLITUDE, AudioStreams
from rankcode.front_ends.protocol import FrontEnd, StoredRow, check_scale

LOWEST, HIGHEST = math.log(1e-6), 8.0  # ln of the power that bytes 0 and 255 stand for
UNIT = (HIGHEST - LOWEST) / 255
BLOCK = 1 << 18  # samples turned into frames at once: bounds the float64 intermediates to some 30 MB
MAX_CHANNELS = 16  # a 2-D array with at most this many columns is one recording [samples, channels]


@dataclass(frozen=True)
class LogMel:
    """Waveform to frames: windows of 25 ms, power, triangular bands on the HTK mel scale, logarithm."""

    sample_rate: int = 16_000
    """Samples per second."""
    n_mels: int = 20
    """Mel bands, from 0 Hz to half the sample rate."""
    hop_ms: int = 10
    """Milliseconds from one frame to the next, 10 to 25."""

    def __post_init__(self) -> None:
        if self.sample_rate < 1200 or self.sample_rate % 400:
            raise ValueError(f"sample_rate must be a multiple of 400 Hz, at least 1200, not {self.sample_rate}")
        if not 1 <= self.n_mels <= self.window // 4:
            raise ValueError(f"n_mels must be 1…{self.window // 4} at {self.sample_rate} Hz, not {self.n_mels}")
        if not 10 <= self.hop_ms <= 25 or self.sample_rate * self.hop_ms % 1000:
            raise ValueError(f"hop_ms must be 10…25, and a whole number of samples, not {self.hop_ms}")

    def __str__(self) -> str:
        return f"sound in {self.n_mels} bands at {self.sample_rate:,} Hz"

    @property
    def window(self) -> int:
        """Samples in a frame."""
        return self.sample_rate // 40

    @property
    def hop(self) -> int:
        """Samples from one frame to the next."""
        return self.sample_rate * self.hop_ms // 1000

    def shortest(self, context: int) -> int:
        """Samples that give one step with this context."""
        return 2 * context * self.hop

    def frames(self, waveform: Tensor) -> Tensor:
        """All frames of a recording: [samples] in −1…1 to [1 + samples // hop, bands] bytes."""
        return self._frames_of(waveform.split(BLOCK)).values

    def read(self, raw: Any, at_least: int = 0) -> StoredRow:
        """The frames of a sound file or a waveform; one of fewer than `at_least` samples is followed by silence."""
        if isinstance(raw, str | Path):
            return self._frames_of(map(torch.from_numpy, sound_blocks(raw, self.sample_rate)), at_least)
        return self._frames_of(_checked_waveform(raw).split(BLOCK), at_least)

    def _frames_of(self, blocks: Iterable[Tensor], at_least: int = 0) -> StoredRow:
        held, samples = self.start(), 0
        frames = bytearray()  # grows in place: a list of blocks would be in memory twice when it is joined
        for block in blocks:
            new, held = self.push(block, held)
            frames += new.numpy().tobytes()
            samples += len(block)
        new, held = self.push(torch.zeros(max(0, at_least - samples)), held)
        frames += new.numpy().tobytes() + self.finish(held).numpy().tobytes()
        return StoredRow(torch.frombuffer(frames, dtype=torch.uint8).view(-1, self.n_mels), samples)

    def start(self) -> Tensor:
        """The state of a stream before its first sample: half a window of silence."""
        return torch.zeros(self.window // 2, dtype=torch.float64)

    def push(self, samples: Tensor, held: Tensor) -> tuple[Tensor, Tensor]:
        """More samples of a stream: the frames they complete, and the samples held for the next ones."""
        held = torch.cat([held, samples.to(held)])
        if len(held) < self.window:
            return torch.empty(0, self.n_mels, dtype=torch.uint8, device=held.device), held
        frames = self.of_windows(held.unfold(0, self.window, self.hop))
        return frames, held[len(frames) * self.hop :]

    def of_windows(self, samples: Tensor) -> Tensor:
        """The frames of windows of samples: [frames, window] in float64 to [frames, bands] bytes."""
        window, filters = (table.to(samples.device) for table in self.tables())
        spectrum = torch.fft.rfft(samples * window)
        power = spectrum.real**2 + spectrum.imag**2
        return self.bytes_of(power @ filters)

    def bytes_of(self, power: Tensor) -> Tensor:
        """The power in each band, in float64, as a byte."""
        # Tensors: when the computation is exported, PyTorch rounds Python's numbers to float32.
        least, lowest, unit = (constant((value,), power.dtype, power.device) for value in (1e-6, LOWEST, UNIT))
        return (((power + least).log() - lowest) / unit).round().clamp(0, 255).byte()

    def tables(self) -> tuple[Tensor, Tensor]:
        """The window of a frame, and the weights of the bands [window // 2 + 1, bands]."""
        return _tables(self.sample_rate, self.n_mels)

    def finish(self, held: Tensor) -> Tensor:
        """The frames that the end of a stream completes, with silence after it."""
        return self.push(held.new_zeros(self.window // 2), held)[0]


@cache
def _tables(rate: int, bands: int) -> tuple[Tensor, Tensor]:
    """The Hamming window, and the weights of the bands [window // 2 + 1, bands]: triangles, even on the mel scale."""
    size = rate // 40
    highest = 2595 * math.log10(1 + rate / 2 / 700)
    mel = torch.linspace(0, highest, bands + 2, dtype=torch.float64)
    edges = 700 * (10 ** (mel / 2595) - 1)  # Hz
    frequency = torch.linspace(0, rate / 2, size // 2 + 1, dtype=torch.float64)[:, None]
    low, centre, high = edges[:-2], edges[1:-1], edges[2:]
    rising, falling = (frequency - low) / (centre - low), (high - frequency) / (high - centre)
    return torch.hamming_window(size, dtype=torch.float64), torch.minimum(rising, falling).clamp(min=0)


def _checked_waveform(raw: Any) -> Tensor:
    waveform = as_tensor(raw)
    if waveform.dim() != 1 or not waveform.is_floating_point() or len(waveform) == 0:
        raise ValueError(
            f"a waveform is [samples] of floating-point numbers in −1…1, not {waveform.dtype} {list(waveform.shape)}"
        )
    if not waveform.isfinite().all():
        raise ValueError("the waveform holds NaN or infinity")
    if (largest := float(waveform.abs().max())) > MAX_AMPLITUDE:
        raise ValueError(f"a waveform is in −1…1, not up to {largest:,.0f}: scale it first")
    return waveform


@dataclass(frozen=True)
class Audio(FrontEnd):
    """Frames to inputs: each band standardised as in the training data, with context on either side."""

    mean: tuple[float, ...]
    """Mean of each band, in ln of power."""
    std: tuple[float, ...]
    """Standard deviation of each band."""
    log_mel: LogMel = field(default_factory=LogMel)
    context: int = 10
    """Frames on either side of a step's own."""
    file_suffixes: ClassVar[tuple[str, ...]] = SUFFIXES

    def __post_init__(self) -> None:
        if not len(self.mean) == len(self.std) == self.log_mel.n_mels:
            raise ValueError(f"mean and std must have an entry for each of {self.log_mel.n_mels} bands")
        check_scale(self.mean, self.std)
        if self.context < 0:
            raise ValueError(f"context must be at least 0, not {self.context}")

    @property
    def reads(self) -> str:
        return str(self.log_mel)

    @property
    def output_shape(self) -> tuple[int, ...]:
        return ((2 * self.context + 1) * self.log_mel.n_mels,)

    def __call__(self, stored: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Frames [rows, frames, bands], bytes or ln of power, to inputs [rows, frames − 2 · context, features]."""
        values = self.standardised(stored).contiguous()
        rows, frames, bands = values.shape
        # A step's features are consecutive frames, which already stand one after the other in memory: inputs are
        # overlapping windows of `values`, not a copy 2 · context + 1 times as large.
        shape = (rows, max(0, frames - 2 * self.context), *self.output_shape)
        inputs = values.as_strided(shape, (frames * bands, bands, 1))
        return inputs, None if lengths is None else self.num_steps(lengths)

    def standardised(self, stored: Tensor) -> Tensor:
        """Frames [..., bands], bytes or ln of power, on the scale of the network's inputs."""
        values = power_of(stored)
        mean, std = (constant(tuple(part), values.dtype, values.device) for part in (self.mean, self.std))
        return (values - mean) / std

    def input_blocks(self, row: Tensor, steps: int) -> Iterator[Tensor]:
        """The inputs of one recording, frames [frames, bands], in blocks of this many steps."""
        for first in range(0, len(row) - 2 * self.context, steps):
            yield self(row[None, first : first + steps + 2 * self.context])[0]

    def num_steps(self, lengths: Tensor) -> Tensor:
        return lengths - 2 * self.context

    def rows(self, data: Any, left_out: list[str] | None = None) -> Iterable[tuple[str, Any]]:
        """A file, the sound files in a folder, a waveform [samples], or several of these."""
        if isinstance(data, str | Path):
            return _sound_files(Path(data))
        if not isinstance(data, list | tuple) and np.ndim(data) == 2 and np.shape(data)[1] <= MAX_CHANNELS:
            raise ValueError(f"a waveform is [samples], not {list(np.shape(data))}: average its channels first")
        one = not isinstance(data, list | tuple) and np.ndim(data) == 1
        return super().rows([data] if one else data)

    def read(self, raw: Any) -> StoredRow:
        """The frames of a sound file or a waveform at the sample rate of `log_mel`, enough for one step at least."""
        return self.log_mel.read(raw, self.log_mel.shortest(self.context))

    @property
    def sample_rate(self) -> int:
        return self.log_mel.sample_rate

    def stream(self, rows: int) -> AudioStreams:
        return AudioStreams(self, rows)

    def step_module(self) -> AudioStep:
        return AudioStep(self)

    def shown(self, stored: Tensor) -> Tensor:
        """The frames, each once: without context."""
        return power_of(stored)

    def heard(self, steps: Tensor, sizes: Tensor) -> Tensor:
        log_mel = self.log_mel
        needed = (steps - 1 + 2 * self.context) * log_mel.hop + log_mel.window // 2
        return torch.minimum(needed, sizes).double() * 1000 / log_mel.sample_rate

    @classmethod
    def of(cls, frames: Iterable[Tensor], log_mel: LogMel, context: int = 10) -> Audio:
        """From the frames of the training data, bytes [frames, bands], in parts."""
        # Frames are counted by value: exact, in one pass, in constant memory.
        counts = torch.zeros(log_mel.n_mels, 256, dtype=torch.int64)
        for part in frames:
            flat = part.long() + 256 * torch.arange(log_mel.n_mels)
            counts += torch.bincount(flat.flatten(), minlength=256 * log_mel.n_mels).view(log_mel.n_mels, 256)
        value = power_of(torch.arange(256, dtype=torch.uint8)).double()
        share = counts.double() / counts.sum(1, keepdim=True).clamp(min=1)
        mean = share @ value
        std = (share * (value - mean[:, None]).square()).sum(1).sqrt()
        return cls(tuple(mean.tolist()), tuple(std.clamp(min=UNIT).tolist()), log_mel, context)


def _sound_files(path: Path) -> Iterator[tuple[str, Path]]:
    """A file, or those in a folder, each with its name."""
    found = False
    for name in sound_files(path) if path.is_dir() else [""]:
        found = True
        yield str(path / name), path / name
    if not found:
        raise BadData(f"there is no sound file in {path}")


def power_of(frames: Tensor) -> Tensor:
    """Bytes to ln of power; values that are not bytes are ln of power already."""
    return frames.float() * UNIT + LOWEST if frames.dtype == torch.uint8 else frames
