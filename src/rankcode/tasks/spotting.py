"""Continuous sequence spotting (paper, sections 3.1 and B.1): is there a run of equal values?

All that matters of the past is whether a long enough run has occurred and, if not, the length of the current run. So
the posterior at every step and the performance of an ideal observer can be computed exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from rankcode.data.sources import Batch
from rankcode.tasks.splits import GeneratedSplits


class SpottingLimit(NamedTuple):
    """The performance of an ideal observer with a constant threshold, over all possible sequences."""

    accuracy: float  # share of sequences answered correctly
    steps: float  # mean steps read
    positive_steps: float  # mean steps read in positive sequences
    negative_steps: float  # mean steps read in negative sequences
    positive_share: float  # share of positive sequences


@dataclass(frozen=True)
class Spotting(GeneratedSplits):
    """Is there a run of equal values in a sequence of fair coin flips?"""

    steps: int = 25
    """Length of a sequence."""
    run_length: int = 5
    """A sequence with a run of at least this many equal values is positive."""
    validation_rows: int = 2_000
    """Sequences in the validation split."""
    test_rows: int = 100_000
    """Sequences in the test split."""

    name: ClassVar[str] = "spotting"

    def __post_init__(self) -> None:
        if not 2 <= self.run_length <= self.steps:
            raise ValueError(f"run_length must be between 2 and the {self.steps} steps, not {self.run_length}")

    def draw(self, batch_size: int, generator: torch.Generator) -> Batch:
        inputs = torch.randint(2, (batch_size, self.steps, 1), generator=generator, device=generator.device).float()
        return Batch(inputs, (self._runs(inputs)[:, -1] == self.run_length).long())

    def posterior(self, inputs: Tensor) -> Tensor:
        """The exact probability of each class after every step: [rows, steps, classes], float64."""
        positive = self._positive.to(inputs.device)
        step = torch.arange(1, self.steps + 1, device=inputs.device)
        probability = positive[step, self._runs(inputs)]
        return torch.stack([1 - probability, probability], dim=-1)

    def limit(self, threshold: float = 0.95) -> SpottingLimit:
        """The exact performance of answering as soon as a class is at least as probable as the threshold."""
        if not 0.5 <= threshold <= 1:
            raise ValueError(f"threshold must be between 0.5 and 1, not {threshold}")
        reading = self._positive.new_zeros(self.run_length + 1)  # share of sequences unanswered, by current run
        reading[1] = 1.0  # after the first value the run has length one
        right = 0.0
        steps = self._positive.new_zeros(2)  # negative, positive
        for step in range(1, self.steps + 1):
            positive = self._positive[step]
            confidence = torch.maximum(positive, 1 - positive)
            fires = (confidence >= threshold) | (step == self.steps)
            answered = torch.where(fires, reading, 0.0)
            right += float((answered * confidence).sum())
            steps += step * torch.stack([(answered * (1 - positive)).sum(), (answered * positive).sum()])
            reading = self._advance(reading - answered)
        share = self._positive[1, 1]
        negative_steps, positive_steps = float(steps[0] / (1 - share)), float(steps[1] / share)
        return SpottingLimit(right, float(steps.sum()), positive_steps, negative_steps, float(share))

    def limit_curves(self) -> dict[str, tuple[Tensor, Tensor]]:
        """The limit by name, as (accuracy, steps): exact, one point for each of several θ."""
        limits = [self.limit(threshold) for threshold in (0.55, 0.6, 0.7, 0.8, 0.9, 0.95)]
        accuracy, steps = (torch.tensor([limit[k] for limit in limits]) for k in (0, 1))
        return {"constant threshold on the exact posterior": (accuracy, steps)}

    def _advance(self, mass: Tensor) -> Tensor:
        """The shares after one more step, by current run, which ends or grows. None of the sequences is positive."""
        following = torch.zeros_like(mass)
        following[1] = mass[:-1].sum() / 2
        following[2:] = mass[1:-1] / 2
        return following

    @cached_property
    def _positive(self) -> Tensor:
        """P(positive | step, current run): [steps + 1, run_length + 1]; run_length: already positive."""
        table = torch.zeros(self.steps + 1, self.run_length + 1, dtype=torch.float64)
        table[:, -1] = 1.0
        for step in range(self.steps - 1, -1, -1):
            table[step, :-1] = (table[step + 1, 1] + table[step + 1, 1:]) / 2
        return table

    def _runs(self, inputs: Tensor) -> Tensor:
        """Length of the current run at every step, run_length from the first positive step on: [rows, steps]."""
        self.check_shape(inputs)
        values = inputs[..., 0]
        run = torch.ones(len(values), dtype=torch.int64, device=values.device)
        runs = [run]
        for step in range(1, self.steps):
            grown = torch.where(values[:, step] == values[:, step - 1], run + 1, 1)
            run = torch.where(run == self.run_length, self.run_length, grown)
            runs.append(run)
        return torch.stack(runs, dim=1)
