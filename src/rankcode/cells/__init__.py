"""One recurrent step each.

A cell is any `nn.Module` with `initial_state(batch_size) -> State` and `forward(x_t, state) -> (features,
State)`. State is a (nested, named) tuple of tensors with the row first, passed in and out, never kept on
the module. `input_shape` and `output_shape`, where a cell has them, are the shapes of one step of one row.
"""

from rankcode.cells.conv_lstm import ConvLSTM, ConvLSTMState
from rankcode.cells.glimpses import Glimpses, GlimpsesState
from rankcode.cells.gru import GRU, GRUState
from rankcode.cells.lif import LIF, ConvLIF, LIFState
from rankcode.cells.lstm import LSTM, LSTMState
from rankcode.cells.stack import Stack

__all__ = [
    "GRU",
    "LIF",
    "LSTM",
    "ConvLIF",
    "ConvLSTM",
    "ConvLSTMState",
    "GRUState",
    "Glimpses",
    "GlimpsesState",
    "LIFState",
    "LSTMState",
    "Stack",
]
