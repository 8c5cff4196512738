"""LSTM and GRU on a CPU: no autograd graph per step, no work for rows that have answered.

Steps run in blocks. A block takes the rows that are still live, runs them through its steps, and one evaluation of
readout and rule says who answered where. Those rows leave; the little that was computed past an answer inside its
block reaches neither outputs nor gradients. The backward pass goes through the same blocks in reverse, and what is
saved for it grows with the sum of steps read. Without gradients PyTorch's own layers run the blocks and nothing is
saved.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rankcode.cells import GRU, LSTM
from rankcode.engines.cpu.gated_steps import GRUSteps, LSTMSteps
from rankcode.engines.run import Keep, Run, checked_fired, decide_rows, has_fused_step, planted_steps
from rankcode.network import Network
from rankcode.rules import Rule
from rankcode.state import map_state

BLOCK = 10  # steps; a longer block has larger products, and computes more past an answer
FEW = 32  # rows; with fewer the work around a block counts for more, and blocks are twice as long
ALONE = 500_000  # products a gate and step; with fewer a second thread gains nothing, and on busy cores is waited for
SHORT, EARLY = 40, (1, 4)  # in sequences of so many steps the first blocks end here, for those who answer at once


def can_run(network: Network, inputs: Tensor, rule: Rule) -> str | None:
    if not has_fused_step(network):
        return f"{type(network.cell).__name__} has no fused step"
    if inputs.device.type != "cpu":
        return f"the inputs are on {inputs.device}"
    if torch.is_autocast_enabled("cpu"):
        return "in mixed precision its state would not stay float32"
    if network.training and any(isinstance(part, torch.nn.modules.dropout._DropoutNd) for part in network.modules()):
        return "dropout in the readout would be drawn twice"
    return None


def run(
    network: Network, inputs: Tensor, lengths: Tensor, rule: Rule, keep: Keep, expected_steps: Tensor | None = None
) -> Run:
    inputs = inputs.contiguous()
    parameters = list(network.cell.parameters())
    with _threads(network.cell, len(inputs)):
        if torch.is_grad_enabled() and any(part.requires_grad for part in (inputs, *parameters)):
            features, *found = _Fused.apply(inputs, network, lengths, rule, keep, *parameters)  # type: ignore[misc]
            found = _Found(features, *found)
        else:
            found, _ = _read(_Layers(network.cell), network, inputs, lengths, rule, keep)
        logits = network.logits(found.features)
    if keep == "answer":
        decision = decide_rows(network, rule, logits, found.answered, found.fired)
        return Run(decision, logits, found.row, found.answered, lengths, keep)
    at_answer = (found.step == found.answered[found.row]).nonzero()[:, 0]
    answers = logits.detach()[at_answer[found.row[at_answer].argsort()]]
    return Run(decide_rows(network, rule, answers, found.answered, found.fired), logits, *found[1:3], lengths, keep)


@contextmanager
def _threads(cell: Any, rows: int) -> Iterator[None]:
    """One thread for small steps; not in threads of the user's own, for new ones would begin with what is set here."""
    before = torch.get_num_threads()
    own = threading.current_thread() is not threading.main_thread()
    if own or before == 1 or rows * cell.hidden_size * (cell.input_size + cell.hidden_size) >= ALONE:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Found(NamedTuple):
    """Features of the entries that are kept, and where the rows answered."""

    features: Tensor  # [entries, units]
    row: Tensor  # [entries]
    step: Tensor  # [entries]
    answered: Tensor  # [rows]
    fired: Tensor  # [rows]


class _Block(NamedTuple):
    """What the backward pass needs of a block."""

    first: int  # its first step, from 0
    steps: int
    live: Tensor  # [live]: the rows that run in it
    read: Tensor  # [live]: how many of its steps each of them read
    staying: Tensor  # which of them live on, as places in `live`
    inputs: Tensor  # [steps, live, features]
    saved: tuple[Any, ...]  # for each layer, what its steps left


