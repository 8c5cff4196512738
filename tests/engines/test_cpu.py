"""Blocks of steps, the memory and the threads of the engine `cpu`. What it gives: see `test_run.py`."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from small_networks import LENGTHS, firing_network, loss_and_gradients
from torch import nn

import rankcode as rc
from rankcode.engines import run
from rankcode.engines.cpu import blocks, gated_steps


@pytest.mark.parametrize("block", [1, 2, 3, 4, 9, 50])
def test_the_length_of_a_block_changes_nothing(block, monkeypatch):
    network, inputs = firing_network(rc.cells.GRU(3, 4))
    objective = rc.AtSpike(rule=rc.Patience(rc.Threshold(0.5), 2))
    _, expected, gradients = loss_and_gradients(objective, network, inputs, "reference")
    monkeypatch.setattr(blocks, "BLOCK_STEPS", block)
    monkeypatch.setattr(blocks, "SHORT_STEPS", 0)
    _, decision, others = loss_and_gradients(objective, network, inputs, "cpu")
    assert decision.steps.equal(expected.steps) and (decision.steps < LENGTHS).sum() >= 3
    for one, other in zip(gradients, others, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def numbers_saved(network, inputs, rule, keep="answer"):
    """How many numbers are saved for the backward pass, weights and views of the same memory not counted."""
    weights = {part.untyped_storage().data_ptr() for part in network.parameters()}
    saved = {}

    def pack(part):
        if (address := part.untyped_storage().data_ptr()) not in weights:
            saved[address] = part  # held, so that its memory is not used again
        return part

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda part: part):
        run(network, inputs, torch.full((len(inputs),), inputs.shape[1]), rule, keep, "cpu")
    return sum(part.untyped_storage().nbytes() // part.itemsize for part in saved.values())


@pytest.mark.parametrize("keep", ["answer", "read"])
def test_what_is_saved_follows_the_steps_read(keep):
    network, inputs = rc.Network(rc.cells.LSTM(4, 8), 3), torch.randn(64, 40, 4)
    everything, early = (numbers_saved(network, inputs, rc.FireAt(steps), keep) for steps in (40, 10))
    assert early / everything == pytest.approx(10 / 40, rel=0.1)


@pytest.fixture
def block_steps(monkeypatch):
    """Filled with the number of steps of every block that runs with gradients."""
    found, forward = [], gated_steps.LSTMSteps.forward
    monkeypatch.setattr(
        gated_steps.LSTMSteps, "forward", lambda self, x, state: found.append(len(x)) or forward(self, x, state)
    )
    return found


@pytest.mark.parametrize(
    "rows, steps, answer, expected",
    [
        (64, 40, 1, [1]),
        (64, 40, 4, [1, 3]),
        (64, 40, 5, [1, 3, 6]),
        (64, 40, 40, [1, 3, 6, 10, 10, 10]),
        (64, 41, 1, [10]),
        (64, 41, 41, [10, 10, 10, 10, 1]),
        (5, 45, 45, [20, 20, 5]),
    ],
)
def test_blocks_of_short_sequences_begin_short(rows, steps, answer, expected, block_steps):
    """Networks that answer in their first steps are fast in short sequences too."""
    network, inputs, ends = rc.Network(rc.cells.LSTM(4, 8), 3), torch.randn(rows, steps, 4), torch.full((rows,), steps)
    run(network, inputs, ends, rc.FireAt(answer), "answer", "cpu")
    assert block_steps == expected


def test_blocks_of_long_rows_grow(block_steps):
    network, inputs = rc.Network(rc.cells.LSTM(1, 2), 3), torch.randn(1, 100_000, 1)
    run(network, inputs, torch.tensor([100_000]), rc.FireAt(5000), "answer", "cpu")
    assert len(block_steps) < 50 and 5000 <= sum(block_steps) < 5000 * 1.15


def test_long_rows_need_bounded_memory_and_linear_time():
    """In a process of its own, for its peak memory. A row of 200,000 steps took 5 GB, and minutes."""
    code = """
import resource, torch, rankcode as rc
network, inputs = rc.Network(rc.cells.LSTM(1, 8), 3), torch.randn(1, 200_000, 1)
rc.decide(network, inputs[:, :100], engine="cpu")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
decision = rc.decide(network, inputs, rule=rc.StepThresholds([0.9999] * 1000), engine="cpu")
assert decision.steps.tolist() == [200_000]
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1000)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 100  # megabytes


@pytest.mark.parametrize("rows", [3, 300])
def test_the_number_of_threads_is_given_back(rows):
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        network = rc.Network(rc.cells.GRU(4, 50), 3)
        seen = []
        network.readout.register_forward_hook(lambda *_: seen.append(torch.get_num_threads()))
        inputs, labels = torch.randn(rows, 5, 4), torch.arange(rows) % 3
        loss, _ = rc.AtSpike(0.9)(network, inputs, labels, engine="cpu")
        assert set(seen) == {1 if rows == 3 else 3} and torch.get_num_threads() == 3
        loss.backward()
        assert torch.get_num_threads() == 3
        with pytest.raises(RuntimeError, match="mat1 and mat2"):
            run(network, torch.randn(rows, 5, 7), torch.full((rows,), 5), rc.Never(), "answer", "cpu")
        assert torch.get_num_threads() == 3
        seen.clear()
        with ThreadPoolExecutor(1, initializer=lambda: torch.set_num_threads(3)) as pool:
            pool.submit(rc.decide, network, inputs, engine="cpu").result()
        assert set(seen) == {3}  # in a thread of the user's own it is left alone
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("kind", [rc.cells.LSTM, rc.cells.GRU])
def test_gradients_that_fade_end_at_zero(kind):
    """Gates that are nearly shut let gradients fade; with denormal numbers a CPU is many times as slow."""
    torch.manual_seed(0)
    network = rc.Network(kind(3, 16), 3)
    for parameter in network.cell.parameters():
        nn.init.normal_(parameter, mean=0.0 if parameter.dim() == 2 else -1.5, std=0.1)
    inputs, lengths = torch.randn(64, 80, 3, requires_grad=True), torch.full((64,), 80)
    found = []
    for engine in ("stepwise", "cpu"):
        run(network, inputs, lengths, rc.Never(), "answer", engine).logits.square().sum().backward()
        found.append([inputs.grad, *(parameter.grad for parameter in network.parameters())])
        network.zero_grad()
        inputs.grad = None
    expected, gradients = found
    denormal = [
        ((part != 0) & (part.abs() < torch.finfo(part.dtype).tiny)).sum() for part in (expected[0], gradients[0])
    ]
    assert denormal[0] > 20 * denormal[1]
    for one, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-9)
