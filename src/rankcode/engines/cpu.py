"""LSTM and GRU on a CPU: no autograd graph per step, no work for rows that have answered.

Steps run in blocks. A block takes the rows that are still live: one large product gives what the inputs
contribute to all of its steps, the recurrence runs step by step into preallocated memory, and one evaluation of
readout and rule says who answered where. Those rows leave; the little that was computed past an answer inside its
block reaches neither outputs nor gradients. The backward pass goes through the same blocks in reverse, each with
one product for each weight. What is saved for it grows with the sum of steps read.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rankcode.cells import GRU, LSTM
from rankcode.engines.gated_steps import GRUSteps, LSTMSteps
from rankcode.engines.run import Keep, Run, checked_fired, decide_rows
from rankcode.network import Network
from rankcode.rules import FireAt, Never, Rule
from rankcode.state import map_state

BLOCK = 4  # steps; a longer block has larger products, and computes more past an answer


def can_run(network: Network, inputs: Tensor) -> str | None:
    """The reason why not, or None."""
    if type(network.cell) not in (LSTM, GRU):
        return f"{type(network.cell).__name__} has no fused step"
    if inputs.device.type != "cpu":
        return f"the inputs are on {inputs.device}"
    if torch.is_autocast_enabled("cpu"):
        return "in mixed precision its state would not stay float32"
    if network.training and any(isinstance(part, torch.nn.modules.dropout._DropoutNd) for part in network.modules()):
        return "dropout in the readout would be drawn twice"
    return None


def run(network: Network, inputs: Tensor, lengths: Tensor, rule: Rule, keep: Keep) -> Run:
    if reason := can_run(network, inputs):
        raise ValueError(f"the engine cpu cannot run this network: {reason}")
    features, row, step, answered, fired = _Fused.apply(  # type: ignore[misc]
        inputs, network, lengths, rule, keep, *network.cell.parameters()
    )
    logits = network.logits(features)
    if keep == "answer":
        return Run(decide_rows(network, rule, logits, answered, fired), logits, row, answered, lengths)
    at_answer = (step == answered[row]).nonzero()[:, 0]
    answers = logits.detach()[at_answer[row[at_answer].argsort()]]
    return Run(decide_rows(network, rule, answers, answered, fired), logits, row, step, lengths)


class _Block(NamedTuple):
    """What the backward pass needs of a block."""

    first: int  # its first step, from 0
    steps: int
    live: Tensor  # [live]: the rows that run in it
    read: Tensor  # [live]: how many of its steps each of them read
    staying: Tensor  # which of them live on, as places in `live`
    saved: tuple[Any, ...]  # for each layer, what its steps left


class _Fused(torch.autograd.Function):
    """Features at the answers, or at every step read, of all rows."""

    @staticmethod
    def forward(ctx, inputs, network, lengths, rule, keep, *parameters):  # type: ignore[override]
        layers = _layers(network.cell)
        keeps_blocks = any(ctx.needs_input_grad)
        rows, steps = len(inputs), int(lengths.max())
        clean = _is_clean(inputs)
        live, ends = torch.arange(rows), lengths
        states: list[Any] = [layer.start(rows) for layer in layers]
        rule_state = rule.initial_state(rows)
        answered, fired = torch.empty_like(lengths), torch.empty(rows, dtype=torch.bool)
        found = []  # (features, row, step) of the entries kept, block by block
        blocks: list[_Block] = []
        for first in range(0, steps, BLOCK):
            count = min(BLOCK, steps - first)
            x = _gathered(inputs, live, first, count, clean)
            saved = []
            for number, layer in enumerate(layers):
                x, states[number], left = layer.forward(x, states[number], keeps_blocks)
                saved.append(left)
            spikes, rule_state = _spikes(network, rule, x, first, rule_state)
            step = torch.arange(first + 1, first + count + 1)[:, None]
            done = spikes | (step >= ends)
            leaves = done.any(0)
            read = torch.where(leaves, done.int().argmax(0) + 1, count)
            leaving, staying = leaves.nonzero()[:, 0], (~leaves).nonzero()[:, 0]
            at = read[leaving] - 1
            answered[live[leaving]] = first + read[leaving]
            fired[live[leaving]] = spikes[at, leaving] & (first + read[leaving] <= ends[leaving])
            if keep == "answer":
                found.append((x[at, leaving], live[leaving], None))
            else:
                inside, place = (torch.arange(count)[:, None] < read).nonzero(as_tuple=True)
                found.append((x[inside, place], live[place], first + 1 + inside))
            if keeps_blocks:
                blocks.append(_Block(first, count, live, read, staying, tuple(saved)))
            if len(staying) == 0:
                break
            if len(leaving):
                live, ends = live[staying], ends[staying]
                states = [map_state(lambda part, at=staying: part[at], state) for state in states]
                rule_state = map_state(lambda part, at=staying: part[at], rule_state)
        features, row = (torch.cat([each[k] for each in found]) for k in (0, 1))
        if keep == "answer":
            order = row.argsort()
            features, row, step = features[order], row[order], answered
        else:
            step = torch.cat([each[2] for each in found])
        ctx.save_for_backward(inputs, *parameters)
        ctx.layers, ctx.blocks, ctx.keep, ctx.clean = layers, blocks, keep, clean
        ctx.mark_non_differentiable(row, step, answered, fired)
        return features, row, step, answered, fired

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient, *_):  # type: ignore[override]
        inputs, *_ = ctx.saved_tensors
        into_inputs = torch.zeros_like(inputs) if ctx.needs_input_grad[0] else None
        for layer in ctx.layers:
            layer.zero_gradients()
        after: list[Any] = [None] * len(ctx.layers)  # gradients of the states that a block hands on
        entries = len(gradient)
        for block in reversed(ctx.blocks):
            x = _gathered(inputs, block.live, block.first, block.steps, ctx.clean)
            if ctx.keep == "answer":
                arriving = _at_answers(gradient, block)
            else:
                size = int(block.read.sum())
                arriving = _at_read(gradient[entries - size : entries], block)
                entries -= size
            for number in reversed(range(len(ctx.layers))):
                below = block.saved[number - 1][1][1:] if number else x  # the outputs of the layer below
                state = _spread(after[number], block)
                needed = number > 0 or into_inputs is not None
                arriving, after[number] = ctx.layers[number].backward(
                    below, block.saved[number], arriving, state, needed
                )
            if into_inputs is not None:
                window = into_inputs[:, block.first : block.first + block.steps]
                window[block.live] = arriving.transpose(0, 1)
        gradients = [part for layer in ctx.layers for part in layer.sums]
        return (into_inputs, None, None, None, None, *gradients)


def _layers(cell: LSTM | GRU) -> list[LSTMSteps] | list[GRUSteps]:
    kind: Any = LSTMSteps if isinstance(cell, LSTM) else GRUSteps
    kinds = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    return [kind(*(getattr(cell, f"{name}_l{layer}").detach() for name in kinds)) for layer in range(cell.layers)]


def _is_clean(inputs: Tensor) -> bool:
    """Whether all inputs are finite; a sum tells in one pass, and at worst says no."""
    return bool(inputs.detach().sum().isfinite())


def _gathered(inputs: Tensor, live: Tensor, first: int, count: int, clean: bool) -> Tensor:
    """Inputs of a block, step first: [steps, live, features]. What is no number is past an answer, or reported."""
    window = inputs[:, first : first + count].transpose(0, 1)
    window = window.contiguous() if len(live) == len(inputs) else window.index_select(1, live)
    return window if clean else window.nan_to_num(0.0, 0.0, 0.0)


def _spikes(network: Network, rule: Rule, features: Tensor, first: int, state: Any) -> tuple[Tensor, Any]:
    """Whether the rule fires, [steps, live], and its state after the block."""
    steps, live = features.shape[:2]
    if isinstance(rule, Never):
        return torch.zeros(steps, live, dtype=torch.bool), state
    if isinstance(rule, FireAt):
        return state <= torch.arange(first + 1, first + steps + 1)[:, None], state
    activations, probabilities = network.activate(network.logits(features.flatten(0, 1)))
    activations, probabilities = (part.view(steps, live, -1) for part in (activations, probabilities))
    if hasattr(rule, "table"):
        table = rule.table(first + steps, network.classes)[first:].to(activations)  # type: ignore[attr-defined]
        return (activations >= table[:, None]).any(2), state
    spikes = torch.empty(steps, live, dtype=torch.bool)
    for k in range(steps):
        fired, state = rule(activations[k], probabilities[k], first + k + 1, state)
        spikes[k] = checked_fired(fired, live)
    return spikes, state


def _at_answers(gradient: Tensor, block: _Block) -> Tensor:
    """The gradient of the features, at the place of each answer in the block: [steps, live, units]."""
    arriving = gradient.new_zeros(block.steps, len(block.live), gradient.shape[1])
    leaving = torch.ones(len(block.live), dtype=torch.bool)
    leaving[block.staying] = False
    place = leaving.nonzero()[:, 0]
    arriving[block.read[place] - 1, place] = gradient[block.live[place]]
    return arriving


def _at_read(gradient: Tensor, block: _Block) -> Tensor:
    arriving = gradient.new_zeros(block.steps, len(block.live), gradient.shape[1])
    arriving[torch.arange(block.steps)[:, None] < block.read] = gradient
    return arriving


def _spread(after: Any, block: _Block) -> Any:
    """Gradients of the states of the rows that lived on, among zeros for those that left."""
    if after is None or len(block.staying) == len(block.live):
        return after
    return map_state(
        lambda part: part.new_zeros(len(block.live), part.shape[1]).index_copy(0, block.staying, part), after
    )
