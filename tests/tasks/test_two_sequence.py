import math

import numpy as np
import pytest
import torch

from rankcode.data.sources import seeded
from rankcode.tasks import TASKS, TwoSequence

ROWS = 100_000
COSTS = (0.006, 0.004, 0.003, 0.002, 0.001, 0.0005)


@pytest.fixture(scope="module")
def task():
    return TwoSequence()


@pytest.fixture(scope="module")
def drawn(task):
    return task.draw_with_std(ROWS, seeded("cpu", 2022))


@pytest.fixture(scope="module")
def optimal(task, drawn):
    return task.optimal_stopping_curve(*drawn[0][:2], COSTS)


def log_odds_by_integral(values: np.ndarray) -> np.ndarray:
    """Log-odds after each value, by a midpoint sum over 100,000 values of σ in linear space, not in logs of it."""
    width = 0.2 / 100_000
    sigma = 0.05 + width * (np.arange(100_000) + 0.5)
    log_likelihood = np.zeros((2, len(sigma)))
    result = []
    for value in values:
        for row, mean in enumerate((-0.05, 0.05)):
            log_likelihood[row] += -np.log(sigma) - (value - mean) ** 2 / (2 * sigma**2)
        top = log_likelihood.max()
        negative, positive = np.exp(log_likelihood - top).sum(1)
        result.append(math.log(positive) - math.log(negative))
    return np.array(result)


def test_shape_and_names(task):
    assert TASKS["two-sequence"] is TwoSequence
    assert (task.steps, task.input_shape, task.num_classes, task.label_names) == (40, (1,), 2, ("negative", "positive"))
    assert task.train.size is None and task.validation.size == 2_000 and task.test.size == 100_000


def test_sequences_have_the_mean_and_noise_they_should(drawn):
    batch, sigma = drawn
    assert batch.inputs.shape == (ROWS, 40, 1) and batch.inputs.dtype == torch.float32
    assert abs(batch.labels.double().mean().item() - 0.5) < 4 * 0.5 / ROWS**0.5
    standard = (batch.inputs[..., 0].double() - 0.05 * (2 * batch.labels - 1)[:, None]) / sigma[:, None]
    values = standard.numel()
    assert abs(standard.mean().item()) < 4 / values**0.5
    assert abs(standard.var().item() - 1) < 4 * (2 / values) ** 0.5
    assert sigma.min() >= 0.05 and sigma.max() <= 0.25
    quarters = torch.histc(sigma, 4, 0.05, 0.25) / ROWS
    assert (quarters - 0.25).abs().max().item() < 4 * (0.25 * 0.75 / ROWS) ** 0.5


def test_same_seed_same_rows(task):
    first, sigma = task.draw_with_std(50, seeded("cpu", 1))
    again, sigma_again = task.draw_with_std(50, seeded("cpu", 1))
    assert torch.equal(first.inputs, again.inputs) and torch.equal(sigma, sigma_again)
    validation, test = (next(iter(source.scan(64, "cpu"))).inputs for source in (task.validation, task.test))
    assert not torch.equal(validation, test)


def test_posterior_against_a_fine_integral(task, drawn):
    inputs = drawn[0].inputs[:25]
    posterior = task.posterior(inputs)
    assert posterior.shape == (25, 40, 2) and posterior.dtype == torch.float64
    expected = np.stack([log_odds_by_integral(row) for row in inputs[..., 0].double().numpy()])
    np.testing.assert_allclose(posterior[..., 1], 1 / (1 + np.exp(-expected)), rtol=1e-6)
    np.testing.assert_allclose(posterior[..., 0], 1 / (1 + np.exp(expected)), rtol=1e-6)


def test_posterior_outside_the_table(task):
    """A sequence far noisier than any the task draws is still judged exactly."""
    values = np.full(40, 1.5)
    values[::2] = -1.4
    posterior = task.posterior(torch.from_numpy(values)[None, :, None])
    expected = log_odds_by_integral(values)
    np.testing.assert_allclose(posterior[0, :, 1], 1 / (1 + np.exp(-expected)), rtol=1e-6)


@pytest.mark.parametrize("step", [1, 2, 7, 40])
def test_interpolation_against_quadrature(task, step):
    farthest = task.evidence.spacings[step] * (task.evidence.GRID - 1)
    distance = torch.linspace(0, farthest, 9_973, dtype=torch.float64) ** 2
    error = task.evidence.interpolated(step, distance) - task.evidence.direct(step, distance)
    assert error.abs().max().item() < 1e-7


def test_posterior_does_not_depend_on_how_rows_are_chunked(task, drawn, monkeypatch):
    inputs = drawn[0].inputs[:100]
    whole = task.posterior(inputs)
    monkeypatch.setattr("rankcode.tasks.two_sequence.CHUNK", 7)
    assert torch.equal(task.posterior(inputs), whole)


