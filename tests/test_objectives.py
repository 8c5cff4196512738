"""The losses by hand. Against Algorithm 1, with gradients: `engines/test_against_algorithm_1.py`."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import rankcode as rc
from rankcode.decision import Decision
from rankcode.engines import Run
from rankcode.objectives import entropy

# Two rows of lengths 2 and 4. Row 0 fires at step 2, row 1 at step 1. The entries are out of order, as an
# engine may give them.
P = {(0, 1): [0.5, 0.5], (0, 2): [0.8, 0.2], (1, 1): [0.1, 0.9]}
ORDER = [(0, 2), (1, 1), (0, 1)]
LABELS = torch.tensor([0, 0])


def read():
    decision = Decision(torch.tensor([0, 1]), torch.tensor([2, 1]), torch.tensor([True, True]), torch.zeros(2, 2))
    logits = torch.tensor([P[entry] for entry in ORDER], dtype=torch.float64).log()
    row, step = torch.tensor(ORDER).T
    return Run(decision, logits, row, step, torch.tensor([2, 4]), "read")


def answer():
    return read()._replace(
        logits=torch.tensor([P[0, 2], P[1, 1]], dtype=torch.float64).log(),
        row=torch.tensor([0, 1]),
        step=torch.tensor([2, 1]),
        keep="answer",
    )


def h(p):
    return -sum(x * math.log(x) for x in p)


def test_entropy():
    logits = torch.tensor([[0.25] * 4, [0.7, 0.1, 0.1, 0.1]], dtype=torch.float64).log()
    assert entropy(logits).tolist() == pytest.approx([math.log(4), h([0.7, 0.1, 0.1, 0.1])])
    certain = torch.tensor([[1000.0, 0.0]], requires_grad=True)
    entropy(certain).sum().backward()
    assert entropy(certain).item() == 0 and certain.grad.isfinite().all()


@pytest.mark.parametrize("beta", [0.0, 0.3])
@pytest.mark.parametrize("kept", [answer, read])
def test_at_spike_and_at_end(beta, kept):
    expected = [-math.log(0.8) - beta * h(P[0, 2]), -math.log(0.1) - beta * h(P[1, 1])]
    for objective in (rc.AtSpike(threshold=0.8, beta=beta), rc.AtEnd(beta=beta)):
        assert objective.row_losses(kept(), LABELS).tolist() == pytest.approx(expected)
        assert objective.loss(kept(), LABELS).item() == pytest.approx(sum(expected) / 2)


@pytest.mark.parametrize("beta", [0.0, 0.3])
def test_until_spike(beta):
    expected = [
        -(math.log(0.5) + math.log(0.8)) / 2 - beta * h(P[0, 2]),
        -math.log(0.1) / 4 - beta * h(P[1, 1]),  # divided by the length, not by the steps read
    ]
    assert rc.UntilSpike(threshold=0.8, beta=beta).row_losses(read(), LABELS).tolist() == pytest.approx(expected)


def test_every_step():
    expected = [-(math.log(0.5) + math.log(0.8)) / 2, -math.log(0.1) / 4]
    assert rc.EveryStep().row_losses(read(), LABELS).tolist() == pytest.approx(expected)


def test_calling_an_objective_is_run_and_loss_in_one():
    torch.manual_seed(0)
    network, inputs = rc.Network(rc.cells.GRU(3, 4), 2), torch.randn(6, 5, 3)
    labels, lengths = torch.tensor([0, 1, 0, 1, 0, 1]), torch.tensor([5, 4, 3, 2, 1, 5])
    for objective in (rc.AtSpike(threshold=0.55, beta=0.1), rc.UntilSpike(0.55, 0.1), rc.AtEnd(0.1), rc.EveryStep()):
        loss, decision = objective(network, inputs, labels, lengths=lengths, engine="auto")
        result = rc.engines.run(network, inputs, lengths, objective.rule, objective.keep)
        assert loss.equal(objective.loss(result, labels))
        assert all(a.equal(b) for a, b in zip(decision, result.decision, strict=True))
        assert loss.requires_grad and loss.dim() == 0


def test_until_spike_with_a_rule_that_never_fires_is_every_step():
    network, inputs, labels = rc.Network(rc.cells.GRU(3, 4), 2), torch.randn(6, 5, 3), torch.arange(6) % 2
    lengths = torch.tensor([5, 4, 3, 2, 1, 5])
    one, _ = rc.UntilSpike(rule=rc.Never())(network, inputs, labels, lengths)
    other, _ = rc.EveryStep()(network, inputs, labels, lengths)
    assert one.item() == pytest.approx(other.item())
    one, _ = rc.AtSpike(rule=rc.Never(), beta=0.2)(network, inputs, labels, lengths)
    other, _ = rc.AtEnd(beta=0.2)(network, inputs, labels, lengths)
    assert one.item() == pytest.approx(other.item())


def test_a_threshold_stands_for_a_rule():
    assert rc.AtSpike(threshold=0.9).rule == rc.Threshold(0.9)
    assert rc.UntilSpike(0.9).rule == rc.Threshold(0.9)
    assert rc.AtSpike().rule == rc.Threshold(0.95)
    rule = rc.Patience(rc.Threshold(0.9), 2)
    assert rc.AtSpike(rule=rule).rule is rule
    for kind in (rc.AtSpike, rc.UntilSpike):
        with pytest.raises(ValueError, match="not both"):
            kind(threshold=0.9, rule=rule)
        with pytest.raises(ValueError, match="threshold"):
            kind(threshold=0)


def test_beta_may_be_a_schedule():
    schedule = rc.Switch((0, 0.4), (0.5, 0.1))
    assert [schedule(progress) for progress in (0, 0.49, 0.5, 1)] == [0.4, 0.4, 0.1, 0.1]
    for beta in (schedule, lambda progress: 0.4 if progress < 0.5 else 0.1):
        for progress, value in ((0.0, 0.4), (0.7, 0.1)):
            for kind in (rc.AtSpike, rc.UntilSpike):
                losses = kind(threshold=0.8, beta=beta).row_losses(read(), LABELS, progress)
                assert losses.equal(kind(threshold=0.8, beta=value).row_losses(read(), LABELS))
            assert rc.AtEnd(beta=beta).loss(answer(), LABELS, progress) == rc.AtEnd(value).loss(answer(), LABELS)


def test_progress_reaches_the_schedule():
    network, inputs, labels = rc.Network(rc.cells.GRU(3, 4), 2), torch.randn(6, 5, 3), torch.arange(6) % 2
    schedule = rc.Switch((0, 0.4), (0.5, 0.1))
    late, _ = rc.AtSpike(beta=schedule)(network, inputs, labels, progress=0.9)
    assert late.equal(rc.AtSpike(beta=0.1)(network, inputs, labels)[0])
    early, _ = rc.AtSpike(beta=schedule)(network, inputs, labels)
    assert early.equal(rc.AtSpike(beta=0.4)(network, inputs, labels)[0]) and not early.equal(late)


@pytest.mark.parametrize("points", [(), ((0.5, 1),), ((0, 1), (0.7, 2), (0.5, 3)), ((0, 1), (1.5, 2))])
def test_a_schedule_that_cannot_be(points):
    with pytest.raises(ValueError, match="Switch"):
        rc.Switch(*points)


def test_a_sigmoid_and_the_two_classes_it_stands_for_lose_the_same():
    torch.manual_seed(0)
    one, two = (rc.Network(rc.cells.GRU(3, 4), outputs).double() for outputs in (1, 2))
    two.cell.load_state_dict(one.cell.state_dict())
    with torch.no_grad():
        two.readout.weight[0], two.readout.bias[0] = 0, 0
        two.readout.weight[1], two.readout.bias[1] = one.readout.weight[0], one.readout.bias[0]
    inputs, labels = torch.randn(6, 5, 3), torch.arange(6) % 2
    for objective in (rc.AtSpike(threshold=0.6, beta=0.2), rc.UntilSpike(0.6, 0.2), rc.AtEnd(0.2), rc.EveryStep()):
        (loss, decision), (same, other) = (objective(network, inputs, labels) for network in (one, two))
        assert loss.item() == pytest.approx(same.item(), rel=1e-12)
        assert decision.steps.equal(other.steps) and decision.label.equal(other.label)


@pytest.mark.parametrize("objective", [rc.AtSpike(0.6), rc.AtEnd(), rc.EveryStep(), rc.UntilSpike(0.6)], ids=str)
def test_a_layer_that_mixes_rows_is_refused_in_training(objective):
    readout = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    network = rc.Network(rc.cells.GRU(2, 4), 3, readout)
    batch = torch.randn(5, 4, 2), torch.arange(5) % 3
    with pytest.raises(ValueError, match=r"^BatchNorm1d takes means over rows, .*: use LayerNorm or GroupNorm$"):
        objective(network, *batch)
    objective(network.eval(), *batch)  # with the means it has


@pytest.mark.parametrize("beta", ["x", None, math.nan, math.inf, [0.1], 1j], ids=repr)
def test_beta_must_be_a_number(beta):
    for kind in (rc.AtSpike, rc.UntilSpike, rc.AtEnd):
        with pytest.raises(ValueError, match=r"^beta must be a finite number, or a function that returns one, not "):
            kind(beta=beta)


def test_a_negative_beta_is_used_with_a_warning(recwarn):
    for kind in (rc.AtSpike, rc.UntilSpike, rc.AtEnd):
        kind(beta=0.0), kind(beta=0.3), kind(beta=rc.Switch((0, 0.4), (0.5, 0.0)))
    assert not recwarn.list
    for kind in (rc.AtSpike, rc.UntilSpike, rc.AtEnd):
        for beta in (-0.1, rc.Switch((0, 0.4), (0.5, -0.1))):
            with pytest.warns(UserWarning, match="^beta is negative: it rewards confidence"):
                assert kind(beta=beta).beta_at(1.0) == -0.1


def test_only_the_objectives_of_the_package_can_be_captured_without_saying_so():
    assert all(kind.capturable for kind in (rc.AtSpike, rc.UntilSpike, rc.AtEnd, rc.EveryStep))
    assert not Own().capturable
    assert not type("Derived", (rc.AtSpike,), {})().capturable
    assert type("Derived", (rc.AtSpike,), {"capturable": True})().capturable


def test_beta_may_be_a_number_of_numpy():
    for beta in (np.float32(0.25), np.float64(0.25), lambda progress: np.float32(0.25)):
        assert rc.AtSpike(beta=beta).loss(answer(), LABELS) == rc.AtSpike(beta=0.25).loss(answer(), LABELS)


class Own(rc.Objective):
    """With what is wrong with it."""

    def __init__(self, losses=None, **parts):
        self.losses = losses
        self.__dict__ |= parts

    def row_losses(self, result, labels, progress=0.0):
        return self.losses(result.at_answer())


@pytest.mark.parametrize(
    ("own", "message"),
    [
        (Own(keep="answer"), "an objective has a rule, and keep = 'answer' or 'read'"),
        (Own(rule=rc.Never()), "an objective has a rule, and keep = 'answer' or 'read'"),
        (Own(rule=rc.Never(), keep="all"), "an objective has a rule, and keep = 'answer' or 'read'"),
        (Own(rule=0.9, keep="answer"), r"a rule is needed, not 0.9: Threshold\(0.9\) is one"),
        (Own(lambda logits: logits, rule=rc.Never(), keep="answer"), r"a loss for each row, \[5\], not \[5, 3\]"),
        (Own(lambda logits: logits.mean(), rule=rc.Never(), keep="answer"), r"a loss for each row, \[5\], not \[\]"),
    ],
    ids=["no rule", "no keep", "other keep", "no rule but a number", "a loss for each class", "one loss"],
)
def test_what_is_wrong_with_an_objective_of_ones_own_is_said(own, message):
    network, batch = rc.Network(rc.cells.GRU(2, 4), 3), (torch.randn(5, 4, 2), torch.arange(5) % 3)
    with pytest.raises(ValueError, match=message):
        own(network, *batch)
    with pytest.raises(ValueError, match=message):
        rc.fit(network, batch, own, rc.Training(device="cpu", progress=False))


@pytest.mark.parametrize("points", [(0.1,), ((0, "a"),), ((0, 1, 2),), (None,)], ids=str)
def test_what_is_no_switch(points):
    with pytest.raises(ValueError, match=r"^a Switch needs pairs \(share, value\) of numbers, not "):
        rc.Switch(*points)
