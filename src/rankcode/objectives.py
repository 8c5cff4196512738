"""What is minimised, and at which steps.

An objective has a rule, says what to keep of a run, and computes a loss from it. The paper's equation 1 is

    L_RC(ŷ, y) = L(ŷ, y) − β · H(ŷ),    ŷ the output at the first spike, H its entropy.

A row's loss depends only on its own steps read; the loss of a batch is the mean over rows.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import ClassVar, get_args

import torch.nn.functional as F
from torch import Tensor

from rankcode.checks import check_read, check_rows_apart, checked_inputs, checked_labels
from rankcode.decision import Decision
from rankcode.engines import Keep, Run, run
from rankcode.engines.cpu_settings import in_one_thread
from rankcode.network import Network
from rankcode.rules import Never, Rule, Threshold, check_rule


@dataclass(frozen=True)
class Switch:
    """A value that changes during training: `Switch((0, 0.4), (0.5, 0.165))` is 0.4 in the first half and 0.165 in the
    second. Each pair is a fraction of training done, and the value from then on."""

    points: tuple[tuple[float, float], ...]

    def __init__(self, *points: tuple[float, float]):
        try:
            object.__setattr__(self, "points", tuple((float(share), float(value)) for share, value in points))
        except (TypeError, ValueError):
            raise ValueError(f"a Switch needs pairs (share, value) of numbers, not {points!r}") from None
        shares = [share for share, _ in self.points]
        if not shares or shares[0] != 0 or shares != sorted(shares) or shares[-1] > 1:
            raise ValueError("a Switch needs pairs (share, value), the shares rising from 0 to at most 1")

    def __call__(self, progress: float) -> float:
        return [value for share, value in self.points if share <= progress][-1]


Beta = float | Callable[[float], float]  # a number, or a schedule: a function of the fraction of training done


class Objective(ABC):
    """Calling an objective runs the network and returns (loss, decision).

    `capturable` says whether its loss consists of tensor operations only, so that a training step can be captured in a
    CUDA graph. It is not inherited: a subclass has to set it itself.
    """

    rule: Rule
    keep: ClassVar[Keep]
    capturable: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        cls.capturable = vars(cls).get("capturable", False)

    def __call__(
        self,
        network: Network,
        inputs: Tensor,
        labels: Tensor,
        lengths: Tensor | None = None,
        engine: str = "auto",
        progress: float = 0.0,
        expected_steps: Tensor | None = None,
        check: bool = True,
    ) -> tuple[Tensor, Decision]:
        """`progress` is the fraction of training done, 0…1, for a β that is a schedule. `expected_steps` [rows], the
        steps at which rows will probably answer, makes some engines faster. `check=False` skips the checks of values of
        inputs, labels and lengths, for which the host would have to wait for a GPU."""
        self.check()
        check_rule(self.rule, network.activation, network.num_classes)
        check_rows_apart(network)
        ragged = lengths is not None
        inputs, lengths = checked_inputs(network, inputs, lengths, check)
        labels = checked_labels(network, labels, len(inputs), inputs.device, check)
        expected_steps = lengths if ragged and expected_steps is None else expected_steps
        result = run(network, inputs, lengths, self.rule, self.keep, engine, expected_steps)
        if check:
            check_read(inputs, result.decision.steps)
        return self.loss(result, labels, progress), result.decision

    def check(self) -> None:
        """Raise a ValueError if a part is missing, as may happen in a user's own objective."""
        if not hasattr(self, "rule") or getattr(self, "keep", None) not in get_args(Keep):
            raise ValueError(f"an objective has a rule, and keep = {' or '.join(map(repr, get_args(Keep)))}")

    def loss(self, result: Run, labels: Tensor, progress: float = 0.0) -> Tensor:
        if result.one_thread:
            return in_one_thread(lambda: self._loss(result, labels, progress))
        return self._loss(result, labels, progress)

    def _loss(self, result: Run, labels: Tensor, progress: float) -> Tensor:
        losses = self.row_losses(result, labels, progress)
        if losses.shape != labels.shape:
            raise ValueError(f"row_losses returns a loss for each row, [{len(labels)}], not {list(losses.shape)}")
        return losses.mean()

    def beta_at(self, progress: float) -> float:
        """β when this fraction of training is done. Nothing else in an objective changes during training."""
        return _value(getattr(self, "beta", 0.0), progress)

    @abstractmethod
    def row_losses(self, result: Run, labels: Tensor, progress: float = 0.0) -> Tensor:
        """The loss of each row, [rows]."""


