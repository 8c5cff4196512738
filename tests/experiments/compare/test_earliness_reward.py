"""`earliness_reward.py`: the loss, written out step by step, and the moment of the answer."""

import math

import pytest
import torch
from small_sets import splits, write_set

pytest.importorskip("sklearn")

import rankcode as rc
from rankcode.engines import run
from rankcode.experiments.compare import earliness_reward
from rankcode.experiments.compare.earliness_reward import SMOOTHING, EarlinessReward, Elects, decided, stopping
from rankcode.experiments.compare.running import measured

LENGTHS = torch.tensor([5, 3])


def network(classes=3):
    torch.manual_seed(0)
    return rc.Network(rc.cells.GRU(2, 4), classes + 1)


def test_the_loss_is_the_sum_over_steps():
    torch.manual_seed(1)
    inputs, labels, net, alpha = torch.randn(2, 5, 2), torch.tensor([2, 0]), network(), 0.25
    loss, _ = EarlinessReward(alpha)(net, inputs, labels, LENGTHS)
    result = run(net, inputs, LENGTHS, rc.Never(), "read")
    expected = 0.0
    for row, (length, label) in enumerate(zip(LENGTHS.tolist(), labels.tolist(), strict=True)):
        going_on, total = 1.0, 0.0
        for step in range(1, length + 1):
            (at,) = ((result.row == row) & (result.step == step)).nonzero()[0].tolist()
            logits = result.logits[at]
            p = logits[:-1].softmax(0)[label].item()
            delta = 1.0 if step == length else logits[-1].sigmoid().item()
            answer = going_on * delta
            total += answer
            going_on *= 1 - delta
            share = 1 / (1 + alpha)
            now = -share * math.log(p) - (1 - share) * p * (1 - step / length)
            expected += (answer + SMOOTHING / length) * now / 2
        assert math.isclose(total, 1.0, rel_tol=1e-6)
    assert math.isclose(loss.item(), expected, rel_tol=1e-5)
    loss.backward()
    assert all(torch.isfinite(each.grad).all() for each in net.parameters())


def test_the_probabilities_of_stopping_add_up_to_one():
    found = stopping(torch.randn(2, 5), LENGTHS)
    torch.testing.assert_close(found.sum(1), torch.ones(2))
    assert (found[1, 3:] == 0).all()


def test_rows_are_answered_where_stopping_becomes_more_likely_than_not():
    net = network()
    with torch.no_grad():
        net.readout.weight.zero_()
        net.readout.bias[:] = torch.tensor([0.0, 1.0, 0.0, -math.log(2.5)])  # δ = 2/7: 1 − (5/7)³ is above one half
    label, steps, earliness = decided(net, rc.Batch(torch.randn(2, 5, 2), torch.tensor([0, 0]), torch.tensor([5, 2])))
    assert label.tolist() == [1, 1] and steps.tolist() == [3, 2]
    torch.testing.assert_close(earliness, torch.tensor([0.6, 1.0]))


def test_the_method_learns(tmp_path, monkeypatch):
    monkeypatch.setattr(earliness_reward, "MIN_BATCHES", 150)
    train, test = splits(write_set(tmp_path))
    (answers,) = Elects(train, test, 0).answers([0.1])
    found = measured(answers, test)
    assert found["accuracy"] > 0.9 and found["earliness"] <= 1
