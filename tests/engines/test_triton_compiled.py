"""The kernels of the engine `triton` compile for a GPU, which Triton's interpreter does not show."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton.language", reason="needs Triton")

from triton.compiler import CompiledKernel
from triton.runtime import driver

from rankcode.engines.triton import MIN_SHARED_MEMORY
from rankcode.engines.triton.kernels import Kernel

COMMON = {"convert", "arrange", "matmul", "packed_matmul", "sum_shares", "readout_forward", "readout_backward"}
ON_THE_CHIP = COMMON | {"forward", "backward"}
STEP_BY_STEP = COMMON | {"forward_step", "answer", "gates_backward", "hidden_backward"}
NETWORKS = {
    # cell, units, layers, rows and precision: the kernels that they need
    "LSTM 128 1 128 bfloat16": ON_THE_CHIP | {"store_inputs"},
    "LSTM 100 2 2048 tf32": ON_THE_CHIP | {"gather"},
    "GRU 512 2 512 tf32": STEP_BY_STEP | {"gather"},
    "LSTM 1000 1 2048 bfloat16": STEP_BY_STEP | {"store_inputs"},
}


@pytest.mark.parametrize("network", NETWORKS)
def test_kernels_compile_for_an_h100(network, tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    script = Path(__file__).with_name("compile_for_h100.py")
    command = [sys.executable, str(script), *network.split()]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    compiled = [line.split() for line in result.stdout.splitlines()]
    assert {name for name, _ in compiled} == NETWORKS[network]
    assert all(int(shared) <= MIN_SHARED_MEMORY for _, shared in compiled)


def test_a_compiled_kernel_is_launched_as_triton_launches_it(monkeypatch):
    launched = []
    compiled = SimpleNamespace(
        run=lambda *given: launched.append(given), function=7, packed_metadata=(4, 1, 0), _init_handles=lambda: None,
        launch_metadata=lambda *given: None,
    )  # fmt: skip
    gpu = SimpleNamespace(get_current_device=lambda: 3, get_current_stream=lambda device: 100 + device)
    monkeypatch.setattr(driver, "_active", gpu)
    grid, tensors, numbers = (5, 2, 1), (torch.zeros(3), torch.ones(2)), (8, 9)
    kernel = Kernel(SimpleNamespace(arg_names=["a", "b", "m", "n", "SIZE"]), SIZE=64)
    kernel.compiled = compiled
    CompiledKernel.__getitem__(compiled, grid)(*tensors, *numbers, 64)
    kernel(grid, *tensors, *numbers)
    kernel.launches(grid, *tensors)(*numbers)
    hooks = slice(len(grid) + 3, len(grid) + 6)  # and metadata for them: these launches have none
    expected, *found = map(list, launched)
    expected[hooks] = [None] * 3
    expected = [part.data_ptr() if isinstance(part, torch.Tensor) else part for part in expected]
    assert found == [expected, expected] and expected[3] == 103
