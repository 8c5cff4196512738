"""Convolutional LSTM (Shi et al. 2015), without peephole connections: gates from 'same' convolutions."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn


class ConvLSTMState(NamedTuple):
    hidden: Tensor  # [rows, units, height, width]
    cell: Tensor  # [rows, units, height, width]


class ConvLSTM(nn.Module):
    """`units` maps of image size over `inputs` input channels, images [rows, inputs, height, width]."""

    def __init__(self, inputs: int, units: int, image: tuple[int, int], kernel: int = 3):
        super().__init__()
        if kernel < 1 or kernel % 2 == 0:
            raise ValueError(f"the kernel must be odd so that maps keep their size, not {kernel}")
        self.inputs, self.units, self.image, self.kernel = inputs, units, (image[0], image[1]), kernel
        self.features = (units, *self.image)
        self.gates = nn.Conv2d(inputs + units, 4 * units, kernel, padding=kernel // 2)

    def settings(self) -> dict:
        return {"inputs": self.inputs, "units": self.units, "image": self.image, "kernel": self.kernel}

    def initial_state(self, rows: int) -> ConvLSTMState:
        zeros = self.gates.weight.new_zeros(rows, *self.features)
        return ConvLSTMState(zeros, zeros)

    def forward(self, x_t: Tensor, state: ConvLSTMState) -> tuple[Tensor, ConvLSTMState]:
        gates = self.gates(torch.cat([x_t, state.hidden], 1)).to(state.cell.dtype)
        enter, forget, candidate, leave = gates.chunk(4, 1)
        cell = forget.sigmoid() * state.cell + enter.sigmoid() * candidate.tanh()
        hidden = leave.sigmoid() * cell.tanh()
        return hidden, ConvLSTMState(hidden, cell)
