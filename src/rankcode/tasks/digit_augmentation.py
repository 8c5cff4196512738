"""Augmentation of digits, on the training device: rotated, stretched, sheared and shifted a little."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class DigitAugmentation:
    """Called with images of bytes [rows, height, width] and a generator; returns augmented images."""

    turn: float = 12.0
    """Largest angle of rotation, in degrees."""
    scale: float = 0.12
    """Largest relative change of height and of width, drawn independently."""
    slant: float = 0.2
    """Largest shear: shift of the upper edge against the lower, relative to the height."""
    shift: float = 2.0
    """Largest shift along each axis, in pixels."""
    contrast: float = 1.4
    """Restores the contrast that interpolation loses: paler strokes would spike later than real ones."""

    def __call__(self, stored: Tensor, lengths: Tensor | None, generator: torch.Generator) -> Tensor:
        rows, height, width = stored.shape
        random = 2 * torch.rand(6, rows, generator=generator, device=stored.device) - 1
        angle, slant = random[0] * math.radians(self.turn), random[1] * self.slant
        wide, high = 1 + random[2] * self.scale, 1 + random[3] * self.scale
        along, down = random[4] * 2 * self.shift / width, random[5] * 2 * self.shift / height
        cos, sin = angle.cos(), angle.sin()
        # Where each pixel of the new image comes from, in units of half an image.
        first = torch.stack([wide * cos, slant - high * sin, along], 1)
        second = torch.stack([wide * sin, high * cos, down], 1)
        grid = F.affine_grid(torch.stack([first, second], 1), [rows, 1, height, width], align_corners=False)
        moved = F.grid_sample(stored[:, None].float(), grid, align_corners=False)
        return (127.5 + self.contrast * (moved[:, 0] - 127.5)).round().clamp(0, 255).to(torch.uint8)
