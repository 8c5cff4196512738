"""Gated recurrent units (Cho et al. 2014), as `torch.nn.GRU` computes them."""

from __future__ import annotations

from itertools import cycle
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from rankcode.cells.gated import GatedLayers, joined

MAX_OWN_BACKWARD = 4096  # rows · hidden_size: up to here `_Steps` trains faster than PyTorch's layer


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
        gradients = torch.is_grad_enabled()
        if inputs.device.type != "cpu" or (gradients and len(inputs) * self.hidden_size > MAX_OWN_BACKWARD):
            features, hidden = self.run_layers(torch.gru, inputs, state)
            return features, GRUState(hidden)
        features, hidden = inputs.transpose(0, 1), []
        for layer in range(self.num_layers):
            input_weight, hidden_weight, input_bias, hidden_bias = self.weights(layer)
            # Rows first, as the inputs are in memory.
            gates = F.linear(features.transpose(0, 1), input_weight, input_bias).transpose(0, 1)
            before = state.hidden[:, layer]
            if gradients:
                features: Tensor = _Steps.apply(gates, before, hidden_weight, hidden_bias)  # type: ignore[assignment]
            else:
                features, *_ = _steps(gates, before, hidden_weight, hidden_bias, keep=False)
            hidden.append(features[-1])
        return features.transpose(0, 1), GRUState(joined(hidden))


def _steps(gates: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The hidden states after all steps, [steps, rows, units], in four fifths of the time that `torch.gru` takes on a
    CPU. `gates` [steps, rows, 3 · units] is the contribution of the inputs to reset gate, update gate and candidate.
    With `keep`, also returns the two gates and the contribution of the hidden state to the candidate, [steps, rows, 3 ·
    units], and the candidates.
    """
    steps, rows, units = *gates.shape[:2], hidden.shape[1]
    hiddens = gates.new_empty(steps, rows, units)
    inner = gates.new_empty(steps if keep else 1, rows, 3 * units)
    candidates = gates.new_empty(len(inner), rows, units)
    reset, update, from_hidden = inner.chunk(3, 2)
    both, turned = inner[..., : 2 * units], weight.t()
    by_step = zip(gates[..., : 2 * units], gates[..., 2 * units :], hiddens, strict=True)
    memory = zip(*(part.unbind() for part in (inner, both, reset, update, from_hidden, candidates)), strict=True)
    for (x_gates, x_candidate, after), (all_, both_, r, z, h_candidate, n) in zip(by_step, cycle(memory), strict=False):
        torch.addmm(bias, hidden, turned, out=all_)
        both_.add_(x_gates).sigmoid_()
        torch.addcmul(x_candidate, r, h_candidate, out=n).tanh_()
        hidden = torch.lerp(n, hidden, z, out=after)
    return hiddens, inner, candidates


class _Steps(torch.autograd.Function):
    """`_steps` with a backward pass of one matrix multiplication per step and one for the gradient of the weights. On a
    CPU, that of `torch.gru` takes up to three times as long."""

    @staticmethod
    def forward(ctx, gates, hidden, weight, bias):  # type: ignore[override]
        hiddens, inner, candidates = _steps(gates, hidden, weight, bias, keep=True)
        ctx.save_for_backward(hidden, weight, hiddens, inner, candidates)
        return hiddens

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):  # type: ignore[override]
        hidden, weight, hiddens, inner, n = ctx.saved_tensors
        r, z, from_hidden = inner.chunk(3, 2)
        before = torch.cat([hidden[None], hiddens[:-1]])
        # The derivatives of a hidden state with respect to the sum inside the candidate's tanh, and to the
        # contributions of the previous hidden state to reset gate, update gate and candidate.
        by_candidate = (1 - z).mul_(1 - n.square())
        slopes = torch.stack(
            [by_candidate * from_hidden * (r - r * r), (before - n) * (z - z * z), by_candidate * r], 2
        )
        of_hidden, of_gates = torch.empty_like(hiddens), slopes.flatten(2)  # gradients; the second in place of `slopes`
        carried = torch.zeros_like(hidden)
        backwards = (part.unbind()[::-1] for part in (gradient, of_hidden, slopes, of_gates, z))
        for given, total, slope, of_gate, update in zip(*backwards, strict=True):
            torch.add(carried, given, out=total)
            slope.mul_(total.unsqueeze(1))
            carried = torch.addmm(total * update, of_gate, weight)
        of_inputs = torch.cat([of_gates[..., : 2 * hidden.shape[1]], of_hidden * by_candidate], 2)
        of_weight = of_gates.flatten(0, 1).t() @ before.flatten(0, 1)
        return of_inputs, carried, of_weight, of_gates.sum((0, 1))
