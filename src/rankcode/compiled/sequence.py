"""Whole sequences read by a layer of LSTM or GRU in C, with all gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rankcode.compiled.layer import Layer
from rankcode.compiled.library import functions


def reads(inputs: Tensor, *parts: Tensor) -> bool:
    """Whether these tensors can be read: those of a layer, on a CPU, in float32, outside of a trace."""
    plain = all(
        type(part) in (Tensor, torch.nn.Parameter) and part.dtype == torch.float32 and part.device.type == "cpu"
        for part in (inputs, *parts)
    )
    if not plain or inputs.numel() == 0 or torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling():
        return False
    return functions() is not None


def read_sequence(inputs: Tensor, state: tuple[Tensor, ...], weights: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The features after every step [rows, steps, units] and, of an LSTM, the cell after the last [rows, units].
    `state`: hidden state and, of an LSTM, cell before the first step."""
    return _Sequence.apply(len(state), inputs, *state, *weights)  # type: ignore[return-value]


class _Sequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, parts: int, inputs: Tensor, *tensors: Tensor):  # type: ignore[override]
        state, weights = tensors[:parts], tensors[parts:]
        saves = any(ctx.needs_input_grad)
        ends = torch.full((len(inputs),), inputs.shape[1])
        layer = Layer(weights, inputs, ends, torch.get_num_threads(), state, every_step=True, saves=saves)
        cell = () if parts == 1 else (layer.memory("last_cell", *state[0].shape),)
        features = layer.read()
        if saves:
            ctx.layer, ctx.parts = layer, parts
            # The chunks are saved so that PyTorch knows of their memory.
            ctx.save_for_backward(inputs, *tensors, *layer.chunks)
        return features.transpose(0, 1), *cell

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, of_cell: Tensor | None = None):  # type: ignore[override]
        inputs, *tensors = ctx.saved_tensors  # an error if they are gone, or were changed in place
        layer, parts = ctx.layer, ctx.parts
        of_inputs, of_state = None, [None] * parts
        if ctx.needs_input_grad[1]:
            of_inputs = layer.of_inputs = torch.empty_like(inputs, memory_format=torch.contiguous_format)
        if any(ctx.needs_input_grad[2 : 2 + parts]):
            names = ("of_first_hidden", "of_first_cell")[:parts]
            of_state = [layer.memory(name, *tensors[0].shape) for name in names]
        return None, of_inputs, *of_state, *layer.gradients(gradient.transpose(0, 1), of_cell)
