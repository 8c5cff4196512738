"""The optimal observer of the 2-sequence problem, against an integral, sampled sequences and constant thresholds."""

import numpy as np
import pytest
import torch

from rankcode.data.sources import seeded
from rankcode.tasks import TwoSequence

ROWS = 20_000
COSTS = (0.006, 0.002, 0.0005)
TASK = TwoSequence()


@pytest.fixture(scope="module")
def drawn():
    return TASK.draw(ROWS, seeded("cpu", 2022))


@pytest.fixture(scope="module")
def optimal(drawn):
    return TASK.optimal_stopping_curve(*drawn[:2], COSTS)


def test_one_step_of_the_induction_against_an_integral():
    """With two steps, the cost of reading on after x is c + ∫ min(p(x, x', +), p(x, x', −)) dx' / p(x)."""
    task = TwoSequence(steps=2)
    policy = task.optimal_stopping(COSTS)
    sigma = 0.05 + 0.2 / 1_000 * (np.arange(1_000) + 0.5)
    following = np.linspace(-2, 2, 2_001)

    def joint(value, mean):  # p(x, x' | mean), up to a factor
        def density(at):
            return np.exp(-((at - mean) ** 2) / (2 * sigma[:, None] ** 2)) / sigma[:, None]

        return (density(np.array([value])) * density(following)).sum(0)

    for value in (0.0, 0.01, 0.03, 0.08, 0.2, -0.45):
        positive, negative = joint(value, 0.05), joint(value, -0.05)
        error = np.minimum(positive, negative).sum() / (positive + negative).sum()
        total = torch.tensor([value], dtype=torch.float64)
        cost = policy.cost_of_reading_on(1, total, total**2)[0]
        np.testing.assert_allclose(cost, error + np.array(COSTS), atol=3e-5)


def test_optimal_stopping_costs_what_the_induction_says(optimal):
    """The induction and the sequences have nothing in common but the task: a mistake in either shows here."""
    expected = TASK.optimal_stopping(COSTS).expected_cost
    for number, cost in enumerate(COSTS):
        paid = (1 - optimal.accuracy[number] + cost * optimal.steps[number]).item()
        deviation = 0.23 + 13 * cost  # at most: errors below 5.6 %, deviation of the steps below 13
        assert abs(paid - expected[number].item()) < 4 * deviation / ROWS**0.5


def test_optimal_stopping_costs_less_than_any_threshold(drawn, optimal):
    thresholds = [0.9, 0.92, 0.94, 0.95, 0.96, 0.97, 0.98, 0.985, 0.99, 0.995]
    constant = TASK.constant_threshold_curve(*drawn[:2], thresholds)
    for number, cost in enumerate(COSTS):
        paid = 1 - optimal.accuracy[number] + cost * optimal.steps[number]
        assert paid < (1 - constant.accuracy + cost * constant.steps).min()


def test_limits_of_optimal_stopping(optimal):
    """Against the same limits on the 1,000,000 test sequences."""
    accuracies = (0.94464, 0.96324, 0.96784)
    means = (13.083, 18.046, 22.178)
    for number, (accuracy, steps) in enumerate(zip(accuracies, means, strict=True)):
        error = (accuracy * (1 - accuracy) / ROWS) ** 0.5
        assert abs(optimal.accuracy[number].item() - accuracy) < 4 * error
        assert abs(optimal.steps[number].item() - steps) < 4 * 13 / ROWS**0.5