class _AtAnswer(Objective):
    keep = "answer"

    def row_losses(self, result: Run, labels: Tensor, progress: float = 0.0) -> Tensor:
        logits, beta = result.at_answer(), self.beta_at(progress)
        losses = F.cross_entropy(logits, labels, reduction="none")
        return losses - beta * entropy(logits) if beta else losses


class _OverSteps(Objective):
    keep = "read"

    def row_losses(self, result: Run, labels: Tensor, progress: float = 0.0) -> Tensor:
        losses, rows = F.cross_entropy(result.logits, labels[result.row], reduction="none"), len(result.lengths)
        if result.read is not None:
            total = losses.where(result.read, 0.0).view(rows, -1).sum(1)
        else:
            total = losses.new_zeros(rows).index_add(0, result.row, losses)
        mean, beta = total / result.lengths, self.beta_at(progress)
        return mean - beta * entropy(result.at_answer()) if beta else mean


@dataclass(frozen=True, init=False)
class _WithRule(Objective):
    rule: Rule
    beta: Beta

    def __init__(self, threshold: float | None = None, beta: Beta = 0.0, rule: Rule | None = None):
        if rule is not None and threshold is not None:
            raise ValueError("give threshold= or rule=, not both: threshold=0.95 stands for rule=Threshold(0.95)")
        rule = rule if rule is not None else Threshold(0.95 if threshold is None else threshold)
        object.__setattr__(self, "rule", rule)
        object.__setattr__(self, "beta", _checked_beta(beta))


class AtSpike(_WithRule, _AtAnswer):
    """Rank coding: the loss at the first spike, and at the last step of a row that never fires."""

    capturable = True


class UntilSpike(_WithRule, _OverSteps):
    """Cross-entropy summed over the steps up to and including the first spike, divided by the row's
    length, minus β times the entropy at the last step read."""

    capturable = True


@dataclass(frozen=True)
class AtEnd(_AtAnswer):
    """Conventional training: the loss at the last step of every row."""

    capturable = True
    beta: Beta = 0.0
    rule = Never()

    def __post_init__(self):
        _checked_beta(self.beta)


@dataclass(frozen=True)
class EveryStep(_OverSteps):
    """Cross-entropy averaged over every step of the row."""

    capturable = True
    rule = Never()


OBJECTIVES = (AtSpike, AtEnd, EveryStep, UntilSpike)


def entropy(logits: Tensor) -> Tensor:
    """H of the class probabilities, in nats, [rows]."""
    log_probabilities = logits.log_softmax(-1)
    return -(log_probabilities.exp() * log_probabilities).sum(-1)


def _checked_beta(beta: Beta) -> Beta:
    known = [value for _, value in beta.points] if isinstance(beta, Switch) else [] if callable(beta) else [beta]
    if any(_value(value, 0.0) < 0 for value in known):
        warnings.warn("beta is negative: it rewards confidence, whereas the paper rewards entropy", stacklevel=3)
    return beta


def _value(beta: Beta, progress: float) -> float:
    value = beta(progress) if callable(beta) else beta
    if not isinstance(value, Real) or not math.isfinite(value):
        raise ValueError(f"beta must be a finite number, or a function that returns one, not {value!r}")
    return float(value)
