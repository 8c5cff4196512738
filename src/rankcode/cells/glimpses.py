"""A recurrent cell for images that appear over time: it remembers what it saw, and looks at all of it at each step."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn


class GlimpsesState(NamedTuple):
    image: Tensor  # [rows, 1, height, width]: what has appeared; the earlier, the larger the value
    time: Tensor  # [rows, 1, 1, 1]: share of the steps that have passed


class Glimpses(nn.Module):
    """The image so far, and how much time has passed, through five convolutions and a dense layer.

    A step shows what appears in it, [rows, 1, height, width], of an image that has appeared after `steps` steps, as in
    temporal MNIST: the sum of the steps is remembered, early ones with more weight. `maps` feature maps in the upper
    half of the network and twice as many in the lower, `units` features, and dropout before them."""

    inputs = 1

    def __init__(self, image: tuple[int, int], steps: int, maps: int = 32, units: int = 96, dropout: float = 0.3):
        super().__init__()
        if len(image) != 2 or min(image) < 4:
            raise ValueError(f"image must be a height and a width of at least 4, not {tuple(image)}")
        if maps < 8 or maps % 8 != 0:
            raise ValueError(f"maps must be a multiple of 8, not {maps}")
        if min(steps, units) < 1 or steps != int(steps):
            raise ValueError(f"steps and units must be at least 1, not {steps} and {units}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, not {dropout}")
        self.image, self.steps, self.maps, self.units = (image[0], image[1]), steps, maps, units
        self.dropout, self.features = dropout, (units,)

        def layer(inputs: int, outputs: int) -> list[nn.Module]:
            return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(8, outputs), nn.ReLU()]

        self.look = nn.Sequential(
            *layer(2, maps), *layer(maps, maps), nn.MaxPool2d(2),
            *layer(maps, 2 * maps), *layer(2 * maps, 2 * maps), nn.MaxPool2d(2),
            *layer(2 * maps, 2 * maps), nn.Flatten(), nn.Dropout(dropout),
            nn.Linear(2 * maps * (image[0] // 4) * (image[1] // 4), units), nn.ReLU(),
        )  # fmt: skip

    def settings(self) -> dict:
        names = ("image", "steps", "maps", "units", "dropout")
        return {name: getattr(self, name) for name in names}

    def initial_state(self, rows: int) -> GlimpsesState:
        like = next(self.parameters())
        return GlimpsesState(like.new_zeros(rows, 1, *self.image), like.new_zeros(rows, 1, 1, 1))

    def forward(self, x_t: Tensor, state: GlimpsesState) -> tuple[Tensor, GlimpsesState]:
        image = state.image + x_t * (1 - state.time).clamp(min=0)
        time = state.time + 1 / self.steps
        return self.look(torch.cat([image, time.expand_as(image)], 1)), GlimpsesState(image, time)
