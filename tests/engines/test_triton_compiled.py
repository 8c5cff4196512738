"""The kernels of the engine `triton` compile for a GPU, which Triton's interpreter does not show."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton.language", reason="needs Triton")

from rankcode.engines.triton import MIN_SHARED_MEMORY

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
