"""Blocks of steps, one after the other: rows that answer in a block leave after it.

A block runs the rows that are still live through its steps, then evaluates readout and rule once for all of them. What
was computed past an answer inside its block reaches neither outputs nor gradients. Memory follows the sum of steps
read: what a block needs for its backward pass belongs to the autograd graph, and without gradients nothing is saved.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rankcode.cells import GRU, LSTM
from rankcode.engines.cpu.gated_steps import GRUSteps, LSTMSteps
from rankcode.engines.run import Keep, Run, checked_fired, decide_rows, planted_steps
from rankcode.network import Network
from rankcode.rules import Rule
from rankcode.state import map_state

BLOCK_STEPS = 10  # a longer block has larger matrix multiplications, but computes more past an answer
FEW_ROWS = 32  # with fewer live rows the overhead of a block counts for more, and blocks are longer:
FEW_ROWS_GROWTH = 8  # of the steps read before, at least one in so many
MAX_BLOCK_SIZE = 2**12  # steps × rows; bounds the memory of a block
SHORT_STEPS, SHORT_STARTS = 40, (1, 4)  # sequences of up to 40 steps: the first blocks end early, for early answers


def read(network: Network, inputs: Tensor, lengths: Tensor, rule: Rule, keep: Keep, small: bool) -> Run:
    """Run all rows until they answer. `small` networks are computed in one thread."""
    rows, steps = len(inputs), int(lengths.max())
    weights = [network.cell.weights(layer) for layer in range(network.cell.num_layers)]
    tensors = (inputs, *(part for layer in weights for part in layer))
    with_gradients = torch.is_grad_enabled() and any(part.requires_grad for part in tensors)
    layers = (_OwnLayers if with_gradients else TorchLayers)(network.cell, weights, rows, small)
    columns = inputs.unbind(1) if with_gradients and inputs.requires_grad else None
    planted = planted_steps(rule, lengths)
    live, ends = torch.arange(rows), lengths if planted is None else planted.minimum(lengths)
    rule_state = rule.initial_state(rows)
    answered, fired = torch.empty_like(lengths), torch.zeros(rows, dtype=torch.bool)
    entries: list[tuple[Tensor, ...]] = []  # for each block: logits (or features, if the rule is planted), row and step
    first = 0
    while True:  # until every row has answered, which it does at its end
        x = _gathered(inputs, columns, live, first, _block_steps(first, steps, len(live)))
        if torch.is_grad_enabled():  # for the readout's gradient too
            x = _finite(x, ends - first)
        outputs = layers.forward(x).flatten(0, 1)  # [steps · live, units]
        inside = torch.arange(len(x))[:, None]
        done = spikes = inside + 1 >= ends - first  # [steps, live]
        if planted is None:
            outputs = network.logits(outputs)
            with torch.no_grad():
                spikes, rule_state = block_spikes(network, rule, outputs.view(*done.shape, -1), first, rule_state)
            done = done | spikes
        leaves = done.any(0)
        leaving, staying = leaves.nonzero()[:, 0], (~leaves).nonzero()[:, 0]
        steps_read = torch.where(leaves, done.int().argmax(0) + 1, len(x))
        at = steps_read[leaving] - 1
        answered[live[leaving]] = first + 1 + at
        fired[live[leaving]] = spikes[at, leaving]
        kept = at * len(live) + leaving if keep == "answer" else (inside < steps_read).flatten().nonzero()[:, 0]
        if len(kept):
            step, row = kept // len(live), kept % len(live)
            entries.append((outputs.index_select(0, kept), live[row], first + 1 + step))
        if len(staying) == 0:
            break
        if len(leaving):
            live, ends = live[staying], ends[staying]
            layers.select(staying)
            rule_state = map_state(lambda part, at=staying: part[at], rule_state)
        first += len(x)
    logits, row, step = (torch.cat(column) for column in zip(*entries, strict=True))
    if planted is not None:
        logits, fired = network.logits(logits), planted <= lengths
    last = (step == answered[row]).nonzero()[:, 0]
    answers = logits[last[row[last].argsort()]]
    decision = decide_rows(network, rule, answers, answered, fired)
    if keep == "answer":
        return Run(decision, answers, torch.arange(rows), answered, lengths, keep)
    return Run(decision, logits, row, step, lengths, keep)


class TorchLayers:
    """PyTorch's own layers, block by block: the fastest way without gradients."""

    def __init__(self, cell: LSTM | GRU, weights: list[tuple[Tensor, ...]], rows: int, small: bool):
        self.is_lstm, self.weights = isinstance(cell, LSTM), [part for layer in weights for part in layer]
        # bias, layers, dropout, train, bidirectional, batch_first
        self.settings = (True, cell.num_layers, 0.0, False, False, False)
        zeros = self.weights[0].new_zeros(cell.num_layers, rows, cell.hidden_size)
        self.state: Any = (zeros, zeros) if self.is_lstm else (zeros,)

    def forward(self, x: Tensor) -> Tensor:
        """Features of a block, from its inputs [steps, live, features]."""
        if self.is_lstm:
            features, *self.state = torch.lstm(x, self.state, self.weights, *self.settings)
        else:
            features, *self.state = torch.gru(x, self.state[0], self.weights, *self.settings)
        return features

    def select(self, staying: Tensor) -> None:
        self.state = [part.index_select(1, staying) for part in self.state]


