"""Long short-term memory (Hochreiter and Schmidhuber 1997), as `torch.nn.LSTM` computes it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rankcode.cells.gated import GatedLayers, joined


class LSTMState(NamedTuple):
    hidden: Tensor  # [rows, num_layers, hidden_size]
    cell: Tensor  # [rows, num_layers, hidden_size]


class LSTM(GatedLayers):
    """One or more LSTM layers. Weights are those of `torch.nn.LSTM`, by name and shape."""

    gates = 4

    def initial_state(self, batch_size: int) -> LSTMState:
        zeros = self.zeros(batch_size)
        return LSTMState(zeros, torch.zeros_like(zeros))

    def forward(self, x_t: Tensor, state: LSTMState) -> tuple[Tensor, LSTMState]:
        hidden, cell = [], []
        for layer in range(self.num_layers):
            h, c = state.hidden[:, layer], state.cell[:, layer]
            if torch.is_autocast_enabled(h.device.type):
                # The state keeps its precision; only the matrix multiplications run in a lower one.
                from_input, from_hidden = self.projections(layer, x_t, h)
                enter, forget, candidate, leave = (from_input + from_hidden).to(c.dtype).chunk(4, 1)
                c = forget.sigmoid() * c + enter.sigmoid() * candidate.tanh()
                x_t = leave.sigmoid() * c.tanh()
            else:  # the same computation in one call
                x_t, c = torch.lstm_cell(x_t, (h, c), *self.weights(layer))
            hidden.append(x_t)
            cell.append(c)
        return x_t, LSTMState(joined(hidden), joined(cell))

    def forward_sequence(self, inputs: Tensor, state: LSTMState) -> tuple[Tensor, LSTMState]:
        features, hidden, cell = self.run_layers(torch.lstm, inputs, state)
        return features, LSTMState(hidden, cell)
