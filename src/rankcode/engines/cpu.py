"""Cells that read many steps at once, on a CPU: blocks of steps, and rows that have answered leave between blocks.

LSTM and GRU run with `compiled` where it can; see `GatedLayers.run_layers` for how this engine runs them.
"""

from __future__ import annotations

import math
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
MIN_GUESS = 200  # steps, if it is unknown where rows answer, and half as many more as they have read
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
    small, read = is_small(plan.weights, len(inputs)), network.cell.forward_sequence
    return run_with_settings(
        lambda: read_in_blocks(network, inputs, lengths, rule, keep, expected_steps, plan, read), small
    )


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
        self.earliest = self.last = 0  # the steps between which rows are expected to answer; 0: it is not known

    def expect(self, answers: np.ndarray) -> None:
        self.earliest, self.last = int(answers[len(answers) // 10]), int(answers[-1])

    def steps(self, first: int, remaining: np.ndarray) -> int:
        rows, longest = remaining.size, int(remaining.max())
        if self.last <= first:
            self.earliest, self.last = first, first + MIN_GUESS + first // 2
        left = min(self.last - first, longest)
        # If rows answer evenly over some steps, each is computed half a block too far.
        spread = max(0, first + left - max(first, self.earliest))
        overshoot = spread * (self.step_cost + rows * self.row_cost) / 2
        steps = -(-left // max(1, round(math.sqrt(overshoot / self.block_cost))))
        return -(-steps // max(1, steps * rows * self.values // MAX_BLOCK_VALUES))
