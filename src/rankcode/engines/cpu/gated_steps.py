"""One layer of LSTM or GRU over a block of steps, forward and backward, without autograd.

Blocks are step first, [steps, rows, …]; `state` and its gradient are tuples of [rows, units]. Only what depends on
the step before is done step by step, in a handful of operations on preallocated memory; all else is done for the
whole block at once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

FLAT, FADED = 1e-15, 1e-20
"""Slopes of gates, and gradients of the states between blocks, that are taken as zero. In networks that are sure of
their answers gates are wide open or shut, and gradients fade from step to step: their products would become denormal
numbers, with which a CPU needs many times as long."""


class GatedSteps:
    """A layer's weights and, in the backward pass, the sums of their gradients."""

    def __init__(self, input_weight: Tensor, hidden_weight: Tensor, input_bias: Tensor, hidden_bias: Tensor):
        self.weights = (input_weight, hidden_weight, input_bias, hidden_bias)
        self.units = hidden_weight.shape[1]
        self.sums: list[Tensor] = []

    def zero_gradients(self) -> None:
        self.sums = [torch.zeros_like(part) for part in self.weights]

    def collect(self, x: Tensor, before: Tensor, into_input: Tensor, into_hidden: Tensor) -> None:
        """Add a block to the gradients of the weights: one product for each."""
        of_input = into_input.flatten(0, 1)
        of_hidden = of_input if into_hidden is into_input else into_hidden.flatten(0, 1)
        self.sums[0].addmm_(of_input.t(), x.flatten(0, 1))
        self.sums[1].addmm_(of_hidden.t(), before.flatten(0, 1))
        self.sums[2] += (total := of_input.sum(0))
        self.sums[3] += total if of_hidden is of_input else of_hidden.sum(0)


class LSTMSteps(GatedSteps):
    def __init__(self, *weights: Tensor):
        super().__init__(*weights)
        # tanh(z) = 2·sigmoid(2z) − 1: with the candidate's weights doubled, one sigmoid serves all four gates.
        input_weight, hidden_weight, input_bias, hidden_bias = weights
        double = torch.ones_like(input_bias)
        double[2 * self.units : 3 * self.units] = 2
        self.input_product = (input_weight * double[:, None]).t()
        self.hidden_product = (hidden_weight * double[:, None]).t()
        self.bias = (input_bias + hidden_bias) * double

    def start(self, rows: int) -> tuple[Tensor, Tensor]:
        zeros = self.bias.new_zeros(rows, self.units)
        return zeros, zeros

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor], Any]:
        """Outputs [steps, rows, units], the state after the block, and what the backward pass needs."""
        (steps, rows), units = x.shape[:2], self.units
        gates = torch.addmm(self.bias, x.flatten(0, 1), self.input_product).view(steps, rows, 4 * units)
        states = x.new_empty(2, steps + 1, rows, units)  # before each step, and after the last
        hidden, cell = states
        hidden[0], cell[0] = state
        squashed = x.new_empty(rows, units)
        hiddens, cells_, all_gates = hidden.unbind(), cell.unbind(), gates.unbind()
        enters, forgets, candidates, leaves = (part.unbind() for part in gates.chunk(4, 2))
        for step in range(steps):
            all_gates[step].addmm_(hiddens[step], self.hidden_product).sigmoid_()
            c = torch.mul(forgets[step], cells_[step], out=cells_[step + 1]).sub_(enters[step])
            c.addcmul_(enters[step], candidates[step], value=2)
            torch.tanh(c, out=squashed)
            torch.mul(leaves[step], squashed, out=hiddens[step + 1])
        return hidden[1:], (hiddens[-1], cells_[-1]), (gates, hidden, cell)

    def backward(self, x: Tensor, saved: Any, arriving: Tensor, after: Any, needed: bool) -> tuple[Any, Any]:
        """Gradients of the inputs, where needed, and of the state before the block."""
        gates, hidden, cell = saved
        steps, rows, units = arriving.shape
        enter, forget, candidate, leave = gates.chunk(4, 2)
        # What one unit of gradient in the cell, or in the hidden state, gives to each gate.
        into_gates = torch.empty_like(gates)
        slope = torch.addcmul(gates, gates, gates, value=-1).view(steps, rows, 4, units)  # of the sigmoids
        slope[:, :, 0] *= 2 * candidate - 1
        slope[:, :, 1] *= cell[:-1]
        slope[:, :, 2] *= 4 * enter  # tanh′ = 4·sigmoid′
        squashed = cell[1:].tanh()
        slope[:, :, 3] *= squashed
        if gates[0].amin() < FLAT:  # one step will do to see whether gates are shut
            torch.hardshrink(slope, FLAT, out=slope)
        from_hidden = torch.addcmul(leave, leave, squashed.square_(), value=-1)  # of the cell
        into_hidden, into_cell = (arriving.new_zeros(2, rows, units)) if after is None else after
        slopes = [part.unbind() for part in (slope[:, :, :3], slope[:, :, 3])]
        by_gate = into_gates.view(steps, rows, 4, units)
        parts = [part.unbind() for part in (by_gate[:, :, :3], by_gate[:, :, 3], into_gates)]
        arrivals, from_hiddens, forgets = arriving.unbind(), from_hidden.unbind(), forget.unbind()
        for step in reversed(range(steps)):
            into_hidden = into_hidden.add_(arrivals[step])
            into_cell = into_cell.addcmul_(into_hidden, from_hiddens[step])
            torch.mul(slopes[0][step], into_cell[:, None], out=parts[0][step])
            torch.mul(slopes[1][step], into_hidden, out=parts[1][step])
            into_cell = into_cell.mul_(forgets[step])
            torch.mm(parts[2][step], self.weights[1], out=into_hidden)
        for part in (into_hidden, into_cell):
            torch.hardshrink(part, FADED, out=part)
        self.collect(x, hidden[:-1], into_gates, into_gates)
        return into_gates @ self.weights[0] if needed else None, (into_hidden, into_cell)