def test_constant_threshold_curve_against_the_posterior(task, drawn):
    batch = drawn[0]
    inputs, labels = batch.inputs[:2_000], batch.labels[:2_000]
    thresholds = (0.5, 0.8, 0.95, 0.9999)
    curve = task.constant_threshold_curve(inputs, labels, thresholds)
    posterior = task.posterior(inputs)
    for number, threshold in enumerate(thresholds):
        fires = posterior.amax(-1) >= threshold
        fires[:, -1] = True
        step = fires.int().argmax(1)
        answer = posterior[torch.arange(2_000), step].argmax(-1)
        assert curve.accuracy[number].item() == (answer == labels).double().mean().item()
        assert curve.steps[number].item() == pytest.approx((step + 1).double().mean().item(), abs=1e-9)
    assert curve.steps[0].item() == 1
    assert task.constant_threshold_curve(inputs, labels, [1.0]).steps.tolist() == [40]  # nothing is ever certain


def test_limits_of_constant_thresholds(task, drawn):
    curve = task.constant_threshold_curve(*drawn[0][:2], (0.95, 0.98, 1.0))
    for number, (accuracy, steps) in enumerate([(0.9488, 14.93), (0.9629, 19.60), (0.9690, 40.0)]):
        error = (accuracy * (1 - accuracy) / ROWS) ** 0.5
        assert abs(curve.accuracy[number].item() - accuracy) < 4 * error
        assert abs(curve.steps[number].item() - steps) < 4 * 13 / ROWS**0.5  # 13: more than the steps' deviation


def test_one_step_of_the_induction_against_an_integral():
    """With two steps, the cost of reading on after x is c + ∫ min(p(x, x', +), p(x, x', −)) dx' / p(x)."""
    task = TwoSequence(steps=2)
    policy = task.optimal_stopping(COSTS)
    sigma = 0.05 + 0.2 / 2_000 * (np.arange(2_000) + 0.5)
    following = np.linspace(-2, 2, 8_001)

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


def test_optimal_stopping_costs_what_the_induction_says(task, optimal):
    """The induction and the sequences have nothing in common but the task: a mistake in either shows here."""
    expected = task.optimal_stopping(COSTS).expected_cost
    for number, cost in enumerate(COSTS):
        paid = (1 - optimal.accuracy[number] + cost * optimal.steps[number]).item()
        deviation = 0.23 + 13 * cost  # at most: errors below 5.6 %, deviation of the steps below 13
        assert abs(paid - expected[number].item()) < 4 * deviation / ROWS**0.5


def test_optimal_stopping_costs_less_than_any_threshold(task, drawn, optimal):
    thresholds = [0.9, 0.92, 0.94, 0.95, 0.96, 0.97, 0.98, 0.985, 0.99, 0.995]
    constant = task.constant_threshold_curve(*drawn[0][:2], thresholds)
    for number, cost in enumerate(COSTS):
        paid = 1 - optimal.accuracy[number] + cost * optimal.steps[number]
        assert paid < (1 - constant.accuracy + cost * constant.steps).min()


def test_limits_of_optimal_stopping(optimal):
    """Against the same limits on the 1,000,000 test sequences."""
    accuracies = (0.94464, 0.95490, 0.95934, 0.96324, 0.96656, 0.96784)
    means = (13.083, 15.167, 16.451, 18.046, 20.318, 22.178)
    for number, (accuracy, steps) in enumerate(zip(accuracies, means, strict=True)):
        error = (accuracy * (1 - accuracy) / ROWS) ** 0.5
        assert abs(optimal.accuracy[number].item() - accuracy) < 4 * error
        assert abs(optimal.steps[number].item() - steps) < 4 * 13 / ROWS**0.5


def test_wrong_settings_and_inputs_are_named(task):
    inputs, labels = torch.zeros(3, 40, 1), torch.zeros(3, dtype=torch.int64)
    with pytest.raises(ValueError, match="low and high"):
        TwoSequence(low=0.3)
    with pytest.raises(ValueError, match="mean"):
        TwoSequence(mean=0)
    with pytest.raises(ValueError, match=r"\[rows, 40, 1\]"):
        task.posterior(torch.zeros(3, 39, 1))
    with pytest.raises(ValueError, match="labels"):
        task.constant_threshold_curve(inputs, labels[:2], [0.9])
    with pytest.raises(ValueError, match="thresholds"):
        task.constant_threshold_curve(inputs, labels, [0.2])
    with pytest.raises(ValueError, match="costs"):
        task.optimal_stopping_curve(inputs, labels, [0.0])
