"""Compile the kernels of a training step for an H100. It needs no GPU: nothing is run.

    python compile_for_h100.py CELL UNITS LAYERS ROWS PRECISION

prints a line for each kernel: its name, and the bytes of shared memory that a program of it needs.
"""

import sys
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

import rankcode as rc
from rankcode import cells
from rankcode.engines.triton import blocks, kernels
from rankcode.engines.triton.logits import logits_of

PROCESSORS = 132


# All that Triton asks of a GPU before it compiles.
H100: Any = SimpleNamespace(
    get_current_target=lambda: GPUTarget("cuda", 90, 32),
    get_current_device=lambda: 0,
    get_current_stream=lambda _device: 0,
)


def compile_only(kernel, grid, *arguments):
    if kernel.compiled is None:
        kernel.compiled = kernel.function.warmup(*arguments, grid=grid, **kernel.constants, **kernel.settings)
        print(kernel.function.fn.__name__, kernel.compiled.metadata.shared)


def main(cell: str, units: int, layers: int, rows: int, precision: str) -> None:
    driver.set_active(H100)
    # The tensors are on the CPU, and what kernels would write to them is never read.
    kernels._processors = lambda _device: PROCESSORS
    kernels.Shape.fast = property(lambda shape: shape.precision == "tf32")  # type: ignore[misc]
    kernels.Kernel.__call__ = compile_only  # type: ignore[method-assign]
    kernels.Kernel.launches = lambda kernel, *given: partial(kernel, *given)  # type: ignore[method-assign]
    torch.backends.cudnn.allow_tf32 = precision != "float32"
    readout = nn.Sequential(nn.Linear(units, 32), nn.ReLU(), nn.Linear(32, 11))
    network = rc.Network(getattr(cells, cell)(420, units, layers), 11, readout)
    lengths = torch.full((rows,), 81)
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
        given = torch.empty(rows, 81, 420), lengths, rc.Threshold(0.9), "answer", lengths // 2
        found = blocks.read(network, [network.cell], *given)
    logits_of(network, found.features).sum().backward()


if __name__ == "__main__":
    cell, units, layers, rows, precision = sys.argv[1:]
    main(cell, int(units), int(layers), int(rows), precision)
