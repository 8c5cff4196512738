"""Log-mel frames of live sound, a hop of samples at a time, in operations that can be exported.

Frames are computed in float64, like those of whole recordings, so that their bytes are the same. The Fourier transform
is two matrix multiplications (Cooley and Tukey 1965): with n = columns · i + j and k = rows · l + m, and
w = exp(−2πi / window),

    X[k] = Σ_j w^(j·k) · Σ_i x[n] · w^(columns · i · m)

Samples are real, so m ≤ rows / 2 suffices: X[window − k] has the same power as X[k].
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from rankcode.data.sound_files import sound_blocks

if TYPE_CHECKING:
    from rankcode.front_ends.audio import Audio


class AudioStepState(NamedTuple):
    samples: Tensor  # [rows, window - hop]: the last samples
    frames: Tensor | None  # [rows, 2 · context, bands]: the last frames, standardised; None without context


class AudioStep(nn.Module):
    """The newest hop of samples, [rows, hop], to the inputs of the step that it completes.

    `sequence` cuts a recording into hops, with `silence_before` zeros before its first sample and zeros after its last.
    The first `warm_up` hops complete no step.
    """

    window: Tensor  # [rows, columns]
    cosine: Tensor  # [window]
    sine: Tensor  # [window]
    inner: Tensor  # [residues, rows]: columns · i · m
    number: Tensor  # [residues, 1, columns]: k
    column: Tensor  # [columns, 1]: j
    weights: Tensor  # [residues · columns, bands]

    def __init__(self, audio: Audio):
        super().__init__()
        self.audio, log_mel = audio, audio.log_mel
        self.size, self.hop = log_mel.window, log_mel.hop
        self.input_shape, self.dtype = (self.hop,), torch.float32
        self.silence_before, self.warm_up = 2 * self.hop - self.size // 2, 1 + 2 * audio.context
        near_root = math.isqrt(self.size)
        self.columns = next(count for count in range(near_root, 0, -1) if self.size % count == 0)
        rows = self.size // self.columns
        residue, turn = torch.arange(rows // 2 + 1), torch.arange(self.columns)  # m and l
        number = rows * turn + residue[:, None]  # k: [residues, columns]
        window, filters = log_mel.tables()
        frequency = torch.minimum(number, self.size - number)
        twice = (number > self.size // 2) & ((residue == 0) | (2 * residue == rows))[:, None]  # X[window − k] is there
        weights = filters[frequency] * ~twice[:, :, None]
        angle = torch.arange(self.size, dtype=torch.float64) * (2 * math.pi / self.size)
        for name, table in {
            "window": window.view(rows, self.columns),
            "cosine": angle.cos(),
            "sine": angle.sin(),
            "inner": self.columns * torch.arange(rows) * residue[:, None] % self.size,
            "number": number[:, None],
            "column": turn[:, None],
            "weights": weights.flatten(0, 1),
        }.items():
            self.register_buffer(name, table)

    def initial_state(self, batch_size: int) -> AudioStepState:
        context, bands = self.audio.context, self.audio.log_mel.n_mels
        frames = torch.zeros(batch_size, 2 * context, bands) if context else None
        return AudioStepState(torch.zeros(batch_size, self.size - self.hop), frames)

    def forward(self, samples: Tensor, state: AudioStepState) -> tuple[Tensor, AudioStepState]:
        known = torch.cat([state.samples, samples], 1)
        frame = self.audio.standardised(self.audio.log_mel.bytes_of(self._power(known) @ self.weights))
        kept = known[:, self.hop :]
        if state.frames is None:
            return frame, AudioStepState(kept, None)
        frames = torch.cat([state.frames, frame[:, None]], 1)
        return frames.flatten(1), AudioStepState(kept, frames[:, 1:])

    def sequence(self, raw: Any) -> Tensor:
        """All hops of a sound file, or of a waveform [samples], [hops, hop]."""
        if isinstance(raw, str | Path):
            raw = np.concatenate(list(sound_blocks(raw, self.audio.sample_rate)))
        samples = torch.as_tensor(raw, dtype=self.dtype)
        hops = max(len(samples) // self.hop + 1, self.warm_up) + 1
        padded = torch.zeros(hops * self.hop)
        place = padded[self.silence_before :]
        place[: len(samples)] = samples[: len(place)]  # samples after the last frame are not read
        return padded.view(hops, self.hop)

    def _power(self, samples: Tensor) -> Tensor:
        """The power at each number k, [rows, residues · columns]. Tables are made of small ones, which is done once,
        when a graph is loaded."""
        inner = torch.stack([self.cosine[self.inner], -self.sine[self.inner]], 1).flatten(0, 1)
        turns = self.column * self.number % self.size  # [residues, columns, columns]
        cosine, sine = self.cosine[turns], self.sine[turns]
        outer = torch.cat([torch.cat([cosine, -sine], 2), torch.cat([sine, cosine], 2)], 1)
        sums = inner @ (samples.double().unflatten(1, self.window.shape) * self.window)
        spectrum = sums.unflatten(1, (-1, 1, 2)).flatten(3) @ outer  # [rows, residues, 1, 2 · columns]
        real, imaginary = (spectrum * spectrum).chunk(2, 3)
        return (real + imaginary).flatten(1)
