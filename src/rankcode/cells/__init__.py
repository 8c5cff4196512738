"""One recurrent step each.

A cell is any `nn.Module` with `initial_state(batch_size) -> State` and
`forward(x_t, state) -> (features, State)`. State is a (nested, named) tuple of tensors whose first dimension is the
row. It is passed in and returned, never stored on the module. A cell may also have:

- `input_shape` and `output_shape`: the shapes of one step of one row; `input_size` if its inputs are vectors.
- `flattens_inputs = True`: inputs of any shape with as many values as `input_shape` are accepted.
- `forward_block(inputs, state) -> (features, state)`: many steps [rows, steps, …] at once, the features after the last.
- `forward_sequence(inputs, state) -> (features, state)`: the same, with the features after every step [rows, steps, …].
- `emits = "membranes"`: the features are the membranes of a spiking output layer.
"""

from rankcode.cells.causal_conv import CausalConv, CausalConvState
from rankcode.cells.conv_lstm import ConvLSTM, ConvLSTMState
from rankcode.cells.glimpses import Glimpses, GlimpsesState
from rankcode.cells.gru import GRU, GRUState
from rankcode.cells.lif import LIF, ConvLIF, LIFState
from rankcode.cells.lstm import LSTM, LSTMState
from rankcode.cells.parallel import Parallel
from rankcode.cells.random_kernels import RandomKernels, RandomKernelsState
from rankcode.cells.stack import Stack

__all__ = [
    "GRU",
    "LIF",
    "LSTM",
    "CausalConv",
    "CausalConvState",
    "ConvLIF",
    "ConvLSTM",
    "ConvLSTMState",
    "GRUState",
    "Glimpses",
    "GlimpsesState",
    "LIFState",
    "LSTMState",
    "Parallel",
    "RandomKernels",
    "RandomKernelsState",
    "Stack",
]
