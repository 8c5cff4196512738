"""Cells that read many steps at once, on a CPU: blocks of steps, and rows that have answered leave between blocks.

LSTM and GRU run with PyTorch's own layers. Readout and rule are evaluated for all steps of a block at once. What was
computed past an answer inside its block reaches neither outputs nor gradients. Time and memory follow the sum of steps
read.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rankcode.cells import LSTM
from rankcode.engines.cpu_settings import is_small, run_with_settings
from rankcode.engines.run import Keep, Run, ask, decide_rows, planted_steps, reads_sequences
from rankcode.network import Network
from rankcode.rules import Rule
from rankcode.state import map_state

BLOCK_COST = 16_000_000  # of calling layer, readout and rule, in multiplications of values with weights
NATIVE_BLOCK_COST = 4_000_000  # the same without oneDNN, which prepares weights and memory in every call
MAX_BLOCK_VALUES = 2**21  # saved by a block; if the memory of a block is too large, it is mapped anew each time
UNKNOWN_STEPS = 100  # if it is unknown where rows answer, half of them is expected to answer in this many steps
STEP_COST = 100_000  # of one step, whatever the number of rows, in the same multiplications


def can_run(network: Network, inputs: Tensor, rule: Rule) -> str | None:
    if not reads_sequences(network):
        return f"{type(network.cell).__name__} reads one step at a time"
    if inputs.device.type != "cpu":
        return f"the inputs are on {inputs.device}"
    if torch.is_autocast_enabled("cpu"):
        return "in mixed precision its state would not stay float32"
    return None


def run(
    network: Network, inputs: Tensor, lengths: Tensor, rule: Rule, keep: Keep, expected_steps: Tensor | None = None
) -> Run:
    if expected_steps is None or expected_steps is lengths:  # the lengths are passed where nothing else is known
        expected = np.empty(0, int)
    else:
        expected = np.sort(expected_steps.numpy())
    small, native = is_small(network.cell, inputs.shape[0]), _is_faster_without_onednn(network.cell, inputs)
    onednn = isinstance(network.cell, LSTM) and inputs.dtype == torch.float32 and not native
    blocks = _Blocks(network, inputs, expected, BLOCK_COST if onednn else NATIVE_BLOCK_COST)
    return run_with_settings(lambda: _read(network, blocks, lengths, rule, keep), small, native)


def is_single_block(network: Network, inputs: Tensor) -> bool:
    """Whether whole sequences of an LSTM take no longer than what surrounds a block: then there is nothing to save. The
    steps of a GRU take longer, whatever its size."""
    (rows, steps), weights = inputs.shape[:2], sum(part.numel() for part in network.cell.parameters())
    return isinstance(network.cell, LSTM) and steps * (STEP_COST + rows * weights) < BLOCK_COST


def _is_faster_without_onednn(cell: nn.Module, inputs: Tensor) -> bool:
    """oneDNN's LSTM always computes the gradient of its inputs, which takes long if these are large."""
    if not isinstance(cell, LSTM) or not torch.is_grad_enabled() or inputs.requires_grad:
        return False
    return len(inputs) >= 64 and cell.input_size >= 256 and cell.hidden_size >= 32


def _read(network: Network, blocks: _Blocks, lengths: Tensor, rule: Rule, keep: Keep) -> Run:
    """Run all rows until they answer. Which rows do is worked out in numpy, which takes a third of PyTorch's time for
    small arrays."""
    planted = planted_steps(rule, lengths)
    if planted is None:
        answered, fired = lengths.clone(), torch.zeros_like(lengths, dtype=torch.bool)
    else:
        answered, fired = planted.minimum(lengths), planted <= lengths
    rows, ends = lengths.shape[0], answered.numpy().copy()
    live, rule_state, spikes = np.arange(rows), rule.initial_state(rows), np.empty(0)
    entries = []  # of each block: logits (or features, if the rule is planted), row and step
    first = 0
    while live.size:  # every row answers at its end
        steps_read = ends - first  # or fewer, if the rule fires before
        features = blocks.next(live, steps_read, first, certain=planted is not None)
        steps, outputs = features.shape[0], features.flatten(0, 1)  # [steps · live, units]
        if planted is None:
            outputs = network.logits(outputs)
            with torch.no_grad():
                logits = outputs.view(steps, live.size, -1)
                found, rule_state = block_spikes(network, rule, features, logits, first, rule_state)
            spikes = found.numpy()
            steps_read = np.minimum(steps_read, np.where(spikes.any(0), spikes.argmax(0) + 1, steps + 1))
        leaving = (steps_read <= steps).nonzero()[0]
        step, place = steps_read[leaving] - 1, leaving
        if planted is None:
            answered.numpy()[live[leaving]] = first + 1 + step
            fired.numpy()[live[leaving]] = spikes[step, leaving]
        if keep == "read":
            step, place = (np.arange(steps)[:, None] < steps_read).nonzero()
        if place.size:
            kept = outputs.index_select(0, torch.from_numpy(step * live.size + place))
            entries.append((kept, live[place], first + 1 + step))
        first += steps
        staying = (steps_read > steps).nonzero()[0]
        live, ends = live[staying], ends[staying]
        if leaving.size and live.size:
            index = torch.from_numpy(staying)
            blocks.select(index)
            rule_state = map_state(lambda part, at=index: part[at], rule_state)
    parts, row, step = zip(*entries, strict=True)
    logits, row, step = torch.cat(parts), np.concatenate(row), np.concatenate(step)
    if planted is not None:
        logits = network.logits(logits)
    last = (step == answered.numpy()[row]).nonzero()[0]
    answers = logits.index_select(0, torch.from_numpy(last[row[last].argsort()]))
    decision = decide_rows(network, rule, answers, answered, fired)
    if keep == "answer":
        return Run(decision, answers, torch.arange(rows), answered, lengths, keep)
    return Run(decision, logits, torch.from_numpy(row), torch.from_numpy(step), lengths, keep)


