"""Networks that fire at checkpoints only: every engine that can run them gives what the reference gives."""

import pytest
import torch

from live_networks import FirstFeatures
from rankcode import FireAt, Network, Never, Patience, Threshold, cells, decide
from rankcode.engines import ENGINES, choose, run, stepwise
from rankcode.engines.run import reads_in_blocks
from rankcode.readouts import CheckpointReadout, EnsembleReadout


def network_and_rows(cell_name):
    generator = torch.Generator().manual_seed(1)
    torch.manual_seed(1)
    inputs = torch.randn(12, 30, 2, generator=generator)
    lengths = torch.tensor([30, 1, 3, 4, 5, 9, 29, 30, 17, 2, 12, 30])
    cell, sizes = cells.GRU(2, 6), (6,)
    if cell_name != "gru":
        cell = cells.RandomKernels.for_length(2, 30, 300)
        cell.draw(inputs, lengths, torch.ones(12), generator)
        sizes = cell.group_sizes
    readout = CheckpointReadout((3, 4, 10, 20, 28), sizes, 3)
    with torch.no_grad():
        readout.weight.normal_(std=2.0 if cell_name == "gru" else 0.4)
    if cell_name == "both":
        other = torch.nn.Linear(6, 3)
        torch.nn.init.normal_(other.weight, std=4.0)
        readout = EnsembleReadout((readout, other), (*cell.output_shape, 6))
        cell = cells.Parallel(cell, cells.GRU(2, 6))
    return Network(cell, 3, readout).eval(), inputs, lengths


RULES = [Threshold(0.8), Threshold(0.6, classes=(0, 2)), Never(), FireAt(7), Patience(Threshold(0.6), 2)]
RULES.append(FirstFeatures())


@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize("keep", ["answer", "read"])
@pytest.mark.parametrize(
    "case", ["kernels-single steps", "kernels-blocks", "gru-single steps", "both-single steps", "both-blocks"]
)
def test_equals_the_reference(case, rule, keep):
    cell_name, reads = case.split("-")
    network, inputs, lengths = network_and_rows(cell_name)
    expected = run(network, inputs, lengths, rule, keep, "reference")
    if reads == "single steps":
        network.cell.register_forward_hook(lambda *_: None)  # which a block of steps would not call
    assert reads_in_blocks(network) == (reads == "blocks")
    found = run(network, inputs, lengths, rule, keep, "stepwise")
    assert torch.equal(found.decision.steps, expected.decision.steps)
    assert torch.equal(found.decision.fired, expected.decision.fired)
    assert torch.equal(found.decision.label, expected.decision.label)
    torch.testing.assert_close(found.at_answer(), expected.at_answer())
    fired = expected.decision.steps[expected.decision.fired].tolist()
    assert set(fired) <= {3, 4, 10, 20, 28}  # never between checkpoints
    if keep == "read":
        pairs = [sorted(zip(each.row.tolist(), each.step.tolist(), strict=True)) for each in (found, expected)]
        assert pairs[0] == pairs[1]


def test_the_choice_of_an_engine():
    for name in ("kernels", "both"):
        network, inputs, _ = network_and_rows(name)
        assert choose(network, inputs, Threshold()).name == "stepwise" and reads_in_blocks(network)
    network, inputs, _ = network_and_rows("gru")
    assert choose(network, inputs, Threshold()).name == "stepwise"
    assert not reads_in_blocks(network)  # a GRU reads one step at a time
    for name in ("cpu", "whole", "triton"):
        assert ENGINES[name].can_run(network, inputs, Threshold()) is not None
    assert not reads_in_blocks(Network(network_and_rows("kernels")[0].cell, 3))  # it can fire at every step


