"""The 2-sequence problem (paper, sections 3.2 and B.2): is the mean of a noisy sequence +0.05 or −0.05?

The standard deviation differs from sequence to sequence and is unknown, so some sequences allow an early answer and
others do not. The posterior is exact (see two_sequence_evidence), and so are the limits that follow from it, with a
constant threshold and with optimal stopping (see two_sequence_stopping).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from rankcode.data.sources import Batch
from rankcode.tasks.splits import GeneratedSplits
from rankcode.tasks.two_sequence_evidence import NoiseEvidence
from rankcode.tasks.two_sequence_stopping import StoppingLimit

# Points of limit_curves, close enough to draw straight lines between them.
THRESHOLDS = (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.83, 0.86, 0.88, 0.9, 0.92, 0.93, 0.94, 0.95, 0.96, 0.97, 0.975)
THRESHOLDS += (0.98, 0.985, 0.99, 0.995, 0.999)
COSTS = (0.05, 0.035, 0.025, 0.02, 0.016, 0.013, 0.01, 0.008, 0.006, 0.004, 0.003, 0.002, 0.001, 0.0005, 0.0001)
CHUNK = 20_000  # rows processed at once: bounds the memory of computing the limits


class Limit(NamedTuple):
    """The performance of ideal observers: one entry for each threshold, or for each cost of a step."""

    accuracy: Tensor  # share of sequences answered correctly
    steps: Tensor  # mean steps read; a sequence on which an observer never fires counts as its full length


@dataclass(frozen=True)
class TwoSequence(GeneratedSplits):
    """Is the mean of a noisy sequence positive or negative? The noise differs from sequence to sequence."""

    steps: int = 40
    """Length of a sequence."""
    mean: float = 0.05
    """Mean of the positive sequences; that of the negative ones is its opposite."""
    low: float = 0.05
    """Smallest standard deviation of a sequence."""
    high: float = 0.25
    """Largest standard deviation of a sequence."""
    validation_rows: int = 2_000
    """Sequences in the validation split."""
    test_rows: int = 100_000
    """Sequences in the test split."""

    name: ClassVar[str] = "two-sequence"

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, not {self.steps}")
        if self.mean <= 0:
            raise ValueError(f"mean must be positive, not {self.mean}")
        if not 0 < self.low < self.high:
            raise ValueError(f"low and high must be 0 < low < high, not {self.low} and {self.high}")

    def draw(self, batch_size: int, generator: torch.Generator) -> Batch:
        return self.draw_with_std(batch_size, generator)[0]

    def draw_with_std(self, batch_size: int, generator: torch.Generator) -> tuple[Batch, Tensor]:
        """New sequences and the standard deviation of each, [rows], on the generator's device."""
        device = generator.device
        labels = torch.randint(2, (batch_size,), generator=generator, device=device)
        sigma = self.low + (self.high - self.low) * torch.rand(batch_size, generator=generator, device=device)
        noise = torch.randn(batch_size, self.steps, 1, generator=generator, device=device)
        center = self.mean * (2 * labels - 1)
        return Batch(center[:, None, None] + sigma[:, None, None] * noise, labels), sigma

    def posterior(self, inputs: Tensor) -> Tensor:
        """The exact probability of each class after every step: [rows, steps, classes], float64."""
        self.check_shape(inputs)
        log_odds = torch.empty(len(inputs), self.steps, dtype=torch.float64, device=inputs.device)
        for rows in _chunks(len(inputs)):
            for step, _, _, now in self._observe(inputs[rows]):
                log_odds[rows, step - 1] = now
        return torch.stack([torch.sigmoid(-log_odds), torch.sigmoid(log_odds)], dim=-1)

    def constant_threshold_curve(self, inputs: Tensor, labels: Tensor, thresholds: Sequence[float]) -> Limit:
        """The performance on these sequences of answering as soon as a class has probability θ, for each θ."""
        if not thresholds or not all(0.5 <= threshold <= 1 for threshold in thresholds):
            raise ValueError(f"thresholds must be between 0.5 and 1, and at least one, not {list(thresholds)}")
        bound = torch.tensor(thresholds, dtype=torch.float64, device=inputs.device).logit()

        def answers(step: int, total: Tensor, squares: Tensor, log_odds: Tensor) -> Tensor:
            return (log_odds.abs()[:, None] >= bound) | (step == self.steps)

        return self._curve(inputs, labels, len(bound), answers)

    def optimal_stopping_curve(self, inputs: Tensor, labels: Tensor, costs: Sequence[float]) -> Limit:
        """The performance on these sequences of answering at the optimal step, for each cost of a step relative to
        that of an error."""
        return self._curve(inputs, labels, len(costs), self.optimal_stopping(costs).answers)

    def limit_curves(self) -> dict[str, Limit]:
        """The limits by name, on the sequences of the test split."""
        test = list(self.test.scan(CHUNK, "cpu"))
        inputs, labels = torch.cat([batch.inputs for batch in test]), torch.cat([batch.labels for batch in test])
        return {
            "constant threshold on the exact posterior": self.constant_threshold_curve(inputs, labels, THRESHOLDS),
            "optimal stopping": self.optimal_stopping_curve(inputs, labels, COSTS),
        }

    def optimal_stopping(self, costs: Sequence[float]) -> StoppingLimit:
        """The optimal observer for each of these step costs; cached, since computing it takes seconds."""
        return _optimal_stopping(self, tuple(costs))

    @cached_property
    def evidence(self) -> NoiseEvidence:
        return NoiseEvidence(self.steps, self.mean, self.low, self.high)

    def _observe(self, inputs: Tensor) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
        """Step by step: the step, the sum so far, the sum of squares so far, the log-odds of positive."""
        total = squares = torch.zeros(len(inputs), dtype=torch.float64, device=inputs.device)
        for step, value in enumerate(inputs[..., 0].double().unbind(1), start=1):
            total, squares = total + value, squares + value**2
            yield step, total, squares, self.evidence.log_odds(step, total, squares)

    def _curve(self, inputs: Tensor, labels: Tensor, observers: int, answers: Callable[..., Tensor]) -> Limit:
        """Accuracy and mean steps of observers: `answers(step, …)` says which ones answer now, [rows, observers]."""
        self.check_shape(inputs)
        if labels.shape != inputs.shape[:1]:
            raise ValueError(f"labels must have shape [{len(inputs)}], one for each row, not {list(labels.shape)}")
        right, steps = torch.zeros(2, observers, dtype=torch.float64, device=inputs.device)
        for rows in _chunks(len(inputs)):
            positive = labels[rows].bool()
            reading = torch.ones(len(positive), observers, dtype=torch.bool, device=inputs.device)
            for step, total, squares, log_odds in self._observe(inputs[rows]):
                some = reading.any(1).nonzero()[:, 0]  # rows that at least one observer still reads
                answered = reading[some] & answers(step, total[some], squares[some], log_odds[some])
                correct = (log_odds[some] > 0) == positive[some]
                right += (answered & correct[:, None]).sum(0)
                steps += step * answered.sum(0)
                reading[some] &= ~answered
        return Limit(right / len(inputs), steps / len(inputs))


@lru_cache(maxsize=8)
def _optimal_stopping(task: TwoSequence, costs: tuple[float, ...]) -> StoppingLimit:
    return StoppingLimit(task.evidence, costs)


def _chunks(rows: int) -> Iterator[slice]:
    return (slice(first, first + CHUNK) for first in range(0, rows, CHUNK))