class _Layers:
    """PyTorch's own layers, block by block: the fastest way where no gradient is wanted."""

    def __init__(self, cell: LSTM | GRU):
        self.kind, self.layers, self.units = type(cell), cell.num_layers, cell.hidden_size
        self.weights: Any = list(cell.parameters())

    def start(self, rows: int) -> None:
        zeros = self.weights[0].new_zeros(self.layers, rows, self.units)
        self.state: Any = (zeros, zeros) if self.kind is LSTM else (zeros,)

    def forward(self, x: Tensor) -> tuple[Tensor, Any]:
        """Features of a block [steps, live, features], and what is saved of it."""
        # bias, layers, dropout, train, bidirectional, rows first
        settings = (True, self.layers, 0.0, False, False, False)
        if self.kind is LSTM:
            features, *self.state = torch.lstm(x, self.state, self.weights, *settings)
        else:
            features, *self.state = torch.gru(x, self.state[0], self.weights, *settings)
        return features, None

    def choose(self, staying: Tensor) -> None:
        self.state = [part.index_select(1, staying) for part in self.state]


class _Steps:
    """Layers of our own, which save what a backward pass of our own needs."""

    def __init__(self, cell: LSTM | GRU):
        kind: Any = LSTMSteps if isinstance(cell, LSTM) else GRUSteps
        self.layers = [kind(*(part.detach() for part in cell.weights(layer))) for layer in range(cell.num_layers)]

    def start(self, rows: int) -> None:
        self.states: list[Any] = [layer.start(rows) for layer in self.layers]

    def forward(self, x: Tensor) -> tuple[Tensor, Any]:
        saved = []
        for number, layer in enumerate(self.layers):
            x, self.states[number], left = layer.forward(x, self.states[number])
            saved.append(left)
        return x, tuple(saved)

    def choose(self, staying: Tensor) -> None:
        self.states = [tuple(part.index_select(0, staying) for part in state) for state in self.states]


def _read(
    layers: _Layers | _Steps, network: Network, inputs: Tensor, lengths: Tensor, rule: Rule, keep: Keep
) -> tuple[_Found, list[_Block]]:
    """Run all rows until they answer."""
    rows, steps = len(inputs), int(lengths.max())
    live, ends = torch.arange(rows), lengths
    layers.start(rows)
    planted = planted_steps(rule, lengths)
    rule_state = rule.initial_state(rows) if planted is None else planted
    answered, fired = torch.empty_like(lengths), torch.empty(rows, dtype=torch.bool)
    entries: list[tuple[Tensor, ...]] = []  # features and rows of those kept, and their steps, block by block
    blocks: list[_Block] = []
    first = 0
    while True:  # until every row has answered, which it does at its end
        count = _block(first, steps, len(live))
        x = _gathered(inputs, live, first, count)
        features, saved = layers.forward(x)
        spikes, rule_state = _spikes(network, rule, features, first, rule_state)
        inside = torch.arange(count)[:, None]
        done = spikes | (inside + (first + 1) >= ends)
        leaves = done.any(0)
        leaving, staying = leaves.nonzero()[:, 0], (~leaves).nonzero()[:, 0]
        read = torch.where(leaves, done.int().argmax(0) + 1, count)
        at, gone = read[leaving] - 1, live[leaving]
        answered[gone] = first + 1 + at
        fired[gone] = spikes[at, leaving]
        if keep == "answer":
            entries.append((features[at, leaving], gone))
        else:
            within, place = (inside < read).nonzero(as_tuple=True)
            entries.append((features[within, place], live[place], first + 1 + within))
        if saved is not None:
            past = (inside >= read).flatten().nonzero()[:, 0]
            if len(past):  # zero times NaN would be NaN
                for part in (x, *(whole for layer in saved for whole in layer)):
                    part[-count:].flatten(0, 1).index_fill_(0, past, 0.0)
            blocks.append(_Block(first, count, live, read, staying, x, saved))
        if len(staying) == 0:
            break
        if len(leaving):
            live, ends = live[staying], ends[staying]
            layers.choose(staying)
            rule_state = map_state(lambda part, at=staying: part[at], rule_state)
        first += count
    columns = [torch.cat(column) for column in zip(*entries, strict=True)]
    if keep == "answer":
        order = columns[1].argsort()
        columns = [columns[0][order], columns[1][order], answered.clone()]
    return _Found(columns[0], columns[1], columns[2], answered, fired), blocks


