"""A recurrent cell for images that appear over time: it remembers what it saw, and looks at that anew at each step."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn


class Seen(NamedTuple):
    image: Tensor  # [rows, 1, height, width]: what has appeared, the earlier the darker
    time: Tensor  # [rows, 1, 1, 1]: the share of the steps that has passed


class Glimpses(nn.Module):
    """The image so far, and how much time has passed, through convolutions. `width` is the number of maps."""

    def __init__(self, image: tuple[int, int], steps: int, width: int = 32, units: int = 96, dropout: float = 0.3):
        super().__init__()
        self.image, self.steps, self.features = tuple(image), steps, (units,)
        height, length = image[0] // 4, image[1] // 4

        def layer(inputs: int, maps: int) -> list[nn.Module]:
            return [nn.Conv2d(inputs, maps, 3, padding=1), nn.GroupNorm(8, maps), nn.ReLU()]

        self.look = nn.Sequential(
            *layer(2, width), *layer(width, width), nn.MaxPool2d(2),
            *layer(width, 2 * width), *layer(2 * width, 2 * width), nn.MaxPool2d(2),
            *layer(2 * width, 2 * width), nn.Flatten(), nn.Dropout(dropout),
            nn.Linear(2 * width * height * length, units), nn.ReLU(),
        )  # fmt: skip

    def initial_state(self, rows: int) -> Seen:
        like = next(self.parameters())
        return Seen(like.new_zeros(rows, 1, *self.image), like.new_zeros(rows, 1, 1, 1))

    def forward(self, x_t: Tensor, state: Seen) -> tuple[Tensor, Seen]:
        image, time = state.image + x_t * (1 - state.time), state.time + 1 / self.steps
        return self.look(torch.cat([image, time.expand_as(image)], 1)), Seen(image, time)