class _Blocks:
    """Blocks of the inputs [rows, steps, features], and how many steps they have."""

    def __init__(self, network: Network, inputs: Tensor, expected: np.ndarray, cost: int):
        self.cell, self.inputs, self.state = network.cell, inputs.transpose(0, 1), network.initial_state(len(inputs))
        self.expected, self.cost = expected, cost  # the steps at which rows answer, in order, and the cost of a block
        self.with_gradients = torch.is_grad_enabled()
        # The gradient of `unbind` takes linear time, that of indexing in every block quadratic time.
        self.columns = inputs.unbind(1) if self.with_gradients and inputs.requires_grad else None
        weights = list(self.cell.parameters())
        self.row_cost = sum(part.numel() for part in weights)
        units, features = sum(part.numel() for part in weights if part.dim() == 1) // 8, inputs[0, 0].numel()
        self.values = 15 * units + 4 * features if self.with_gradients else units + features

    def next(self, live: np.ndarray, remaining: np.ndarray, first: int, certain: bool) -> Tensor:
        """Outputs [steps, live, units] of the next block. Rows answer after the `remaining` steps; unless this is
        certain, they may also answer before."""
        steps = self._steps(remaining if certain else self._guessed(remaining, first))
        block = slice(first, first + steps)
        x = self.inputs[block] if self.columns is None else torch.stack(self.columns[block])
        x = x.index_select(1, torch.from_numpy(live))
        if self.with_gradients:
            x = _finite(x, remaining)
        features, self.state = self.cell.forward_sequence(x.transpose(0, 1), self.state)
        return features.transpose(0, 1)

    def select(self, staying: Tensor) -> None:
        """Read on with these rows only."""
        self.state = map_state(lambda part: part.index_select(0, staying), self.state)

    def _guessed(self, remaining: np.ndarray, first: int) -> np.ndarray:
        """After how many steps rows will probably answer: as expected, or else one half spread evenly and one late."""
        rows, later = remaining.size, self.expected[np.searchsorted(self.expected, first, "right") :] - first
        if later.size:
            guess = later[np.arange(rows) * later.size // rows]
        else:
            spread = 2 * min(UNKNOWN_STEPS, int(remaining.max())) + first // 2
            guess = np.arange(1, rows + 1) * spread // (rows + 1)
        return np.minimum(guess, remaining).clip(1)

    def _steps(self, remaining: np.ndarray) -> int:
        """The number of steps for which the cost per step read is lowest, if rows answer after `remaining` steps. It is
        one of these numbers; the highest, if the rows that leave before would not save the cost of another block."""
        remaining, rows = np.sort(remaining), remaining.size
        read = remaining.cumsum() + remaining * np.arange(rows - 1, -1, -1)
        steps = int(remaining[np.argmin((self.cost + remaining * (rows * self.row_cost)) / read)])
        leaving, longest = int(np.searchsorted(remaining, steps, "right")), int(remaining[-1])
        if leaving * (longest - steps) * self.row_cost <= self.cost:
            steps = longest
        blocks = max(1, steps * rows * self.values // MAX_BLOCK_VALUES)
        return -(-steps // blocks)


def _finite(x: Tensor, remaining: np.ndarray) -> Tensor:
    """The inputs of a block, with zeros past the ends of rows, and cut before NaN or infinity. What is computed past an
    answer gets a gradient of zero, and zero times NaN would be NaN. A row that is live after the cut does read it."""
    steps = x.shape[0]
    if remaining.min() < steps:
        past = (np.arange(steps)[:, None] >= remaining).ravel().nonzero()[0]
        x = x.flatten(0, 1).index_fill_(0, torch.from_numpy(past), 0.0).view_as(x)
    if x.detach().sum().isfinite():  # then every value is
        return x
    bad = (~x.detach().isfinite()).flatten(1).any(1).nonzero()[:, 0]
    return x[: bad[0]] if len(bad) and bad[0] > 0 else x


def block_spikes(
    network: Network, rule: Any, features: Tensor, logits: Tensor, first: int, state: Any
) -> tuple[Tensor, Any]:
    """Whether the rule fires, [steps, live], and its state after a block of features and logits [steps, live, …]."""
    steps, live = logits.shape[:2]
    activations, probabilities = network.activate(logits)
    if hasattr(rule, "table"):
        table = rule.table(range(first + 1, first + steps + 1), network.num_classes).to(activations)
        return (activations >= table[:, None]).any(2), state
    spikes = torch.empty(steps, live, dtype=torch.bool)
    for k in range(steps):
        spikes[k], state = ask(rule, activations[k], probabilities[k], first + k + 1, state, features[k])
    return spikes, state