class _Fused(torch.autograd.Function):
    """`_read`, with gradients."""

    @staticmethod
    def forward(ctx, inputs, network, lengths, rule, keep, *parameters):  # type: ignore[override]
        layers = _Steps(network.cell)
        found, blocks = _read(layers, network, inputs, lengths, rule, keep)
        tensors = [(*block[2:6], *(part for layer in block.saved for part in layer)) for block in blocks]
        ctx.save_for_backward(inputs, *(part for block in tensors for part in block))
        ctx.layers, ctx.keep, ctx.blocks = layers.layers, keep, [block[:2] for block in blocks]
        ctx.cell = network.cell
        ctx.mark_non_differentiable(*found[1:])
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient, *_):  # type: ignore[override]
        inputs, *tensors = ctx.saved_tensors
        into_inputs = torch.zeros_like(inputs) if ctx.needs_input_grad[0] else None
        for layer in ctx.layers:
            layer.zero_gradients()
        after: list[Any] = [None] * len(ctx.layers)  # gradients of the states that a block hands on
        entries = len(gradient)
        with _threads(ctx.cell, len(inputs)):
            for block in reversed(_blocks(ctx.blocks, tensors)):
                if ctx.keep == "answer":
                    arriving = _at_answers(gradient, block)
                else:
                    size = int(block.read.sum())
                    arriving = _at_read(gradient[entries - size : entries], block)
                    entries -= size
                for number in reversed(range(len(ctx.layers))):
                    below = block.saved[number - 1][1][1:] if number else block.inputs  # the outputs of the layer below
                    needed = number > 0 or into_inputs is not None
                    arriving, after[number] = ctx.layers[number].backward(
                        below, block.saved[number], arriving, _spread(after[number], block), needed
                    )
                if into_inputs is not None:
                    into_inputs[:, block.first : block.first + block.steps][block.live] = arriving.transpose(0, 1)
        gradients = [part for layer in ctx.layers for part in layer.sums]
        return (into_inputs, None, None, None, None, *gradients)


def _blocks(places: list[tuple[int, int]], tensors: list[Tensor]) -> list[_Block]:
    """Blocks from where they are and what was saved of them, one after the other."""
    size = len(tensors) // len(places)
    blocks = []
    for number, (first, steps) in enumerate(places):
        live, read, staying, x, *saved = tensors[number * size : (number + 1) * size]
        layers = tuple(tuple(saved[at : at + 3]) for at in range(0, len(saved), 3))
        blocks.append(_Block(first, steps, live, read, staying, x, layers))
    return blocks


def _block(first: int, steps: int, live: int) -> int:
    """How many steps the block has that begins after `first`."""
    early = [end for end in EARLY if first < end] if steps <= SHORT else []
    end = early[0] if early else first // BLOCK * BLOCK + (BLOCK if live >= FEW else 2 * BLOCK)
    return min(end, steps) - first


def _gathered(inputs: Tensor, live: Tensor, first: int, count: int) -> Tensor:
    """Inputs of a block, step first: [steps, live, features]."""
    rows, steps, *features = inputs.shape
    where = live * steps + torch.arange(first, first + count)[:, None]
    return inputs.view(rows * steps, *features).index_select(0, where.flatten()).view(count, len(live), *features)


def _spikes(network: Network, rule: Rule, features: Tensor, first: int, state: Any) -> tuple[Tensor, Any]:
    """Whether the rule fires, [steps, live], and its state after the block."""
    steps, live = features.shape[:2]
    if hasattr(rule, "planted_steps"):
        return state <= torch.arange(first + 1, first + steps + 1)[:, None], state
    activations, probabilities = network.activate(network.logits(features.flatten(0, 1)))
    activations, probabilities = (part.view(steps, live, -1) for part in (activations, probabilities))
    if hasattr(rule, "table"):
        table = rule.table(range(first + 1, first + steps + 1), network.num_classes).to(activations)  # type: ignore
        return (activations >= table[:, None]).any(2), state
    spikes = torch.empty(steps, live, dtype=torch.bool)
    for k in range(steps):
        spikes[k], state = checked_fired(rule(activations[k], probabilities[k], first + k + 1, state), live)
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
