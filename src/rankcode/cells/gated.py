"""Parameters of gated recurrent layers, named, shaped and initialised as `torch.nn.LSTM` and `GRU` do."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rankcode.compiled.sequence import read_sequence, reads

KINDS = ("weight_ih_l", "weight_hh_l", "bias_ih_l", "bias_hh_l")
MAX_LAYERS = 1000  # building a layer takes about a millisecond, whatever its size


class GatedLayers(nn.Module):
    """`num_layers` layers of `hidden_size` units with `gates` gates each. The state dict is interchangeable with that
    of the `torch.nn` module: `cell.load_state_dict(torch_module.state_dict())` works, and the reverse."""

    gates: int

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1):
        super().__init__()
        if min(input_size, hidden_size, num_layers) < 1:
            given = f"{input_size}, {hidden_size}, {num_layers}"
            raise ValueError(f"input_size, hidden_size and num_layers must be at least 1, not {given}")
        if num_layers > MAX_LAYERS:
            raise ValueError(f"num_layers must be at most {MAX_LAYERS:,}, not {num_layers:,}")
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.input_shape, self.output_shape = (input_size,), (hidden_size,)
        lines = self.gates * hidden_size
        for layer in range(num_layers):
            size = input_size if layer == 0 else hidden_size
            for kind, shape in zip(KINDS, ((lines, size), (lines, hidden_size), lines, lines), strict=True):
                self.register_parameter(f"{kind}{layer}", nn.Parameter(torch.empty(shape)))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(hidden_size**-0.5), hidden_size**-0.5)

    def zeros(self, batch_size: int) -> Tensor:
        like = next(iter(self._parameters.values()), None)  # `parameters` takes longer than making zeros
        like = next(self.parameters()) if like is None else like
        return like.new_zeros(batch_size, self.num_layers, self.hidden_size)

    def weights(self, layer: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Weights of the input and of the hidden state, and the biases of both. Parametrizations (weight_norm, …)
        apply and are computed at each call."""
        return tuple([getattr(self, kind + str(layer)) for kind in KINDS])  # type: ignore[return-value]

    def projections(self, layer: int, x: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The contributions of the input and of the hidden state to the gates, each [rows, gates · hidden_size]."""
        input_weight, hidden_weight, input_bias, hidden_bias = self.weights(layer)
        return F.linear(x, input_weight, input_bias), F.linear(hidden, hidden_weight, hidden_bias)

    def run_layers(self, kernel: Any, inputs: Tensor, state: Sequence[Tensor]) -> list[Tensor]:
        """All steps [rows, steps, features], in C or with PyTorch's own layers, `torch.lstm` or `torch.gru`: the
        features after every step, and the parts of the state after the last."""
        weights = [part for layer in range(self.num_layers) for part in self.weights(layer)]
        if reads(inputs, *state, *weights):
            after = []  # of each layer: the parts of its state
            for layer in range(self.num_layers):
                before = tuple(part[:, layer] for part in state)
                inputs, *cell = read_sequence(inputs, before, tuple(weights[4 * layer : 4 * layer + 4]))
                after.append((inputs[:, -1], *cell))
            return [inputs, *map(joined, zip(*after, strict=True))]
        return self.run_kernel(kernel, inputs, state, weights)

    def run_kernel(self, kernel: Any, inputs: Tensor, state: Sequence[Tensor], weights: list[Tensor]) -> list[Tensor]:
        """The same with PyTorch's own layers."""
        before = [part.transpose(0, 1) for part in state]
        if self.num_layers > 1:
            before = [part.contiguous() for part in before]
        # bias, layers, dropout, train, bidirectional, batch_first
        settings = (True, self.num_layers, 0.0, inputs.is_cuda and torch.is_grad_enabled(), False, False)
        arguments = (inputs.transpose(0, 1), before if len(before) > 1 else before[0], weights, *settings)
        if not inputs.is_cuda:
            return [part.transpose(0, 1) for part in kernel(*arguments)]
        with warnings.catch_warnings():  # entering repeats old warnings
            warnings.filterwarnings("ignore", "RNN module weights")  # cuDNN joins them, a cheap copy
            found = kernel(*arguments)
        return [part.transpose(0, 1) for part in found]

    def extra_repr(self) -> str:
        return f"input_size={self.input_size}, hidden_size={self.hidden_size}, num_layers={self.num_layers}"


def joined(layers: Sequence[Tensor]) -> Tensor:
    """[rows, num_layers, hidden_size] from one [rows, hidden_size] for each layer."""
    return layers[0].unsqueeze(1) if len(layers) == 1 else torch.stack(list(layers), 1)
