"""Convolutional LSTM (Shi et al. 2015), without peephole connections: gates from 'same' convolutions."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn


class ConvLSTMState(NamedTuple):
    hidden: Tensor  # [rows, hidden_channels, height, width]
    cell: Tensor  # [rows, hidden_channels, height, width]


class ConvLSTM(nn.Module):
    """`hidden_channels` maps of image size; reads images [rows, in_channels, height, width]."""

    def __init__(self, in_channels: int, hidden_channels: int, image_size: tuple[int, int], kernel_size: int = 3):
        super().__init__()
        if kernel_size < 1 or kernel_size % 2 == 0:
            raise ValueError(f"kernel_size must be odd so that maps keep their size, not {kernel_size}")
        self.in_channels, self.hidden_channels, self.kernel_size = in_channels, hidden_channels, kernel_size
        self.image_size = (image_size[0], image_size[1])
        self.input_shape, self.output_shape = (in_channels, *self.image_size), (hidden_channels, *self.image_size)
        self.gates = nn.Conv2d(
            in_channels + hidden_channels, 4 * hidden_channels, kernel_size, padding=kernel_size // 2
        )

    def initial_state(self, batch_size: int) -> ConvLSTMState:
        zeros = self.gates.weight.new_zeros(batch_size, *self.output_shape)
        return ConvLSTMState(zeros, zeros)

    def forward(self, x_t: Tensor, state: ConvLSTMState) -> tuple[Tensor, ConvLSTMState]:
        gates = self.gates(torch.cat([x_t, state.hidden], 1)).to(state.cell.dtype)
        enter, forget, candidate, leave = gates.chunk(4, 1)
        cell = forget.sigmoid() * state.cell + enter.sigmoid() * candidate.tanh()
        hidden = leave.sigmoid() * cell.tanh()
        return hidden, ConvLSTMState(hidden, cell)
