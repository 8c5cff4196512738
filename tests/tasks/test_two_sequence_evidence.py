"""The exact posterior of the 2-sequence problem, against a fine sum over the standard deviation."""

import math

import numpy as np
import pytest
import torch

from rankcode.data.sources import seeded
from rankcode.tasks import TwoSequence

TASK = TwoSequence()


def log_odds_by_integral(values: np.ndarray) -> np.ndarray:
    """Log-odds after each value, by a midpoint sum over 20,000 values of σ in linear space, not in logs of it."""
    width = 0.2 / 20_000
    sigma = 0.05 + width * (np.arange(20_000) + 0.5)
    log_likelihood = np.zeros((2, len(sigma)))
    result = []
    for value in values:
        for row, mean in enumerate((-0.05, 0.05)):
            log_likelihood[row] += -np.log(sigma) - (value - mean) ** 2 / (2 * sigma**2)
        top = log_likelihood.max()
        negative, positive = np.exp(log_likelihood - top).sum(1)
        result.append(math.log(positive) - math.log(negative))
    return np.array(result)


def test_posterior_against_a_fine_integral():
    inputs = TASK.draw(25, seeded("cpu", 2022)).inputs
    posterior = TASK.posterior(inputs)
    assert posterior.shape == (25, 40, 2) and posterior.dtype == torch.float64
    expected = np.stack([log_odds_by_integral(row) for row in inputs[..., 0].double().numpy()])
    np.testing.assert_allclose(posterior[..., 1], 1 / (1 + np.exp(-expected)), rtol=1e-6)
    np.testing.assert_allclose(posterior[..., 0], 1 / (1 + np.exp(expected)), rtol=1e-6)


def test_posterior_outside_the_table():
    """A sequence far noisier than any the task draws is still judged exactly."""
    values = np.full(40, 1.5)
    values[::2] = -1.4
    posterior = TASK.posterior(torch.from_numpy(values)[None, :, None])
    expected = log_odds_by_integral(values)
    np.testing.assert_allclose(posterior[0, :, 1], 1 / (1 + np.exp(-expected)), rtol=1e-6)


@pytest.mark.parametrize("step", [1, 2, 7, 40])
def test_interpolation_against_quadrature(step):
    farthest = TASK.evidence.spacings[step] * (TASK.evidence.GRID - 1)
    distance = torch.linspace(0, farthest, 9_973, dtype=torch.float64) ** 2
    error = TASK.evidence.interpolated(step, distance) - TASK.evidence.direct(step, distance)
    assert error.abs().max().item() < 1e-7
