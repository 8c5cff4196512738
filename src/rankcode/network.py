"""A cell and its readout: one step of any number of rows."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rankcode.front_ends import FrontEnd
from rankcode.rules import Rule
from rankcode.state import State

Activation = Literal["softmax", "sigmoid", "membrane"]


class Network(nn.Module):
    """A cell, which is any module that follows the contract of `rankcode.cells`, and a readout, which is any module
    that maps the cell's features to `outputs` numbers, by default a linear layer.

    `outputs=1` is one sigmoid output, which decides between two classes with the logits (0, z). With a spiking output
    layer, a last cell with `emits="membranes"`, the readout is the identity and the membranes themselves are the
    activations. `activation` overrides this choice.

    A readout may change from step to step: one with `checkpoints`, an increasing tuple of steps, is called with the
    features and the step. Rows can fire only at these steps. Engines call it at these steps, and at the end of a row
    that has not fired.

    `front_end` turns raw data into the inputs of the cell, `label_names` are the names of the classes, and `rule`
    decides when to answer if no other rule is given. Training sets them from its task and objective, and they are saved
    with the network.
    """

    cell: Any  # a module with initial_state, which the type nn.Module does not have
    front_end: FrontEnd | None = None
    label_names: tuple[str, ...] | None = None
    rule: Rule | None = None

    def __init__(
        self,
        cell: nn.Module,
        outputs: int,
        readout: nn.Module | None = None,
        activation: Activation | None = None,
    ):
        super().__init__()
        if not (hasattr(cell, "initial_state") and isinstance(cell, nn.Module)):
            raise ValueError(
                "a cell is an nn.Module with initial_state(batch_size) and forward(x_t, state) -> (features, state); "
                f"{type(cell).__name__} is not"
            )
        if outputs < 1:
            raise ValueError(f"a network needs at least one output, not {outputs}")
        spiking = getattr(cell, "emits", None) == "membranes" and isinstance(readout, nn.Identity | None)
        default = "sigmoid" if outputs == 1 else "membrane" if spiking else "softmax"
        self.activation: Activation = activation or default
        if self.activation not in ("softmax", "sigmoid", "membrane"):
            raise ValueError(f"activation must be softmax, sigmoid or membrane, not {activation!r}")
        if (self.activation == "sigmoid") != (outputs == 1):
            raise ValueError(f"activation {self.activation!r} does not fit {outputs} outputs: one output is a sigmoid")
        self.cell = cell
        self.outputs = outputs
        self.num_classes = 2 if outputs == 1 else outputs
        if readout is None:
            readout = nn.Identity() if self.activation == "membrane" else _linear(cell, outputs)
        self.readout = readout

    def initial_state(self, batch_size: int) -> State:
        return self.cell.initial_state(batch_size)

    @property
    def dtype(self) -> torch.dtype:
        """The type of its weights."""
        return next((part.dtype for part in self.parameters() if part.is_floating_point()), torch.float32)

    @property
    def class_names(self) -> tuple[str, ...]:
        """`label_names`, or the numbers of the classes if they have none."""
        return self.label_names or tuple(map(str, range(self.num_classes)))

    @property
    def checkpoints(self) -> tuple[int, ...] | None:
        """The steps at which rows can fire; None: every step."""
        readout = self._modules["readout"]
        if "checkpoints" in readout.__dict__ or hasattr(type(readout), "checkpoints"):
            return readout.checkpoints  # type: ignore[return-value]
        return None  # faster than asking the module for what it does not have

    def may_fire(self, step: int) -> bool:
        """Whether rows can fire at this step."""
        return self.checkpoints is None or step in self.checkpoints

    def forward(self, x_t: Tensor, state: State, step: int | Tensor | None = None) -> tuple[Tensor, State]:
        """One step: logits [rows, classes] and the state after it. `step`, 1…T, is for readouts with checkpoints."""
        features, state = self.cell(x_t, state)
        return self.logits(features, step), state

    def logits(self, features: Tensor, step: int | Tensor | None = None) -> Tensor:
        """Logits [rows, classes]; one sigmoid output z gives (0, z)."""
        if self.checkpoints is not None and step is None:
            raise ValueError("the readout of this network changes from step to step: give the step, 1…T")
        return self.as_logits(self.readout(features) if self.checkpoints is None else self.readout(features, step))

    def as_logits(self, logits: Tensor) -> Tensor:
        """The logits, from what the readout returns."""
        if logits.dim() != 2 or logits.shape[1] != self.outputs:
            raise ValueError(f"the readout returns shape {list(logits.shape)}, not [rows, {self.outputs}]")
        if self.activation == "sigmoid":
            logits = torch.cat([torch.zeros_like(logits), logits], 1)
        return logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits

    def activate(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """(activations, probabilities), each [rows, classes]: the arguments of a rule."""
        probabilities = logits.softmax(-1)
        return (logits if self.activation == "membrane" else probabilities), probabilities


def _linear(cell: nn.Module, outputs: int) -> nn.Module:
    shape = getattr(cell, "output_shape", None)
    if shape is None:  # the size is taken from the first batch
        return nn.Sequential(nn.Flatten(), nn.LazyLinear(outputs))
    if len(shape) == 1:
        return nn.Linear(shape[0], outputs)
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), outputs))
