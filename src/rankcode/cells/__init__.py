"""One recurrent step each.

A cell is any `nn.Module` with `initial_state(rows) -> State` and `forward(x_t, state) -> (features,
State)`. State is a (nested, named) tuple of tensors with the row first, passed in and out, never kept on
the module. `features`, where a cell has it, is the shape of what it gives for one row.
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