class _OwnLayers:
    """Layers whose blocks are single nodes of the autograd graph."""

    def __init__(self, cell: LSTM | GRU, weights: list[tuple[Tensor, ...]], rows: int, small: bool):
        kind: Any = LSTMSteps if isinstance(cell, LSTM) else GRUSteps
        self.layers = [kind(*layer, small=small) for layer in weights]
        self.states: list[Any] = [layer.initial_state(rows) for layer in self.layers]

    def forward(self, x: Tensor) -> Tensor:
        for number, layer in enumerate(self.layers):
            x, *self.states[number] = layer(x, self.states[number])
        return x

    def select(self, staying: Tensor) -> None:
        self.states = [[part.index_select(0, staying) for part in state] for state in self.states]


def _block_steps(first: int, steps: int, live: int) -> int:
    """The number of steps of the block that begins after `first` steps."""
    end = first // BLOCK_STEPS * BLOCK_STEPS + BLOCK_STEPS
    if live < FEW_ROWS:
        grown = min(first // FEW_ROWS_GROWTH, MAX_BLOCK_SIZE // live)
        end += max(BLOCK_STEPS, grown // BLOCK_STEPS * BLOCK_STEPS)
    if steps <= SHORT_STEPS:
        end = min([start for start in SHORT_STARTS if first < start], default=end)
    return min(end, steps) - first


def _gathered(inputs: Tensor, columns: tuple[Tensor, ...] | None, live: Tensor, first: int, count: int) -> Tensor:
    """Inputs of a block, step first: [steps, live, features]. `columns`, one for each step, if they need gradients:
    the gradient of `unbind` takes linear time, that of indexing in every block quadratic time."""
    if columns is not None:
        return torch.stack(columns[first : first + count]).index_select(1, live)
    if not inputs.is_contiguous():
        return inputs[:, first : first + count].transpose(0, 1).index_select(1, live)
    rows, steps, features = inputs.shape
    where = live * steps + torch.arange(first, first + count)[:, None]
    return inputs.view(rows * steps, features).index_select(0, where.flatten()).view(count, len(live), features)


def _finite(x: Tensor, ends: Tensor) -> Tensor:
    """The inputs of a block, with zeros past the ends of rows, and cut before NaN or infinity. What is computed past an
    answer gets a gradient of zero, and zero times NaN would be NaN. A row that is live after the cut does read it."""
    past = (torch.arange(len(x))[:, None] >= ends).flatten().nonzero()[:, 0]
    if len(past):
        x = x.flatten(0, 1).index_fill_(0, past, 0.0).view_as(x)
    if x.detach().sum().isfinite():  # then every value is
        return x
    bad = (~x.detach().isfinite()).flatten(1).any(1).nonzero()[:, 0]
    return x[: bad[0]] if len(bad) and bad[0] > 0 else x


def block_spikes(network: Network, rule: Any, logits: Tensor, first: int, state: Any) -> tuple[Tensor, Any]:
    """Whether the rule fires, [steps, live], and its state after the block."""
    steps, live = logits.shape[:2]
    activations, probabilities = network.activate(logits)
    if hasattr(rule, "table"):
        table = rule.table(range(first + 1, first + steps + 1), network.num_classes).to(activations)
        return (activations >= table[:, None]).any(2), state
    spikes = torch.empty(steps, live, dtype=torch.bool)
    for k in range(steps):
        spikes[k], state = checked_fired(rule(activations[k], probabilities[k], first + k + 1, state), live)
    return spikes, state
