"""The 2-sequence problem (paper, sections 3.2 and B.2): is the mean of a noisy sequence +0.05 or −0.05?

How noisy a sequence is differs from one to the next and is not told, so some deserve an early answer and
others do not. The posterior is exact (see noise_evidence), and so are the limits that follow from it: of
answering at a constant threshold, and of answering when it is optimal to (see optimal_stopping).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from rankcode.data import Batch, Generated

from .limit import Limit
from .noise_evidence import NoiseEvidence
from .optimal_stopping import OptimalStopping

CHUNK = 50_000  # rows at once: bounds the memory of the limits


@dataclass(frozen=True)
class TwoSequence:
    """Is the mean of a noisy sequence positive or negative? The noise differs from sequence to sequence."""

    steps: int = 40
    """Length of a sequence."""
    mean: float = 0.05
    """Mean of the positive sequences; the negative ones have its opposite."""
    low: float = 0.05
    """Smallest standard deviation of a sequence."""
    high: float = 0.25
    """Largest standard deviation of a sequence."""
    validation_rows: int = 2_000
    """Sequences in the validation split."""
    test_rows: int = 1_000_000
    """Sequences in the test split."""

    name: ClassVar[str] = "two-sequence"
    features: ClassVar[tuple[int, ...]] = (1,)
    classes: ClassVar[int] = 2
    label_names: ClassVar[tuple[str, ...]] = ("negative", "positive")

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, not {self.steps}")
        if self.mean <= 0:
            raise ValueError(f"mean must be positive, not {self.mean}")
        if not 0 < self.low < self.high:
            raise ValueError(f"low and high must be 0 < low < high, not {self.low} and {self.high}")

    @cached_property
    def train(self) -> Generated:
        return Generated(self._generate)

    @cached_property
    def validation(self) -> Generated:
        return Generated(self._generate, self.validation_rows, seed=1)

    @cached_property
    def test(self) -> Generated:
        return Generated(self._generate, self.test_rows, seed=2)

    def draw(self, rows: int, generator: torch.Generator) -> tuple[Batch, Tensor]:
        """Fresh sequences and the standard deviation of each, [rows], on the generator's device."""
        device = generator.device
        labels = torch.randint(2, (rows,), generator=generator, device=device)
        sigma = self.low + (self.high - self.low) * torch.rand(rows, generator=generator, device=device)
        noise = torch.randn(rows, self.steps, 1, generator=generator, device=device)
        center = self.mean * (2 * labels - 1)
        return Batch(center[:, None, None] + sigma[:, None, None] * noise, labels), sigma

    def posterior(self, inputs: Tensor) -> Tensor:
        """The exact probability of each class after every step: [rows, steps, classes], float64."""
        self._check(inputs)
        log_odds = torch.empty(len(inputs), self.steps, dtype=torch.float64, device=inputs.device)
        for rows in _chunks(len(inputs)):
            for step, _, _, now in self._observe(inputs[rows]):
                log_odds[rows, step - 1] = now
        return torch.stack([torch.sigmoid(-log_odds), torch.sigmoid(log_odds)], dim=-1)

    def constant_threshold_curve(self, inputs: Tensor, labels: Tensor, thresholds: Sequence[float]) -> Limit:
        """What answering as soon as a class is at least as probable as θ reaches on these sequences, for each θ."""
        if not thresholds or not all(0.5 <= threshold <= 1 for threshold in thresholds):
            raise ValueError(f"thresholds must be between 0.5 and 1, and at least one, not {list(thresholds)}")
        bound = torch.tensor([_logit(threshold) for threshold in thresholds], dtype=torch.float64, device=inputs.device)

        def answers(step: int, total: Tensor, squares: Tensor, log_odds: Tensor) -> Tensor:
            return (log_odds.abs()[:, None] >= bound) | (step == self.steps)

        return self._curve(inputs, labels, answers)

    def optimal_stopping_curve(self, inputs: Tensor, labels: Tensor, costs: Sequence[float]) -> Limit:
        """What answering at the best moment reaches on these sequences, for each cost of a step (an error: 1)."""
        return self._curve(inputs, labels, self.optimal_stopping(costs).answers)

    def optimal_stopping(self, costs: Sequence[float]) -> OptimalStopping:
        """The optimal observer for each of these step costs; remembered, since it takes seconds to work out."""
        return _optimal_stopping(self, tuple(costs))

    @cached_property
    def evidence(self) -> NoiseEvidence:
        return NoiseEvidence(self.steps, self.mean, self.low, self.high)

    def _generate(self, rows: int, generator: torch.Generator) -> Batch:
        return self.draw(rows, generator)[0]

    def _check(self, inputs: Tensor) -> None:
        if inputs.shape[1:] != (self.steps, 1):
            raise ValueError(f"inputs must have shape [rows, {self.steps}, 1], not {list(inputs.shape)}")

    def _observe(self, inputs: Tensor) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
        """Step by step: the step, the sum so far, the sum of squares so far, the log-odds of positive."""
        total = squares = torch.zeros(len(inputs), dtype=torch.float64, device=inputs.device)
        for step, value in enumerate(inputs[..., 0].double().unbind(1), start=1):
            total, squares = total + value, squares + value**2
            yield step, total, squares, self.evidence.log_odds(step, total, squares)

    def _curve(self, inputs: Tensor, labels: Tensor, answers: Callable[..., Tensor]) -> Limit:
        """Accuracy and mean steps of observers: `answers(step, …)` says which answer now, [rows, observers]."""
        self._check(inputs)
        if labels.shape != inputs.shape[:1]:
            raise ValueError(f"labels must have shape [{len(inputs)}], one for each row, not {list(labels.shape)}")
        right = steps = torch.zeros((), dtype=torch.float64, device=inputs.device)
        for rows in _chunks(len(inputs)):
            reading = torch.ones((), dtype=torch.bool, device=inputs.device)  # [rows, observers] from the first step on
            for step, total, squares, log_odds in self._observe(inputs[rows]):
                answered = reading & answers(step, total, squares, log_odds)
                correct = ((log_odds > 0) == labels[rows].bool())[:, None]
                right = right + (answered & correct).sum(0)
                steps = steps + step * answered.sum(0)
                reading = reading & ~answered
        return Limit(right / len(inputs), steps / len(inputs))


@lru_cache(maxsize=8)
def _optimal_stopping(task: TwoSequence, costs: tuple[float, ...]) -> OptimalStopping:
    return OptimalStopping(task.evidence, costs)


def _chunks(rows: int) -> Iterator[slice]:
    return (slice(first, first + CHUNK) for first in range(0, rows, CHUNK))


def _logit(probability: float) -> float:
    return math.inf if probability == 1 else math.log(probability / (1 - probability))
