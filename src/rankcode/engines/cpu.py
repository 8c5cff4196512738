"""Cells that read many steps at once, on a CPU: blocks of steps, and rows that have answered leave between blocks.

LSTM and GRU of one layer run with `compiled` where it can; see `GatedLayers.run_layers` for how this engine runs them.
"""

from __future__ import annotations

import math
from functools import partial
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from rankcode.engines.block_reading import read_in_blocks
from rankcode.engines.cpu_settings import is_small, run_with_settings
from rankcode.engines.run import Keep, Run, reads_sequences
from rankcode.network import Network
from rankcode.rules import Rule

MAX_BLOCK_VALUES = 2**22  # saved by a block; if the memory of a block is too large, it is mapped anew each time
MAX_ENDS = 16  # steps at which blocks may end when they are planned
UNKNOWN_STEPS = 100  # if it is unknown where rows answer, half of them is expected to answer in this many steps
_SIZES: WeakKeyDictionary[nn.Module, tuple[int, int]] = WeakKeyDictionary()  # of cells: weights and units


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
    reading = partial(read_in_blocks, network, inputs, lengths, rule, keep, plan, network.cell.forward_sequence)
    return run_with_settings(reading, small)


class _Plan:
    """Where blocks of steps end. Costs are nanoseconds of one core of an AMD EPYC; only their ratios matter."""

    def __init__(self, network: Network, inputs: Tensor):
        cell, gradients, features = network.cell, torch.is_grad_enabled(), math.prod(inputs.shape[2:])
        if (sizes := _SIZES.get(cell)) is None:
            parts = list(cell.parameters())
            sizes = sum(part.numel() for part in parts), sum(part.numel() for part in parts if part.dim() == 1) // 8
            _SIZES[cell] = sizes
        self.weights, units = sizes
        # Of a block, whatever its size; of a step, whatever the number of rows; of a step of a row.
        self.block_cost = 350_000 + 1.5 * self.weights  # weights are laid out in every call
        self.step_cost = 500 + 0.03 * self.weights
        self.row_cost = 50 + 0.02 * self.weights + 3 * units
        if gradients:
            self.block_cost, self.step_cost, self.row_cost = 2 * self.block_cost, 3 * self.step_cost, 3 * self.row_cost
        self.row_cost += 150  # readout and rule
        self.values = 15 * units + 4 * features if gradients else units + features
        self.ends: list[int] = []  # of the blocks, last one first

    def cost(self, steps: int, rows: float) -> float:
        """The cost of the steps of a block if this many rows are expected in it. Without any, there is no block."""
        return steps * (min(1.0, rows) * self.step_cost + rows * self.row_cost)

    def expect(self, answers: np.ndarray, rows: int, first: int = 0) -> None:
        """`first`: the steps that rows have read."""
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
