"""The exact log-odds of the 2-sequence problem, with the unknown standard deviation integrated out.

Given its class, the likelihood of a sequence depends only on its length t and its sum of squared distances A from the
mean of that class: log p(x | class) = F_t(A) + constant, where F_t(A) = log ∫ σ^−t exp(−A / 2σ²) dσ. F_t is a smooth
function of one number. Its values and slopes are tabulated once by Gauss-Legendre quadrature over log σ on an even grid
of √A, and interpolated with cubic Hermite splines.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor


class NoiseEvidence:
    """Log-odds of a positive against a negative mean of the same magnitude, for σ uniform between two bounds."""

    QUADRATURE = 96  # nodes over log σ
    GRID = 2048  # nodes over √A, for each step

    def __init__(self, steps: int, mean: float, low: float, high: float):
        self.steps, self.mean, self.low, self.high = steps, mean, low, high
        nodes, weights = np.polynomial.legendre.leggauss(self.QUADRATURE)
        half_width = math.log(high / low) / 2
        log_sigma = torch.from_numpy(math.log(low) + half_width * (nodes + 1))
        self.sigma = log_sigma.exp()  # [quadrature]
        self.log_weight = torch.from_numpy(weights).log() + log_sigma  # dσ = σ d(log σ)
        tables = [self._table(step) for step in range(steps + 1)]
        self.values, self.slopes, spacings = (torch.stack(column) for column in zip(*tables, strict=True))
        self.spacings = spacings.tolist()

    def log_odds(self, step: int, total: Tensor, squares: Tensor) -> Tensor:
        """log P(positive) − log P(negative) after `step` values with this sum and this sum of squares."""
        positive, negative = self.distances(step, total, squares)
        return self.interpolated(step, positive) - self.interpolated(step, negative)

    def distances(self, step: int, total: Tensor, squares: Tensor) -> tuple[Tensor, Tensor]:
        """The sum of squared distances from the positive and from the negative mean."""
        around_zero = squares + step * self.mean**2
        shift = 2 * self.mean * total
        return (around_zero - shift).clamp(min=0), (around_zero + shift).clamp(min=0)

    def log_terms(self, step: int, distance: Tensor) -> Tensor:
        """The integrand of F at the quadrature nodes, weights included, in logs: […, quadrature]."""
        sigma, log_weight = self.sigma.to(distance.device), self.log_weight.to(distance.device)
        return log_weight - step * sigma.log() - distance[..., None] / (2 * sigma**2)

    def direct(self, step: int, distance: Tensor) -> Tensor:
        """F by quadrature."""
        return self.log_terms(step, distance).logsumexp(-1)

    def interpolated(self, step: int, distance: Tensor) -> Tensor:
        """F by interpolation; by quadrature beyond the table."""
        values, slopes = self.values[step].to(distance.device), self.slopes[step].to(distance.device)
        position = distance.sqrt() / self.spacings[step]
        left = position.long().clamp(max=self.GRID - 2)
        right = left + 1
        far = 1 - (near := position - left)
        result = far**2 * ((1 + 2 * near) * values[left] + near * slopes[left])
        result += near**2 * ((1 + 2 * far) * values[right] - far * slopes[right])
        beyond = position > self.GRID - 1
        if beyond.any():
            result[beyond] = self.direct(step, distance[beyond])
        return result

    def _table(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """F, its slope per grid cell, and the spacing of the grid, which covers nearly all sequences."""
        farthest = self.high * (math.sqrt(step) + 7) + 2 * self.mean * math.sqrt(step)
        root = torch.linspace(0, farthest, self.GRID, dtype=torch.float64)
        spacing = root[1] - root[0]
        terms = self.log_terms(step, root**2)
        slope = -root * (terms.softmax(-1) / self.sigma**2).sum(-1)  # dF / d√A
        return terms.logsumexp(-1), slope * spacing, spacing
