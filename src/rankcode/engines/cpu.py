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
from rankcode.engines.run import Keep, Run, activate, ask, decide_rows, planted_steps, reads_sequences
from rankcode.network import Network
from rankcode.rules import Rule
from rankcode.state import map_state

MAX_BLOCK_VALUES = 2**21  # saved by a block; if the memory of a block is too large, it is mapped anew each time
MAX_ENDS = 16  # steps at which blocks may end when they are planned
UNKNOWN_STEPS = 100  # if it is unknown where rows answer, half of them is expected to answer in this many steps
MAX_SINGLE_BLOCK = 1500  # steps of all rows, which cost more than a block whatever the cell
MIN_ROWS_TURNED = 200  # for fewer, a linear layer is as fast either way
# Readouts of these modules give the same logits each time. A dropout, for example, does not.
REPEATABLE = {nn.Sequential, nn.Linear, nn.Flatten, nn.Identity, nn.LayerNorm, nn.ReLU, nn.GELU, nn.Tanh, nn.Sigmoid}


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
    plan = _Plan(network, inputs)
    if expected_steps is not None and expected_steps is not lengths:  # lengths are passed where nothing else is known
        plan.expect(np.sort(expected_steps.numpy()), len(inputs))
    small = is_small(plan.weights, len(inputs))
    return run_with_settings(lambda: _read(network, inputs, lengths, rule, keep, plan), small, plan.native)


def is_single_block(network: Network, inputs: Tensor) -> bool:
    """Whether whole sequences take no longer than what surrounds a block: then there is nothing to save."""
    if len(inputs) * inputs.shape[1] > MAX_SINGLE_BLOCK:
        return False
    plan = _Plan(network, inputs)
    return plan.cost(inputs.shape[1], len(inputs)) < plan.block_cost


def _is_faster_without_onednn(cell: nn.Module, inputs: Tensor) -> bool:
    """oneDNN's LSTM always computes the gradient of its inputs, which takes long if these are large."""
    if not isinstance(cell, LSTM) or not torch.is_grad_enabled() or inputs.requires_grad:
        return False
    return len(inputs) >= 64 and cell.input_size >= 256 and cell.hidden_size >= 32


def _read(network: Network, inputs: Tensor, lengths: Tensor, rule: Rule, keep: Keep, plan: _Plan) -> Run:
    """Run all rows until they answer. Which rows do is worked out in numpy, which takes a third of PyTorch's time for
    small arrays."""
    rows, gradients, planted = len(inputs), torch.is_grad_enabled(), planted_steps(rule, lengths)
    if planted is None:
        answered, fired = lengths.numpy().copy(), np.zeros(rows, bool)
    else:
        answered, fired = planted.minimum(lengths).numpy(), (planted <= lengths).numpy()
        plan.expect(np.sort(answered), rows)
    # Whether logits with gradients are computed at the end, from the features of the steps that are kept.
    logits_last = planted is not None or (gradients and keep == "answer" and _is_repeatable(network.readout))
    # The gradient of `unbind` takes linear time, that of indexing in every block quadratic time.
    columns = inputs.unbind(1) if gradients and inputs.requires_grad else None
    live, ends, first = np.arange(rows), answered, 0
    state, rule_state = network.initial_state(rows), rule.initial_state(rows)
    entries = []  # of each block: logits (or features, if `logits_last`), row and step
    while True:  # every row answers at its end
        steps_read = ends - first  # or fewer, if the rule fires before
        block = slice(first, first + plan.steps(first, steps_read))
        x = inputs[:, block] if columns is None else torch.stack(columns[block], 1)
        if live.size < rows:
            x = x.index_select(0, torch.from_numpy(live))
        if gradients:
            x = _finite(x, steps_read)
        features, state = network.cell.forward_sequence(x, state)
        features = features.transpose(0, 1)  # [steps, live, …]
        steps, outputs = len(features), features.flatten(0, 1)
        if planted is None:
            logits = None if logits_last or not gradients else network.logits(outputs)
            with torch.no_grad():
                if logits is None:
                    logits = _logits_alone(network, outputs)
                found, rule_state = block_spikes(network, rule, features, logits, first, rule_state)
            outputs, spikes = outputs if logits_last else logits, found.numpy()
            spike = spikes.argmax(0)
            fires = spikes[spike, np.arange(live.size)] & (spike < steps_read)
            steps_read = np.where(fires, spike + 1, steps_read)
            answered[live], fired[live] = first + steps_read, fires
        left = steps_read <= steps
        if keep == "read":
            step, place = (np.arange(steps)[:, None] < steps_read).nonzero()
        else:
            place = left.nonzero()[0]
            step = steps_read[place] - 1
        if place.size:
            kept = outputs.index_select(0, torch.from_numpy(step * live.size + place))
            entries.append((kept, live[place], first + 1 + step))
        if left.all():
            break
        first += steps
        if left.any():
            staying = (~left).nonzero()[0]
            live, ends, at = live[staying], ends[staying], torch.from_numpy(staying)
            state, rule_state = (
                map_state(lambda part, at=at: part.index_select(0, at), part) for part in (state, rule_state)
            )
    parts, row, step = zip(*entries, strict=True)
    logits, row, step = torch.cat(parts), np.concatenate(row), np.concatenate(step)
    if logits_last:
        logits = network.logits(logits)
    answers, last = logits, (step == answered[row]).nonzero()[0]
    if len(entries) > 1 or keep == "read":  # otherwise rows are in order
        answers = logits.index_select(0, torch.from_numpy(last[row[last].argsort()]))
    answered = torch.from_numpy(answered)
    decision = decide_rows(network, rule, answers, answered, torch.from_numpy(fired))
    if keep == "answer":
        return Run(decision, answers, torch.arange(rows), answered, lengths, keep)
    return Run(decision, logits, torch.from_numpy(row), torch.from_numpy(step), lengths, keep)