class GRUSteps(GatedSteps):
    def start(self, rows: int) -> tuple[Tensor]:
        return (self.weights[1].new_zeros(rows, self.units),)

    def forward(self, x: Tensor, state: tuple[Tensor]) -> tuple[Tensor, tuple[Tensor], Any]:
        (steps, rows), units = x.shape[:2], self.units
        input_weight, hidden_weight, input_bias, hidden_bias = self.weights
        gates = torch.addmm(input_bias, x.flatten(0, 1), input_weight.t()).view(steps, rows, 3 * units)
        hidden = x.new_empty(steps + 1, rows, units)
        recalled = x.new_empty(steps, rows, units)  # what the hidden state contributes to the candidate
        hidden[0] = state[0]
        recurrent, hiddens, recalls = hidden_weight.t(), hidden.unbind(), recalled.unbind()
        both, candidates = (part.unbind() for part in gates.split([2 * units, units], 2))
        resets, updates = (part.unbind() for part in gates[:, :, : 2 * units].chunk(2, 2))
        for step in range(steps):
            from_hidden = torch.addmm(hidden_bias, hiddens[step], recurrent)
            both[step].add_(from_hidden[:, : 2 * units]).sigmoid_()
            recalls[step].copy_(from_hidden[:, 2 * units :])
            candidates[step].copy_(torch.addcmul(candidates[step], resets[step], recalls[step]).tanh_())
            torch.lerp(candidates[step], hiddens[step], updates[step], out=hiddens[step + 1])
        return hidden[1:], (hiddens[-1],), (gates, hidden, recalled)

    def backward(self, x: Tensor, saved: Any, arriving: Tensor, after: Any, needed: bool) -> tuple[Any, Any]:
        gates, hidden, recalled = saved
        steps, rows, units = arriving.shape
        reset, update, candidate = gates.chunk(3, 2)
        to_update = torch.addcmul(update, update, update, value=-1) * (hidden[:-1] - candidate)
        to_candidate = (1 - update) * (1 - candidate.square())
        to_reset = torch.addcmul(reset, reset, reset, value=-1) * recalled
        if gates[0, :, : 2 * units].amin() < FLAT:  # one step will do to see whether gates are shut
            for slope in (to_update, to_reset):
                torch.hardshrink(slope, FLAT, out=slope)
        into_input, into_recurrent = torch.empty_like(gates), torch.empty_like(gates)
        into_hidden = arriving.new_zeros(rows, units) if after is None else after[0]
        for step in reversed(range(steps)):
            into_hidden = into_hidden.add_(arriving[step])
            of_candidate = into_hidden * to_candidate[step]
            now, recurrent = into_input[step], into_recurrent[step]
            torch.mul(of_candidate, to_reset[step], out=now[:, :units])
            torch.mul(into_hidden, to_update[step], out=now[:, units : 2 * units])
            now[:, 2 * units :] = of_candidate
            recurrent[:, : 2 * units] = now[:, : 2 * units]
            torch.mul(of_candidate, reset[step], out=recurrent[:, 2 * units :])
            into_hidden = torch.addmm(into_hidden * update[step], recurrent, self.weights[1])
        torch.hardshrink(into_hidden, FADED, out=into_hidden)
        self.collect(x, hidden[:-1], into_input, into_recurrent)
        return into_input @ self.weights[0] if needed else None, (into_hidden,)
