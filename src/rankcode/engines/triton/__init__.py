"""LSTM and GRU on a GPU, in Triton: answering early costs less time there too.

Rows stand in tiles, sorted by the step they are expected to answer at. A block of steps is two launches for each
layer: what its inputs give to the gates, one product for the tiles still live, and the steps themselves, in which a
program stays with a tile until its last row has fired. The backward pass starts for each row at its answer. Nothing
waits for the GPU inside a sequence.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from rankcode.cells import GRU, LSTM
from rankcode.engines.run import Keep, Run, decide_rows
from rankcode.network import Network
from rankcode.rules import FireAt, Never, Rule, StepThresholds, Threshold

MANY = 512  # units
RECORDED = 2**18  # steps of all rows together; above, launching takes less time than copying the inputs to their place
ROWS = 2**20 - 16  # at once


@lru_cache(maxsize=1)
def _blocks() -> Any:
    """Loaded where it is first used; None without Triton, which comes with PyTorch for CUDA."""
    try:
        from rankcode.engines.triton import blocks
    except ImportError:
        return None
    return blocks


def can_run(network: Network, inputs: Tensor, rule: Rule) -> str | None:
    """The reason why not, or None."""
    device = inputs.device.type
    if (blocks := _blocks()) is None:
        return "Triton is not installed"
    if not (inputs.is_cuda or blocks.INTERPRETED):
        return f"the inputs are on {inputs.device}, not on a GPU"
    if type(network.cell) not in (LSTM, GRU):
        return f"{type(network.cell).__name__} has no fused step"
    if len(inputs) > ROWS:
        return f"it runs up to {ROWS:,} rows at once"
    if inputs.dtype != torch.float32:
        return f"it runs float32, the network is {inputs.dtype}"
    if torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) != torch.bfloat16:
        return "of the mixed precisions it knows bfloat16 alone"
    if isinstance(rule, Never | FireAt):
        return None
    if not hasattr(rule, "table") or network.activation == "membrane":
        return f"{type(rule).__name__} is not a table of thresholds for probabilities"
    if blocks.readout_of(network) is None:
        return "its rule knows linear readouts and those with one hidden layer"
    return None


def can_be_recorded(network: Network, inputs: Tensor, rule: Rule) -> bool:
    """Whether a run, and its backward pass, can be part of a CUDA graph: no wait, and nothing copied from the host."""
    fixed = type(rule) in (Never, Threshold, StepThresholds) and getattr(rule, "classes", None) is None
    size = inputs.shape[0] * inputs.shape[1]
    return fixed and size <= RECORDED and _blocks() is not None and _blocks().readout_of(network) is not None


def slower(network: Network, inputs: Tensor) -> str | None:
    """The reason why PyTorch's own kernels are faster, or None. Measured on an H200."""
    if not (_blocks().tf32_allowed() or torch.is_autocast_enabled(inputs.device.type)):
        return "products in full float32 are faster elsewhere"
    if network.cell.hidden_size > MANY:
        return f"of more than {MANY} units the weights are too large for it"
    return None


def run(
    network: Network, inputs: Tensor, lengths: Tensor, rule: Rule, keep: Keep, expected_steps: Tensor | None = None
) -> Run:
    if reason := can_run(network, inputs, rule):
        raise ValueError(f"the engine triton cannot run this network: {reason}")
    with torch.cuda.device_of(inputs):  # kernels are launched on the current GPU
        found = _blocks().read(network, inputs, lengths, rule, keep, expected_steps)
    features, row, step, answered, fired, read = found
    # A readout of one or two small layers is faster, and more exact, without mixed precision.
    small = _blocks().readout_of(network) is not None
    with torch.autocast(inputs.device.type, enabled=False) if small else nullcontext():
        logits = network.logits(features)
    if keep == "answer":
        return Run(decide_rows(network, rule, logits, answered, fired), logits, row, answered, lengths)
    # Entries stand row by row.
    ends = (
        answered.cumsum(0)
        if read is None
        else torch.arange(len(inputs), device=row.device) * inputs.shape[1] + answered
    )
    answers = logits.detach()[ends - 1]
    return Run(decide_rows(network, rule, answers, answered, fired), logits, row, step, lengths, read)