def _logits_alone(network: Network, features: Tensor) -> Tensor:
    """Logits without gradients. For many rows, a linear layer with few outputs takes half the time if its outputs have
    the classes first in memory, which also is what `activate` needs."""
    readout: Any = network.readout
    *before, last = readout if type(readout) is nn.Sequential else (readout,)
    if (
        len(features) >= MIN_ROWS_TURNED
        and type(last) is nn.Linear
        and last.bias is not None
        and last.weight.dtype in (torch.float32, torch.float64)
        and 1 < last.out_features == network.outputs
        and not any(part._forward_hooks or part._forward_pre_hooks for part in (readout, last))
    ):
        for layer in before:
            features = layer(features)
        return torch.addmm(last.bias[:, None], last.weight, features.t()).t()
    return network.logits(features)


def _is_repeatable(readout: nn.Module) -> bool:
    return all(type(module) in REPEATABLE for module in readout.modules())


class _Plan:
    """Where blocks of steps end. Costs are nanoseconds of one core of an AMD EPYC; only their ratios matter."""

    def __init__(self, network: Network, inputs: Tensor):
        self.weights, biases, gradients = 0, 0, torch.is_grad_enabled()
        for part in network.cell.parameters():
            self.weights += part.numel()
            biases += part.numel() if part.dim() == 1 else 0
        units, features = biases // 8, inputs[0, 0].numel()
        self.native = _is_faster_without_onednn(network.cell, inputs)
        onednn = isinstance(network.cell, LSTM) and inputs.dtype == torch.float32 and not self.native
        # Of a block, whatever its size; of a step, whatever the number of rows; of a step of a row.
        self.block_cost = 250_000 + (1.5 * self.weights if onednn else 0)  # oneDNN lays out the weights in every call
        self.step_cost = (500 if onednn else 8_000) + 0.012 * self.weights
        self.row_cost = 50 + 0.02 * self.weights + (3 if onednn else 9) * units
        if gradients:
            self.block_cost, self.step_cost, self.row_cost = 2 * self.block_cost, 3 * self.step_cost, 4 * self.row_cost
        self.row_cost += 150  # readout and rule
        self.values = 15 * units + 4 * features if gradients else units + features
        self.ends: list[int] = []  # of the blocks, last one first

    def cost(self, steps: int, rows: float) -> float:
        """The cost of the steps of a block if so many rows are expected to be there. Without any, there is no block."""
        return steps * (min(1.0, rows) * self.step_cost + rows * self.row_cost)

    def expect(self, answers: np.ndarray, rows: int, first: int = 0) -> None:
        """Plan for rows that have read `first` steps and of which equal shares answer at these steps, in order."""
        longest, count = int(answers[-1]), min(len(answers), MAX_ENDS)
        if self.cost(longest - int(answers[0]), rows) < self.block_cost:  # nothing to save
            self.ends = [longest]
            return
        ends = sorted(set(answers[np.arange(1, count + 1) * len(answers) // count - 1].tolist()))
        left = np.searchsorted(answers, [first, *ends[:-1]], "right") / len(answers)
        starts, going = [first, *ends[:-1]], (rows * (1 - left)).tolist()
        costs, following = [0.0] * (len(ends) + 1), [0] * len(ends)  # from each of the starts on
        for begin in range(len(ends) - 1, -1, -1):
            block, step = min(1.0, going[begin]) * self.block_cost, self.cost(1, going[begin])
            costs[begin], following[begin] = min(
                (block + (ends[end] - starts[begin]) * step + costs[end + 1], end) for end in range(begin, len(ends))
            )
        begin, self.ends = 0, []
        while begin < len(ends):
            self.ends.insert(0, ends[following[begin]])
            begin = following[begin] + 1

    def steps(self, first: int, remaining: np.ndarray) -> int:
        """The number of steps of the next block, after `first` steps, if rows end after the `remaining` steps."""
        rows, longest = remaining.size, int(remaining.max())
        while self.ends and self.ends[-1] <= first:
            self.ends.pop()
        if not self.ends:  # it is unknown where rows answer: one half is expected spread evenly and one late
            share = np.arange(MAX_ENDS)
            guess = (share + 1) * (2 * min(UNKNOWN_STEPS, longest) + first // 2) // MAX_ENDS
            guess = np.minimum(guess, np.sort(remaining)[share * rows // MAX_ENDS]).clip(1)
            self.expect(guess + first, rows, first)
        steps = min(self.ends[-1] - first, longest)
        blocks = max(1, steps * rows * self.values // MAX_BLOCK_VALUES)
        return -(-steps // blocks)


def _finite(x: Tensor, remaining: np.ndarray) -> Tensor:
    """The inputs of a block [live, steps, …], with zeros past the ends of rows, and cut before NaN or infinity. What is
    computed past an answer gets a gradient of zero, and zero times NaN would be NaN. A row that is live after the cut
    does read it."""
    if remaining.min() < x.shape[1]:
        past = (np.arange(x.shape[1]) >= remaining[:, None]).ravel().nonzero()[0]
        x = x.flatten(0, 1).index_fill(0, torch.from_numpy(past), 0.0).view(x.shape)
    if x.detach().sum().isfinite():  # then every value is
        return x
    bad = (~x.detach().isfinite()).transpose(0, 1).flatten(1).any(1).nonzero()[:, 0]
    return x[:, : bad[0]] if len(bad) and bad[0] > 0 else x


def block_spikes(
    network: Network, rule: Any, features: Tensor, logits: Tensor, first: int, state: Any
) -> tuple[Tensor, Any]:
    """Whether the rule fires, [steps, live], and its state after a block of features [steps, live, …] and their logits
    [steps · live, classes]."""
    steps, live = features.shape[:2]
    activations, probabilities = activate(network, logits)
    if getattr(rule, "memoryless", False):
        step = torch.from_numpy(np.arange(first + 1, first + steps + 1).repeat(live))
        return ask(rule, activations, probabilities, step, state, features.flatten(0, 1))[0].view(steps, live), state
    spikes = []
    for k, rows in enumerate(zip(activations.split(live), probabilities.split(live), features, strict=True)):
        fired, state = ask(rule, rows[0], rows[1], first + k + 1, state, rows[2])
        spikes.append(fired)
    return torch.stack(spikes), state
