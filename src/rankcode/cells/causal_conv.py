"""A convolution over the last few steps, which never looks ahead."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class CausalConvState(NamedTuple):
    inputs: Tensor  # [rows, kernel_size - 1, input_size]: the last inputs, zeros before the first


class CausalConv(nn.Module):
    """A convolution over the last `kernel_size` inputs, LayerNorm and ReLU.

    `depthwise=True`: a depthwise separable convolution, which is one filter for each input value followed by a linear
    layer, and a residual connection where `hidden_size` equals `input_size`.
    """

    def __init__(self, input_size: int, hidden_size: int, kernel_size: int, depthwise: bool = False):
        super().__init__()
        if min(input_size, hidden_size, kernel_size) < 1:
            given = f"{input_size}, {hidden_size}, {kernel_size}"
            raise ValueError(f"input_size, hidden_size and kernel_size must be at least 1, not {given}")
        self.input_size, self.hidden_size, self.kernel_size = input_size, hidden_size, kernel_size
        self.depthwise = depthwise
        self.input_shape, self.output_shape = (input_size,), (hidden_size,)
        if depthwise:
            self.filters = nn.Parameter(torch.empty(kernel_size, input_size).uniform_(-1, 1) * kernel_size**-0.5)
        self.linear = nn.Linear(input_size if depthwise else kernel_size * input_size, hidden_size)
        self.norm = nn.LayerNorm(hidden_size)

    def initial_state(self, batch_size: int) -> CausalConvState:
        return CausalConvState(self.linear.weight.new_zeros(batch_size, self.kernel_size - 1, self.input_size))

    def forward(self, x_t: Tensor, state: CausalConvState) -> tuple[Tensor, CausalConvState]:
        window = torch.cat([state.inputs, x_t[:, None]], 1)  # [rows, kernel_size, input_size]
        mixed = (window * self.filters).sum(1) if self.depthwise else window.flatten(1)
        return self._activated(self.linear(mixed), x_t), CausalConvState(window[:, 1:])

    def forward_sequence(self, inputs: Tensor, state: CausalConvState) -> tuple[Tensor, CausalConvState]:
        window = torch.cat([state.inputs, inputs], 1)  # [rows, kernel_size - 1 + steps, input_size]
        if self.depthwise:
            # As a 2-d convolution with one dimension of size 1: for many rows on a CPU, many times as fast as conv1d.
            image, filters = window.mT[:, :, None], self.filters.T[:, None, None]
            features = self.linear(F.conv2d(image, filters, groups=self.input_size)[:, :, 0].mT)
        else:
            filters = self.linear.weight.unflatten(1, (self.kernel_size, self.input_size)).mT
            features = F.conv1d(window.mT, filters, self.linear.bias).mT
        return self._activated(features, inputs), CausalConvState(window[:, inputs.shape[1] :])

    def _activated(self, features: Tensor, inputs: Tensor) -> Tensor:
        features = self.norm(features).relu()
        return features + inputs if self.depthwise and self.input_size == self.hidden_size else features

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}, kernel_size={self.kernel_size}, depthwise={self.depthwise}"