def test_one_block_is_read_up_to_each_step_with_an_output(monkeypatch):
    network, inputs, _ = network_and_rows("kernels")
    read, forward_block = [], network.cell.forward_block
    monkeypatch.setattr(network.cell, "forward_block", lambda x, s: read.append(tuple(x.shape)) or forward_block(x, s))
    decide(network, inputs[:3], torch.tensor([30, 7, 20]), Never())
    steps = [3, 4, 7, 10, 20, 28, 30]
    rows = [3, 3, 3, 2, 2, 1, 1]
    assert read == [(live, end - begin, 2) for live, begin, end in zip(rows, [0, *steps], steps, strict=False)]


@pytest.mark.parametrize("rows", [stepwise.PARALLEL_ROWS - 1, stepwise.PARALLEL_ROWS])
def test_few_rows_are_read_in_blocks_in_one_thread(rows, set_threads):
    set_threads(3)
    network, inputs, _ = network_and_rows("kernels")
    seen = []
    network.readout.register_forward_hook(lambda *_: seen.append(torch.get_num_threads()))
    decide(network, inputs[:1].expand(rows, -1, -1), rule=Never())
    assert set(seen) == {1 if rows < stepwise.PARALLEL_ROWS else 3} and torch.get_num_threads() == 3


@pytest.mark.parametrize("every", [2, 8, None])
@pytest.mark.parametrize("keep", ["answer", "read"])
@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize("cell_name", ["kernels", "gru", "both"])
def test_when_rows_leave_changes_nothing(cell_name, rule, keep, every, monkeypatch):
    """On a GPU rows leave only every few steps; here the same is forced on the CPU."""
    network, inputs, lengths = network_and_rows(cell_name)
    found = []
    for steps in (1, every):
        monkeypatch.setattr(stepwise, "steps_until_rows_leave", lambda begin, inputs, steps=steps: steps or begin)
        result = stepwise.run(network, inputs, lengths, rule, keep)
        order = (result.row * 100 + result.step).argsort()
        found.append([*result.decision, result.row[order], result.step[order], result.logits[order]])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_rows_that_have_fired_read_nothing_more():
    network, inputs, lengths = network_and_rows("kernels")
    answered = decide(network, inputs, lengths, FireAt(7)).steps
    later = torch.arange(30) >= answered[:, None]
    poisoned = inputs.masked_fill(later[:, :, None], torch.nan)
    expected = decide(network, inputs, lengths, FireAt(7))
    assert torch.equal(decide(network, poisoned, lengths, FireAt(7)).probabilities, expected.probabilities)


@pytest.mark.parametrize("changed", ["a hook", "a subclass"])
def test_a_cell_whose_forward_alone_is_changed_reads_single_steps(changed):
    network, inputs, lengths = network_and_rows("both")
    if changed == "a hook":
        network.cell.cells[1].register_forward_hook(lambda cell, given, result: (-result[0], result[1]))
    else:
        network.cell.cells[1].__class__ = Negative
    assert not reads_in_blocks(network)
    expected = run(network, inputs, lengths, Never(), engine="reference")
    torch.testing.assert_close(decide(network, inputs, lengths, Never()).probabilities, expected.decision.probabilities)


def test_cells_of_a_stack_read_sequences_or_single_steps():
    torch.manual_seed(0)
    beside = cells.Stack(cells.Parallel(cells.GRU(2, 2), cells.GRU(2, 2)), cells.GRU(4, 2))
    cell = cells.Parallel(cells.GRU(2, 2), beside)  # `beside` has no way to read a block
    network, inputs = Network(cell, 3, CheckpointReadout((2, 4), (4,), 3)), torch.randn(5, 6, 2)
    assert not reads_in_blocks(network)
    expected = decide(network, inputs, rule=Never(), engine="reference").probabilities
    torch.testing.assert_close(decide(network, inputs, rule=Never()).probabilities, expected)


class Negative(cells.GRU):
    """A user's own cell, which has inherited how it reads many steps at once."""

    def forward(self, x_t, state):
        features, state = super().forward(x_t, state)
        return -features, state
