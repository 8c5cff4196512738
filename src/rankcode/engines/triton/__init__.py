"""LSTM and GRU on a GPU, in Triton: answering early takes less time there too.

Rows are arranged in tiles, sorted by the step at which they are expected to answer. A block of steps begins with the
input projections, one matrix multiplication over the tiles that are still live. The recurrence follows: up to 128 units
in one launch, in which a program processes a tile until its last row has fired; for larger weights, which need many
programs, in one launch for each step. The backward pass starts at the answer of each row. Within a sequence the host
never waits for the GPU. Cells of a stack below its LSTMs or GRUs are read as whole sequences first.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from rankcode.engines.run import Keep, Layers, Run, decide_rows, declared, layers_of, readout_of, why_not_fused
from rankcode.engines.triton.captured_inference import Inference, captures
from rankcode.network import Network
from rankcode.rules import Rule

MAX_FASTER_HIDDEN_SIZE = 1024  # measured up to here
MAX_CAPTURED_STEPS = 2**18  # of all rows; above it launches take less time than copying the inputs to the graph's
MAX_ROWS = 2**20 - 16  # the most that a launch grid holds
MIN_TRITON_VERSION = (3, 6)  # the compiler of 3.5 fails
MIN_SHARED_MEMORY = 227 * 1024  # of one program: the kernels keep recurrent weights there, and pieces of large matrices


@lru_cache(maxsize=1)
def _blocks() -> Any:
    """The module `blocks`, imported at first use; None without Triton, which comes with PyTorch for CUDA."""
    try:
        from rankcode.engines.triton import blocks
    except ImportError:
        return None
    return blocks


@lru_cache
def _shared_memory(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).shared_memory_per_block_optin


def can_run(network: Network, inputs: Tensor, rule: Rule) -> str | None:
    if (blocks := _blocks()) is None:
        return "Triton is not installed"
    if blocks.TRITON_VERSION < MIN_TRITON_VERSION:
        return "it needs Triton 3.6 or newer, which comes with PyTorch 2.10"
    if not (inputs.is_cuda or blocks.INTERPRETED):
        return f"the inputs are on {inputs.device}, not on a GPU"
    if inputs.is_cuda and _shared_memory(inputs.device) < MIN_SHARED_MEMORY:
        return "its kernels need a GPU with 227 KB of shared memory for a block, such as an H100"
    if layers_of(network) is None:
        return f"{type(network.cell).__name__} has no fused step"
    if len(inputs) > MAX_ROWS:
        return f"it runs up to {MAX_ROWS:,} rows at once"
    if inputs.dtype != torch.float32:
        return f"it runs float32, the network is {inputs.dtype}"
    return why_not_fused(network, rule)


def can_capture(network: Network, inputs: Tensor, rule: Rule) -> bool:
    """Whether a run and its backward pass can be captured in a CUDA graph: the host neither waits nor copies."""
    small = inputs.shape[0] * inputs.shape[1] <= MAX_CAPTURED_STEPS
    return small and bool(declared(rule, "capturable")) and readout_of(network) is not None


def slower(network: Network, inputs: Tensor) -> str | None:
    """The reason why PyTorch's own kernels are faster, or None. Measured on an H200."""
    if not (_blocks().tf32_allowed() or torch.is_autocast_enabled(inputs.device.type)):
        return "matrix multiplications in full float32 are faster elsewhere"
    if _layers(network).top[0].hidden_size > MAX_FASTER_HIDDEN_SIZE:
        return f"with more than {MAX_FASTER_HIDDEN_SIZE} hidden units the weights are too large for it"
    return None


def run(
    network: Network, inputs: Tensor, lengths: Tensor, rule: Rule, keep: Keep, expected_steps: Tensor | None = None
) -> Run:
    if captures(network, inputs, keep) and can_capture(network, inputs, rule):
        captured = Inference.of(network, inputs, rule, expected_steps is not None, _read)
        return captured(inputs, lengths, expected_steps)
    return _read(network, inputs, lengths, rule, expected_steps, keep)


def _read(
    network: Network, inputs: Tensor, lengths: Tensor, rule: Rule, expected_steps: Tensor | None, keep: Keep = "answer"
) -> Run:
    from rankcode.engines.triton.logits import logits_of  # needs Triton

    below, top = _layers(network)
    with torch.cuda.device_of(inputs):  # kernels are launched on the current GPU
        found = _blocks().read(network, top, _through(below, inputs), lengths, rule, keep, expected_steps)
        logits = logits_of(network, found.features)
    _, row, step, answered, fired, read = found
    if keep == "answer":
        return Run(decide_rows(network, rule, logits, answered, fired), logits, row, answered, lengths, keep)
    # Entries are in the order of rows.
    if read is None:
        ends = answered.cumsum(0)
    else:
        ends = torch.arange(len(inputs), device=row.device) * inputs.shape[1] + answered
    decision = decide_rows(network, rule, logits.detach()[ends - 1], answered, fired)
    return Run(decision, logits, row, step, lengths, keep, read)


def _layers(network: Network) -> Layers:
    layers = layers_of(network)
    assert layers is not None, "`can_run` was not asked"
    return layers


def _through(cells: list[Any], inputs: Tensor) -> Tensor:
    """The features after all steps of these cells, never in mixed precision."""
    if not cells:
        return inputs
    inputs = inputs.nan_to_num(0.0, 0.0, 0.0)  # past an answer the gradient is 0, and 0 · NaN would be NaN
    with torch.autocast(inputs.device.type, enabled=False):
        for cell in cells:
            inputs, _ = cell.forward_sequence(inputs, cell.initial_state(len(inputs)))
    return inputs
