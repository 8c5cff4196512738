"""LSTM and GRU on a CPU: no autograd graph per step, no work for rows that have answered.

Steps run in blocks: see `blocks`. With gradients a block of a layer is one node of the autograd graph, computed by
`gated_steps`; without, PyTorch's own layers run the blocks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rankcode.engines.cpu.blocks import read
from rankcode.engines.cpu.gated_steps import single_thread_if
from rankcode.engines.run import Keep, Run, has_fused_step
from rankcode.network import Network
from rankcode.rules import Rule

MAX_COPIED = 2**25  # values; larger inputs, such as the overlapping windows of long recordings, are read where they are
MIN_PARALLEL_SIZE = 500_000  # multiplications per gate and step; for less work a second thread does not pay


def can_run(network: Network, inputs: Tensor, rule: Rule) -> str | None:
    if not has_fused_step(network):
        return f"{type(network.cell).__name__} has no fused step"
    if inputs.device.type != "cpu":
        return f"the inputs are on {inputs.device}"
    if torch.is_autocast_enabled("cpu"):
        return "in mixed precision its state would not stay float32"
    return None


def run(
    network: Network, inputs: Tensor, lengths: Tensor, rule: Rule, keep: Keep, expected_steps: Tensor | None = None
) -> Run:
    cell = network.cell
    small = len(inputs) * cell.hidden_size * (cell.input_size + cell.hidden_size) < MIN_PARALLEL_SIZE
    with single_thread_if(small):
        inputs = inputs if inputs.numel() > MAX_COPIED else inputs.contiguous()
        return read(network, inputs, lengths, rule, keep, small)
