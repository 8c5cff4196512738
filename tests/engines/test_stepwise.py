"""Steps computed and memory kept are those of the steps read, and when rows leave the batch changes nothing."""

import pytest
import torch
from small_networks import LABELS, LENGTHS, OBJECTIVES, assert_mixed, firing_network, loss_and_gradients
from torch import nn

import rankcode as rc
from rankcode.engines import run, stepwise

both_engines = pytest.mark.parametrize("engine", ["reference", "stepwise"])


class Counted(torch.autograd.Function):
    """The identity; counts the rows that pass forward and the rows whose gradient passes back."""

    @staticmethod
    def forward(ctx, tensor, counts):
        ctx.counts = counts
        counts["forward"] += len(tensor)
        return tensor.clone()

    @staticmethod
    def backward(ctx, grad):
        ctx.counts["backward"] += len(grad)
        return grad, None


class CountingCell(nn.Module):
    output_shape = (4,)

    def __init__(self):
        super().__init__()
        self.step, self.counts = nn.GRUCell(3, 4), {"forward": 0, "backward": 0}

    def initial_state(self, rows):
        return self.step.weight_hh.new_zeros(rows, 4)

    def forward(self, x_t, state):
        after = Counted.apply(self.step(x_t, state), self.counts)
        return after, after


@both_engines
@pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)
def test_steps_computed_are_steps_read_forward_and_backward(objective, engine):
    network, inputs = firing_network(CountingCell())
    _, decision, _ = loss_and_gradients(objective, network, inputs, engine)
    if hasattr(objective.rule, "threshold"):
        assert_mixed(decision)
        assert decision.steps.sum() < LENGTHS.sum()
    else:
        assert decision.steps.equal(LENGTHS)
    read = int(decision.steps.sum())
    assert network.cell.counts == {"forward": read, "backward": read}


@both_engines
def test_inference_computes_steps_read_only(engine):
    network, inputs = firing_network(CountingCell())
    decision = rc.decide(network, inputs, LENGTHS, rc.Threshold(0.6), engine=engine)
    assert_mixed(decision)
    assert network.cell.counts == {"forward": int(decision.steps.sum()), "backward": 0}


@both_engines
def test_a_readout_before_the_end_is_not_needed_where_nothing_can_fire(engine):
    seen = []
    network, inputs = firing_network()
    network.readout.register_forward_hook(lambda module, args, output: seen.append(len(output)))
    rc.AtEnd()(network, inputs, LABELS, engine=engine)
    assert sum(seen) == (10 if engine == "stepwise" else 70)


def saved_numbers(network, inputs, rule):
    """How many numbers are kept for the backward pass."""
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.numel()) or tensor, lambda t: t):
        run(network, inputs, torch.full((len(inputs),), inputs.shape[1]), rule, engine="stepwise")
    return sum(kept)


def test_memory_follows_steps_read():
    network, _ = firing_network()
    long, short = torch.randn(10, 60, 3, dtype=torch.float64), torch.randn(10, 2, 3, dtype=torch.float64)
    assert saved_numbers(network, long, rc.FireAt(2)) == saved_numbers(network, short, rc.FireAt(2))
    halves = rc.FireAt([60] * 5 + [1] * 5)
    assert saved_numbers(network, long, halves) < 0.6 * saved_numbers(network, long, rc.FireAt(60))


@pytest.mark.parametrize("every", [2, 3, 8, None])
@pytest.mark.parametrize("keep", ["answer", "read"])
@pytest.mark.parametrize("rule", [rc.Threshold(0.45), rc.Never(), rc.FireAt(4), rc.Patience(rc.Threshold(0.4), 2)])
def test_when_rows_leave_changes_nothing(every, keep, rule, monkeypatch):
    """On a GPU rows leave after more and more steps (None); here the same is forced on the CPU."""
    torch.manual_seed(0)
    network = rc.Network(rc.cells.LSTM(3, 6), 3).double()
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.8)
    inputs, lengths = torch.randn(7, 11, 3).double(), torch.tensor([11, 4, 1, 8, 11, 9, 2])
    inputs[torch.arange(11) >= lengths[:, None]] = torch.nan
    found = []
    for steps in (1, every):
        monkeypatch.setattr(stepwise, "steps_until_rows_leave", lambda begin, inputs, steps=steps: steps or begin)
        x = inputs.clone().requires_grad_()
        result = stepwise.run(network, x, lengths, rule, keep)
        order = (result.row * 100 + result.step).argsort()
        (result.logits * result.step[:, None] * torch.arange(1.0, 4)).sum().backward()
        found.append([result.decision.steps, result.decision.label, result.row[order], result.logits[order].detach()])
        found[-1] += [x.grad, *(parameter.grad.clone() for parameter in network.parameters())]
        network.zero_grad()
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)
