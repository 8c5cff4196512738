"""Augmentation of recordings, on log-mel frames and on the training device: shifted in time, louder or softer, with
reweighted bands, background noise and masked parts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rankcode.data.sources import copy_on
from rankcode.device_constants import constant
from rankcode.front_ends.audio import LOWEST, power_of


@dataclass(frozen=True)
class SpeechAugmentation:
    """Called with frames [rows, frames, bands], their lengths and a generator; returns them as ln of power."""

    mean: tuple[float, ...]
    """Mean of each band, which replaces masked values."""
    noise: Tensor | None = None
    """Frames of background noise [frames, bands]; None: no noise is added."""
    shift: int = 10
    """Largest shift in time, in frames."""
    gain: float = 0.5
    """Largest change in loudness, in ln of power: 0.5 is 2 dB."""
    band_gain: float = 0.15
    """Standard deviation of the change of each band."""
    noise_share: float = 0.3
    """Share of recordings to which noise is added."""
    noise_volume: float = 0.1
    """Largest amplitude of the noise, relative to its recording."""
    band_mask: int = 4
    """Largest number of masked bands."""
    time_mask: int = 8
    """Largest number of masked frames, in each of two stretches."""

    def __call__(self, stored: Tensor, lengths: Tensor | None, generator: torch.Generator) -> Tensor:
        rows, frames, bands = stored.shape
        device = stored.device

        def uniform(*shape: int) -> Tensor:
            return torch.rand(shape, generator=generator, device=device)

        frame = torch.arange(frames, device=device)
        last = frame[-1] if lengths is None else lengths[:, None] - 1
        # The frames that a shift leaves empty are mirrored at the edge.
        moved = (frame - (uniform(rows, 1) * (2 * self.shift + 1)).long() + self.shift).abs()
        moved = torch.where(moved > last, 2 * last - moved, moved).clamp(min=0)
        values = power_of(stored.gather(1, moved[..., None].expand(-1, -1, bands)))
        values = values + (2 * uniform(rows, 1, 1) - 1) * self.gain
        values = values + torch.randn(rows, 1, bands, generator=generator, device=device) * self.band_gain
        if self.noise is not None and len(self.noise) > frames:
            start = (uniform(rows, 1) * (len(self.noise) - frames)).long()
            noise = power_of(copy_on(self.noise, device)[start + frame])
            volume = 2 * (self.noise_volume * uniform(rows, 1, 1)).clamp(min=1e-9).log()
            noisy = torch.logaddexp(values, noise + volume)
            values = torch.where(uniform(rows, 1, 1) < self.noise_share, noisy, values)
        values = values.clamp(min=LOWEST)
        masked = _stretch(uniform(rows, 2), self.band_mask, bands)[:, None, :]
        for _ in range(2):
            masked = masked | _stretch(uniform(rows, 2), self.time_mask, frames)[:, :, None]
        return torch.where(masked, constant(tuple(self.mean), values.dtype, device), values)


def _stretch(random: Tensor, longest: int, size: int) -> Tensor:
    """A random stretch of 0…longest places in each row: [rows, size]."""
    length = (random[:, :1] * (longest + 1)).long()
    start = (random[:, 1:] * (size - length + 1)).long()
    place = torch.arange(size, device=random.device)
    return (place >= start) & (place < start + length)
