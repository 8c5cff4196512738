"""Parameters of gated recurrent layers, named, shaped and initialised as `torch.nn.LSTM` and `GRU` do."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class GatedLayers(nn.Module):
    """`layers` layers of `units` units with `gates` gates each. Its state dict is interchangeable with
    that of the `torch.nn` module: `cell.load_state_dict(torch_module.state_dict())` and the reverse."""

    gates: int

    def __init__(self, inputs: int, units: int, layers: int = 1):
        super().__init__()
        if min(inputs, units, layers) < 1:
            raise ValueError(f"inputs, units and layers must be at least 1, not {inputs}, {units}, {layers}")
        self.inputs, self.units, self.layers = inputs, units, layers
        self.features = (units,)
        for layer in range(layers):
            size = inputs if layer == 0 else units
            self.register_parameter(f"weight_ih_l{layer}", nn.Parameter(torch.empty(self.gates * units, size)))
            self.register_parameter(f"weight_hh_l{layer}", nn.Parameter(torch.empty(self.gates * units, units)))
            self.register_parameter(f"bias_ih_l{layer}", nn.Parameter(torch.empty(self.gates * units)))
            self.register_parameter(f"bias_hh_l{layer}", nn.Parameter(torch.empty(self.gates * units)))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(units**-0.5), units**-0.5)

    def settings(self) -> dict:
        return {"inputs": self.inputs, "units": self.units, "layers": self.layers}

    def zeros(self, rows: int) -> Tensor:
        return next(self.parameters()).new_zeros(rows, self.layers, self.units)

    def weights(self, layer: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of the input, of the hidden state, and the biases of both."""
        kinds = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        return tuple(self._parameters[f"{kind}_l{layer}"] for kind in kinds)  # type: ignore[return-value]

    def projections(self, layer: int, x: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """What the input and what the hidden state give to the gates, each [rows, gates · units]."""
        input_weight, hidden_weight, input_bias, hidden_bias = self.weights(layer)
        return F.linear(x, input_weight, input_bias), F.linear(hidden, hidden_weight, hidden_bias)

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.settings().items())


def joined(layers: list[Tensor]) -> Tensor:
    """[rows, layers, units] from one [rows, units] for each layer."""
    return layers[0].unsqueeze(1) if len(layers) == 1 else torch.stack(layers, 1)
