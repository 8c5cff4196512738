"""Waveforms as a network reads them (paper, section 3.4): log-mel frames, one byte a value, with context.

One code for whole recordings and for streams: a recording is a stream pushed at once. A frame is 25 ms of
sound under a Hamming window, every 10 ms, centred, so that n samples at 16 kHz give 1 + n // 160 frames. A
step of the network's input is a frame with `context` frames on either side.

Frames are kept as bytes, 0 … 255 over ln 1e-6 … 8. The bytes are what the network was trained on, so they are
part of the front end, and they make chunked and whole input exactly equal: they are worked out in float64,
where the order of summation cannot tip a byte.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from rankcode.device_constants import constant

LOWEST, HIGHEST = math.log(1e-6), 8.0  # of a byte, in ln of power
UNIT = (HIGHEST - LOWEST) / 255


@dataclass(frozen=True)
class LogMel:
    """Waveform to frames: 25 ms windows every 10 ms, power, triangular bands on the HTK mel scale, logarithm."""

    sample_rate: int = 16_000
    """Samples a second."""
    n_mels: int = 20
    """Mel bands, from 0 Hz to half the rate."""

    def __post_init__(self) -> None:
        if self.sample_rate < 1200 or self.sample_rate % 400:
            raise ValueError(f"sample_rate must be a multiple of 400 Hz, at least 1200, not {self.sample_rate}")
        if not 1 <= self.n_mels <= self.window // 4:
            raise ValueError(f"n_mels must be 1…{self.window // 4} at {self.sample_rate} Hz, not {self.n_mels}")

    @property
    def window(self) -> int:
        """Samples under a frame."""
        return self.sample_rate // 40

    @property
    def hop(self) -> int:
        """Samples from one frame to the next."""
        return self.sample_rate // 100

    def frames(self, waveform: Tensor) -> Tensor:
        """All frames of a recording: […, samples] in −1…1 to […, 1 + samples // hop, bands] bytes."""
        half = self.window // 2
        return self._frames(F.pad(waveform.double(), (half, half)))

    def start(self) -> Tensor:
        """What a stream holds before its first sample: half a window of silence."""
        return torch.zeros(self.window // 2, dtype=torch.float64)

    def push(self, samples: Tensor, held: Tensor) -> tuple[Tensor, Tensor]:
        """More samples of a stream: the frames they complete, and what is held for the next ones."""
        held = torch.cat([held, samples.to(held)])
        if len(held) < self.window:
            return torch.empty(0, self.n_mels, dtype=torch.uint8, device=held.device), held
        frames = self._frames(held)
        return frames, held[len(frames) * self.hop :]

    def finish(self, held: Tensor) -> Tensor:
        """The frames that the end of a stream completes, silence following."""
        return self.push(held.new_zeros(self.window // 2), held)[0]

    def _frames(self, samples: Tensor) -> Tensor:
        window, filters = (table.to(samples.device) for table in _tables(self.sample_rate, self.n_mels))
        spectrum = torch.fft.rfft(samples.unfold(-1, self.window, self.hop) * window)
        power = spectrum.real**2 + spectrum.imag**2
        logarithm = (power @ filters + 1e-6).log()
        return ((logarithm - LOWEST) / UNIT).round().clamp(0, 255).byte()


@cache
def _tables(rate: int, bands: int) -> tuple[Tensor, Tensor]:
    """The Hamming window, and the bands' weights [window // 2 + 1, bands]: triangles, even on the mel scale."""
    size = rate // 40
    highest = 2595 * math.log10(1 + rate / 2 / 700)
    mel = torch.linspace(0, highest, bands + 2, dtype=torch.float64)
    edges = 700 * (10 ** (mel / 2595) - 1)  # Hz
    frequency = torch.linspace(0, rate / 2, size // 2 + 1, dtype=torch.float64)[:, None]
    low, centre, high = edges[:-2], edges[1:-1], edges[2:]
    rising, falling = (frequency - low) / (centre - low), (high - frequency) / (high - centre)
    return torch.hamming_window(size, dtype=torch.float64), torch.minimum(rising, falling).clamp(min=0)


@dataclass(frozen=True)
class Audio:
    """Frames to inputs: each band standardised as in the training data, and context on either side."""

    mean: tuple[float, ...]
    """Mean of each band, in ln of power."""
    std: tuple[float, ...]
    """Standard deviation of each band."""
    log_mel: LogMel = field(default_factory=LogMel)
    context: int = 10
    """Frames on either side of a step's own."""

    def __post_init__(self) -> None:
        if isinstance(self.log_mel, dict):  # as a model file has it
            object.__setattr__(self, "log_mel", LogMel(**self.log_mel))
        if not len(self.mean) == len(self.std) == self.log_mel.n_mels:
            raise ValueError(f"mean and std must have an entry for each of {self.log_mel.n_mels} bands")

    def __call__(self, stored: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Frames [rows, frames, bands], bytes or ln of power, to inputs [rows, frames − 2 · context, features]."""
        values = power_of(stored)
        mean, deviation = (constant(tuple(part), values.dtype, values.device) for part in (self.mean, self.std))
        values = (values - mean) / deviation
        inputs = values.unfold(1, 2 * self.context + 1, 1).transpose(2, 3).flatten(2)  # frame by frame
        return inputs, None if lengths is None else self.steps(lengths)

    @property
    def output_shape(self) -> tuple[int, ...]:
        return ((2 * self.context + 1) * self.log_mel.n_mels,)

    def frames(self, waveform: Tensor) -> Tensor:
        """Frames of a recording, enough for one step at least: a shorter one is followed by silence."""
        return self.log_mel.frames(F.pad(waveform, (0, max(0, shortest(self.log_mel, self.context) - len(waveform)))))

    def steps(self, lengths: Tensor) -> Tensor:
        """Steps of recordings of so many frames."""
        return lengths - 2 * self.context

    def heard(self, steps: Tensor, samples: Tensor) -> Tensor:
        """Milliseconds of a recording of so many samples that an answer after so many steps depended on."""
        log_mel = self.log_mel
        needed = (steps - 1 + 2 * self.context) * log_mel.hop + log_mel.window // 2
        return torch.minimum(needed, samples).double() * 1000 / log_mel.sample_rate

    @classmethod
    def of(cls, frames: Iterable[Tensor], log_mel: LogMel, context: int = 10) -> Audio:
        """From the frames of the training data, bytes [frames, bands], in parts."""
        # The frames are counted by value, which is exact, takes one pass and no memory to speak of.
        counts = torch.zeros(log_mel.n_mels, 256, dtype=torch.int64)
        for part in frames:
            flat = part.long() + 256 * torch.arange(log_mel.n_mels)
            counts += torch.bincount(flat.flatten(), minlength=256 * log_mel.n_mels).view(log_mel.n_mels, 256)
        value = power_of(torch.arange(256, dtype=torch.uint8)).double()
        share = counts.double() / counts.sum(1, keepdim=True).clamp(min=1)
        mean = share @ value
        deviation = (share * (value - mean[:, None]).square()).sum(1).sqrt()
        return cls(tuple(mean.tolist()), tuple(deviation.clamp(min=UNIT).tolist()), log_mel, context)


def power_of(frames: Tensor) -> Tensor:
    """Bytes to ln of power; what is not bytes is taken to be that already."""
    return frames.float() * UNIT + LOWEST if frames.dtype == torch.uint8 else frames


def shortest(log_mel: LogMel, context: int) -> int:
    """Samples that give one step."""
    return 2 * context * log_mel.hop
