"""A recurrent cell for images that appear over time: it keeps what has appeared, and reads all of it at each step."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn


class GlimpsesState(NamedTuple):
    image: Tensor  # [rows, 1, height, width]: what has appeared, with larger values for earlier steps
    time: Tensor  # [rows, 1, 1, 1]: share of the steps that have passed


class Glimpses(nn.Module):
    """Five convolutions and a dense layer on the image so far and the share of time that has passed.

    The input of a step is the part of an image that appears in it, [rows, 1, height, width]; after `num_steps` steps
    the image is complete, as in temporal MNIST. The state is the sum of the inputs, with more weight on early ones. The
    first two convolutions have `channels` feature maps and the others twice as many; dropout and `hidden_size` features
    follow."""

    def __init__(
        self,
        image_size: tuple[int, int],
        num_steps: int,
        channels: int = 32,
        hidden_size: int = 96,
        dropout: float = 0.3,
    ):
        super().__init__()
        if len(image_size) != 2 or min(image_size) < 4:
            raise ValueError(f"image_size must be a height and a width of at least 4, not {tuple(image_size)}")
        if channels < 8 or channels % 8 != 0:
            raise ValueError(f"channels must be a multiple of 8, not {channels}")
        if min(num_steps, hidden_size) < 1 or num_steps != int(num_steps):
            raise ValueError(f"num_steps and hidden_size must be at least 1, not {num_steps} and {hidden_size}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, not {dropout}")
        self.image_size, self.num_steps = (image_size[0], image_size[1]), num_steps
        self.channels, self.hidden_size, self.dropout = channels, hidden_size, dropout
        self.input_shape, self.output_shape = (1, *self.image_size), (hidden_size,)

        def layer(inputs: int, outputs: int) -> list[nn.Module]:
            return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(8, outputs), nn.ReLU()]

        self.look = nn.Sequential(
            *layer(2, channels), *layer(channels, channels), nn.MaxPool2d(2),
            *layer(channels, 2 * channels), *layer(2 * channels, 2 * channels), nn.MaxPool2d(2),
            *layer(2 * channels, 2 * channels), nn.Flatten(), nn.Dropout(dropout),
            nn.Linear(2 * channels * (image_size[0] // 4) * (image_size[1] // 4), hidden_size), nn.ReLU(),
        )  # fmt: skip

    def initial_state(self, batch_size: int) -> GlimpsesState:
        like = next(self.parameters())
        return GlimpsesState(like.new_zeros(batch_size, 1, *self.image_size), like.new_zeros(batch_size, 1, 1, 1))

    def forward(self, x_t: Tensor, state: GlimpsesState) -> tuple[Tensor, GlimpsesState]:
        image = state.image + x_t * (1 - state.time).clamp(min=0)
        time = state.time + 1 / self.num_steps
        return self.look(torch.cat([image, time.expand_as(image)], 1)), GlimpsesState(image, time)

    def forward_block(self, inputs: Tensor, state: GlimpsesState) -> tuple[Tensor, GlimpsesState]:
        """Features after the last of the steps [rows, steps, 1, height, width]: the image is looked at once."""
        steps = torch.arange(inputs.shape[1], dtype=inputs.dtype, device=inputs.device)[:, None, None, None]
        weights = (1 - (state.time[:, None] + steps / self.num_steps)).clamp(min=0)  # [rows, steps, 1, 1, 1]
        earlier = GlimpsesState(
            state.image + (inputs[:, :-1] * weights[:, :-1]).sum(1), state.time + (inputs.shape[1] - 1) / self.num_steps
        )
        return self.forward(inputs[:, -1], earlier)
