"""Blocks of steps and the memory of the engine `cpu`. What it gives: see `test_run.py`."""

import subprocess
import sys

import pytest
import torch
from small_networks import LENGTHS, Later, firing_network, loss_and_gradients
from torch import nn

import rankcode as rc
from rankcode.engines import cpu, run


@pytest.mark.parametrize("block", [1, 2, 3, 4, 9, 50])
def test_the_length_of_a_block_changes_nothing(block, monkeypatch):
    network, inputs = firing_network(rc.cells.GRU(3, 4))
    objective = rc.AtSpike(rule=rc.Patience(rc.Threshold(0.5), 2))
    _, expected, gradients = loss_and_gradients(objective, network, inputs, "reference")
    monkeypatch.setattr(cpu._Plan, "steps", lambda *_: block)
    _, decision, others = loss_and_gradients(objective, network, inputs, "cpu")
    assert decision.steps.equal(expected.steps) and (decision.steps < LENGTHS).sum() >= 3
    for one, other in zip(gradients, others, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


READOUTS = {
    "linear": lambda: nn.Linear(8, 3),
    "two layers": lambda: nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3)),
    "no bias": lambda: nn.Linear(8, 3, bias=False),
    "one output": lambda: nn.Linear(8, 1),
    "no linear layer last": lambda: nn.Sequential(nn.Linear(8, 3), nn.Tanh()),
}


@pytest.mark.parametrize("hooked", [False, True])
@pytest.mark.parametrize("readout", READOUTS.values(), ids=READOUTS)
def test_the_readout_of_many_rows(readout, hooked):
    """More than in the other tests: a linear layer is then computed with the classes first in memory."""
    torch.manual_seed(0)
    readout = readout()
    network = rc.Network(rc.cells.LSTM(4, 8), 1 if getattr(readout, "out_features", 3) == 1 else 3, readout).double()
    if hooked:
        network.readout.register_forward_hook(lambda _, inputs, logits: 2 * logits)
    inputs = torch.randn(90, 12, 4, dtype=torch.float64)
    rule = rc.Threshold(rc.trace(network, inputs).activations.amax(2).quantile(0.9).item())
    for gradients in (False, True):
        with torch.set_grad_enabled(gradients):
            one, other = (
                run(network, inputs, torch.full((90,), 12), rule, "answer", engine) for engine in ("cpu", "stepwise")
            )
        assert one.decision.steps.equal(other.decision.steps) and one.decision.steps.unique().numel() > 3
        torch.testing.assert_close(one.logits, other.logits, rtol=1e-10, atol=1e-12)


def bytes_saved(network, inputs, rule, keep="answer"):
    """How many bytes are saved for the backward pass, weights, inputs and views of the same memory not counted."""
    weights = {part.untyped_storage().data_ptr() for part in (inputs, *network.parameters())}
    saved = {}

    def pack(part):
        if (address := part.untyped_storage().data_ptr()) not in weights:
            saved[address] = part  # held, so that its memory is not used again
        return part

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda part: part):
        run(network, inputs, torch.full((len(inputs),), inputs.shape[1]), rule, keep, "cpu")
    return sum(part.untyped_storage().nbytes() for part in saved.values())


@pytest.mark.parametrize("keep", ["answer", "read"])
def test_what_is_saved_follows_the_steps_read(keep):
    network, inputs = rc.Network(rc.cells.LSTM(4, 32), 3), torch.randn(256, 40, 4)
    everything, early = (bytes_saved(network, inputs, rc.FireAt(steps), keep) for steps in (40, 10))
    assert early / everything == pytest.approx(10 / 40, rel=0.1)


@pytest.fixture
def block_steps(monkeypatch):
    """Filled with the number of steps of every block."""
    found, following = [], cpu._Plan.steps

    def noted(*arguments):
        found.append(following(*arguments))
        return found[-1]

    monkeypatch.setattr(cpu._Plan, "steps", noted)
    return found


class AtStep:
    """Fires at one step. The engine cannot know it before."""

    def __init__(self, step):
        self.step = step

    def initial_state(self, rows):
        return None

    def __call__(self, activations, probabilities, step, state):
        return torch.full((len(activations),), step >= self.step), state


@pytest.mark.parametrize(
    "units, answers, expected",
    [
        (100, [40] * 64, [40]),
        (100, [7] * 64, [7]),
        (100, [10] * 32 + [40] * 32, [20, 20]),  # half of the rows save more than a block costs
        (100, [39] * 32 + [40] * 32, [40]),  # one step saves less
        (4, [10] * 32 + [40] * 32, [40]),  # rows of a small network save less
        (400, [40] * 64, [14, 13, 13]),  # the memory of a block is bounded
    ],
)
def test_blocks_end_where_rows_are_known_to_answer(units, answers, expected, block_steps):
    network, inputs, ends = rc.Network(rc.cells.LSTM(4, units), 3), torch.randn(64, 40, 4), torch.full((64,), 40)
    run(network, inputs, ends, rc.FireAt(answers), "answer", "cpu")
    assert block_steps == expected


def test_blocks_end_where_rows_are_expected_to_answer(block_steps):
    network, inputs, ends = rc.Network(rc.cells.LSTM(4, 200), 3), torch.randn(64, 40, 4), torch.full((64,), 40)
    run(network, inputs, ends, AtStep(6), "answer", "cpu", expected_steps=torch.full((64,), 6))
    assert block_steps == [6]
    run(network, inputs, ends, AtStep(30), "answer", "cpu", expected_steps=torch.full((64,), 6))
    assert block_steps[1] == 6 and 30 <= sum(block_steps[1:]) <= 40
    run(network, inputs, ends, AtStep(6), "answer", "cpu", expected_steps=ends)  # the lengths: nothing is known
    assert 6 < block_steps[-1] < 40


def test_blocks_of_long_rows_grow(block_steps):
    network, inputs = rc.Network(rc.cells.LSTM(1, 2), 3), torch.randn(1, 100_000, 1)
    run(network, inputs, torch.tensor([100_000]), AtStep(5000), "answer", "cpu")
    assert len(block_steps) < 30 and 5000 <= sum(block_steps) < 5000 * 1.3


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


@pytest.mark.parametrize("engine", ["cpu", "stepwise"])
def test_a_subclass_of_a_threshold_is_told_the_step(engine):
    torch.manual_seed(0)
    network, inputs = rc.Network(rc.cells.LSTM(4, 5), 3), torch.randn(6, 9, 4)
    assert rc.decide(network, inputs, rule=Later(0.34), engine=engine).steps.tolist() == [4] * 6
    assert rc.decide(network, inputs, rule=rc.Threshold(0.34), engine=engine).steps.tolist() < [4] * 6
