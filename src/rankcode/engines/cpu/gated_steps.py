"""One layer of LSTM or GRU over a block of steps, forward and backward, as one node of the autograd graph.

Blocks are step first, [steps, rows, …]; the state and its gradient are tuples of [rows, units]. Only what depends on
the step before is computed step by step, with a few operations on preallocated memory; everything else is computed for
the whole block at once.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

MIN_SLOPE, MIN_GRADIENT = 1e-15, 1e-20
"""Smaller derivatives of gates, and smaller gradients of the state between blocks, are set to zero. In networks that
are sure of their answers gates are open or shut, and gradients vanish from step to step: their products would become
denormal numbers, with which a CPU is many times as slow."""


@contextmanager
def single_thread_if(small: bool) -> Iterator[None]:
    """Run small steps in one thread. Only in the main thread: PyTorch takes the number set here for new threads."""
    before = torch.get_num_threads()
    if not small or before == 1 or threading.current_thread() is not threading.main_thread():
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Block(torch.autograd.Function):
    @staticmethod
    def forward(ctx, layer, x, *state_and_weights):  # type: ignore[override]
        outputs, state, saved = layer.forward(x, state_and_weights[:-4])
        ctx.layer, ctx.is_first, layer.is_first = layer, layer.is_first, False
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, *saved)
        return outputs, *state

    @staticmethod
    @once_differentiable
    def backward(ctx, into_outputs, *into_state):  # type: ignore[override]
        x, *saved = ctx.saved_tensors
        shape = saved[1][0].shape  # [rows, units]
        into_state = [x.new_zeros(shape) if part is None else part.clone() for part in into_state]
        layer = ctx.layer
        with single_thread_if(layer.small):
            into_x, into_state = layer.backward(x, saved, into_outputs, into_state, ctx.needs_input_grad[1])
        if not ctx.is_first:  # the state connects all blocks, so the backward pass of the first comes last
            return None, into_x, *into_state, None, None, None, None
        into_weights, layer.sums = layer.sums, None
        return None, into_x, *into_state, *into_weights


class GatedSteps(ABC):
    """A layer's weights. Calling it runs a block: outputs [steps, rows, units], and the state after it."""

    states: int

    def __init__(self, *weights: Tensor, small: bool):
        self.weights, self.small = weights, small
        self.input_weight, self.hidden_weight, self.input_bias, self.hidden_bias = (part.detach() for part in weights)
        self.units = self.hidden_weight.shape[1]
        self.is_first = True  # whether the next block is
        self.sums: list[Tensor] | None = None  # of the gradients of the weights, over the blocks of a backward pass

    def initial_state(self, rows: int) -> Sequence[Tensor]:
        return [self.hidden_weight.new_zeros(rows, self.units)] * self.states

    def __call__(self, x: Tensor, state: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return _Block.apply(self, x, *state, *self.weights)  # type: ignore[return-value]

    @abstractmethod
    def forward(self, x: Tensor, state: Sequence[Tensor]) -> tuple[Tensor, Sequence[Tensor], tuple[Tensor, ...]]:
        """Outputs, the state after the block, and what the backward pass needs: gates, hidden states and one more."""

    @abstractmethod
    def backward(
        self,
        x: Tensor,
        saved: Sequence[Tensor],
        into_outputs: Tensor | None,
        into_state: Sequence[Tensor],
        needs_x: bool,
    ) -> tuple[Tensor | None, Sequence[Tensor]]:
        """Gradients of the inputs, if needed, and of the state before the block; those of the weights are added to
        `sums`. May overwrite `into_state`."""

    def add_weight_gradients(self, x: Tensor, before: Tensor, into_input: Tensor, into_hidden: Tensor) -> None:
        """From the hidden state before each step, and the gradients of what input and hidden state give to the gates:
        one matrix multiplication for each weight."""
        if self.sums is None:
            self.sums = [torch.zeros_like(part) for part in self.weights]
        of_input = into_input.flatten(0, 1)
        of_hidden = of_input if into_hidden is into_input else into_hidden.flatten(0, 1)
        self.sums[0].addmm_(of_input.t(), x.flatten(0, 1))
        self.sums[1].addmm_(of_hidden.t(), before.flatten(0, 1))
        self.sums[2] += (total := of_input.sum(0))
        self.sums[3] += total if of_hidden is of_input else of_hidden.sum(0)


class LSTMSteps(GatedSteps):
    states = 2

    def __init__(self, *weights: Tensor, small: bool):
        super().__init__(*weights, small=small)
        # tanh(z) = 2·sigmoid(2z) − 1: with the candidate's weights doubled, one sigmoid serves all four gates.
        double = torch.ones_like(self.input_bias)
        double[2 * self.units : 3 * self.units] = 2
        self.input_product = (self.input_weight * double[:, None]).t()
        self.hidden_product = (self.hidden_weight * double[:, None]).t()
        self.bias = (self.input_bias + self.hidden_bias) * double

    def forward(self, x, state):
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

    def backward(self, x, saved, into_outputs, into_state, needs_x):
        gates, hidden, cell = saved
        steps, rows, units = cell[1:].shape
        enter, forget, candidate, leave = gates.chunk(4, 2)
        # What one unit of gradient in the cell, or in the hidden state, gives to each gate.
        into_gates = torch.empty_like(gates)
        slope = torch.addcmul(gates, gates, gates, value=-1).view(steps, rows, 4, units)  # of the sigmoids
        slope[:, :, 0] *= 2 * candidate - 1
        slope[:, :, 1] *= cell[:-1]
        slope[:, :, 2] *= 4 * enter  # tanh′ = 4·sigmoid′
        squashed = cell[1:].tanh()
        slope[:, :, 3] *= squashed
        if gates[0].amin() < MIN_SLOPE:  # one step is enough to see whether gates are shut
            torch.hardshrink(slope, MIN_SLOPE, out=slope)
        from_hidden = torch.addcmul(leave, leave, squashed.square_(), value=-1)  # of the cell
        into_hidden, into_cell = into_state
        slopes = [part.unbind() for part in (slope[:, :, :3], slope[:, :, 3])]
        by_gate = into_gates.view(steps, rows, 4, units)
        parts = [part.unbind() for part in (by_gate[:, :, :3], by_gate[:, :, 3], into_gates)]
        from_hiddens, forgets = from_hidden.unbind(), forget.unbind()
        for step in reversed(range(steps)):
            if into_outputs is not None:
                into_hidden.add_(into_outputs[step])
            into_cell.addcmul_(into_hidden, from_hiddens[step])
            torch.mul(slopes[0][step], into_cell[:, None], out=parts[0][step])
            torch.mul(slopes[1][step], into_hidden, out=parts[1][step])
            into_cell.mul_(forgets[step])
            torch.mm(parts[2][step], self.hidden_weight, out=into_hidden)
        for part in (into_hidden, into_cell):
            torch.hardshrink(part, MIN_GRADIENT, out=part)
        self.add_weight_gradients(x, hidden[:-1], into_gates, into_gates)
        return into_gates @ self.input_weight if needs_x else None, (into_hidden, into_cell)


class GRUSteps(GatedSteps):
    states = 1

    def forward(self, x, state):
        (steps, rows), units = x.shape[:2], self.units
        gates = torch.addmm(self.input_bias, x.flatten(0, 1), self.input_weight.t()).view(steps, rows, 3 * units)
        hidden = x.new_empty(steps + 1, rows, units)
        recalled = x.new_empty(steps, rows, units)  # what the hidden state contributes to the candidate
        hidden[0] = state[0]
        recurrent, hiddens, recalls = self.hidden_weight.t(), hidden.unbind(), recalled.unbind()
        both, candidates = (part.unbind() for part in gates.split([2 * units, units], 2))
        resets, updates = (part.unbind() for part in gates[:, :, : 2 * units].chunk(2, 2))
        for step in range(steps):
            from_hidden = torch.addmm(self.hidden_bias, hiddens[step], recurrent)
            both[step].add_(from_hidden[:, : 2 * units]).sigmoid_()
            recalls[step].copy_(from_hidden[:, 2 * units :])
            candidates[step].copy_(torch.addcmul(candidates[step], resets[step], recalls[step]).tanh_())
            torch.lerp(candidates[step], hiddens[step], updates[step], out=hiddens[step + 1])
        return hidden[1:], (hiddens[-1],), (gates, hidden, recalled)

    def backward(self, x, saved, into_outputs, into_state, needs_x):
        gates, hidden, recalled = saved
        steps, _, units = recalled.shape
        reset, update, candidate = gates.chunk(3, 2)
        to_update = torch.addcmul(update, update, update, value=-1) * (hidden[:-1] - candidate)
        to_candidate = (1 - update) * (1 - candidate.square())
        to_reset = torch.addcmul(reset, reset, reset, value=-1) * recalled
        if gates[0, :, : 2 * units].amin() < MIN_SLOPE:  # one step is enough to see whether gates are shut
            for slope in (to_update, to_reset):
                torch.hardshrink(slope, MIN_SLOPE, out=slope)
        into_input, into_recurrent = torch.empty_like(gates), torch.empty_like(gates)
        into_hidden = into_state[0]
        for step in reversed(range(steps)):
            if into_outputs is not None:
                into_hidden.add_(into_outputs[step])
            of_candidate = into_hidden * to_candidate[step]
            now, recurrent = into_input[step], into_recurrent[step]
            torch.mul(of_candidate, to_reset[step], out=now[:, :units])
            torch.mul(into_hidden, to_update[step], out=now[:, units : 2 * units])
            now[:, 2 * units :] = of_candidate
            recurrent[:, : 2 * units] = now[:, : 2 * units]
            torch.mul(of_candidate, reset[step], out=recurrent[:, 2 * units :])
            into_hidden = torch.addmm(into_hidden * update[step], recurrent, self.hidden_weight)
        torch.hardshrink(into_hidden, MIN_GRADIENT, out=into_hidden)
        self.add_weight_gradients(x, hidden[:-1], into_input, into_recurrent)
        return into_input @ self.input_weight if needs_x else None, (into_hidden,)
