"""Gated recurrent units (Cho et al. 2014), as `torch.nn.GRU` computes them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rankcode.cells.gated import GatedLayers, joined


class GRUState(NamedTuple):
    hidden: Tensor  # [rows, num_layers, hidden_size]


class GRU(GatedLayers):
    """One or more GRU layers. Weights are those of `torch.nn.GRU`, by name and shape."""

    gates = 3

    def initial_state(self, batch_size: int) -> GRUState:
        return GRUState(self.zeros(batch_size))

    def forward(self, x_t: Tensor, state: GRUState) -> tuple[Tensor, GRUState]:
        hidden = []
        for layer in range(self.num_layers):
            h = state.hidden[:, layer]
            if torch.is_autocast_enabled(h.device.type):
                # The state keeps its precision; only the matrix multiplications run in a lower one.
                from_input, from_hidden = (part.to(h.dtype).chunk(3, 1) for part in self.projections(layer, x_t, h))
                reset = (from_input[0] + from_hidden[0]).sigmoid()
                update = (from_input[1] + from_hidden[1]).sigmoid()
                candidate = (from_input[2] + reset * from_hidden[2]).tanh()
                x_t = candidate + update * (h - candidate)
            else:  # the same computation in one call
                x_t = torch.gru_cell(x_t, h, *self.weights(layer))
            hidden.append(x_t)
        return x_t, GRUState(joined(hidden))

    def forward_sequence(self, inputs: Tensor, state: GRUState) -> tuple[Tensor, GRUState]:
        features, hidden = self.run_layers(torch.gru, inputs, state)
        return features, GRUState(hidden)
