"""When a row fires.

A rule is any object with `initial_state(batch_size)` and `(activations, probabilities, step, state) -> (fired, state)`.
Like a cell, it takes its state as an argument and returns the new one, so a rule can remember and can be streamed.

- activations [rows, classes]: what is compared with θ. Class probabilities; for a spiking output layer,
  the membranes before reset. One sigmoid output p counts as the two classes (1 − p, p).
- probabilities [rows, classes]: the softmax of the logits, whatever the output layer.
- step: 1…T, an int, or an int64 tensor [rows] where rows are at different steps.
- fired: bool [rows]. A row is passed to the rule until it fires.

A rule may also have these. Those that describe `__call__` do not count in a subclass that changes `__call__` alone:

- `check(activation, num_classes)`: raises a ValueError if the rule does not fit the network's output layer.
- `classes`: the classes that may fire; None for all. A row that fired is labelled with the largest activation among
  them.
- `table(steps, num_classes)`: thresholds [len(steps), num_classes] for a range of steps, if the rule fires exactly
  where an activation reaches its threshold. Fused engines compare with the table instead of calling the rule.
- `planted_steps(lengths)`: the step at which each row fires, int64 [rows] on the device of `lengths`, if the rule does
  not depend on the network's output. A step past a row's length means that the row does not fire.
- `memoryless`: True if the rule has no state. Engines may then call it once for many steps, with a tensor of steps.
- `stationary`: True if a memoryless rule depends on the activations and probabilities alone, not on the step.
- `capturable`: True if the rule never changes, so that a CUDA graph can be captured with it.
- `reads_features`: True if the rule is to be called with a fifth argument, the cell's features [rows, features].
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from rankcode.device_constants import constant
from rankcode.state import State


@runtime_checkable
class Rule(Protocol):
    """Decides when a row fires: `fired` is bool [rows], and the state is passed back in at the next step."""

    def initial_state(self, batch_size: int) -> State: ...

    def __call__(
        self, activations: Tensor, probabilities: Tensor, step: int | Tensor, state: State
    ) -> tuple[Tensor, State]: ...


class _Thresholds(ABC):
    """Fires when the largest activation of the classes that may fire reaches the threshold of the step."""

    classes: tuple[int, ...] | None
    capturable = memoryless = True

    @property
    @abstractmethod
    def by_step(self) -> tuple[float, ...]:
        """The threshold of each step; the last one holds for all later steps."""

    @property
    def stationary(self) -> bool:
        return len(self.by_step) == 1

    def check(self, activation: str, num_classes: int) -> None:
        if activation == "membrane":
            return
        lowest, interval = (0.5, "[0.5, 1]") if activation == "sigmoid" else (0.0, "(0, 1]")
        for value in self.by_step:
            if not lowest <= value <= 1:
                raise ValueError(f"threshold {value:g} is outside {interval}, the range for a {activation} output")
        if self.classes is None and self.by_step[0] < 1 / num_classes:
            warnings.warn(
                f"threshold {self.by_step[0]:g} is below 1/{num_classes}, which the largest of {num_classes} "
                f"probabilities always reaches: every row fires at its first step",
                stacklevel=4,
            )

    def initial_state(self, batch_size: int) -> State:
        return None

    def __call__(self, activations, probabilities, step, state):
        largest, by_step = allowed(activations, self.classes).amax(1), self.by_step
        if len(by_step) == 1:
            return largest >= by_step[0], state
        if isinstance(step, Tensor):
            column = torch.tensor(by_step, dtype=largest.dtype, device=largest.device)
            return largest >= column[step.clamp(max=len(column)) - 1], state
        return largest >= by_step[min(step, len(by_step)) - 1], state

    def table(self, steps: range, num_classes: int) -> Tensor:
        last = len(self.by_step)
        column = torch.tensor([self.by_step[min(step, last) - 1] for step in steps], dtype=torch.float64)
        table = column[:, None].expand(-1, num_classes)
        return table if self.classes is None else -allowed(-table, self.classes)  # ∞ for a class that may not fire


@dataclass(frozen=True)
class Threshold(_Thresholds):
    """Fires when the activation of a class is at least `threshold` (θ).

    Softmax outputs: 0 < θ ≤ 1. One sigmoid output: 0.5 ≤ θ ≤ 1; p ≥ θ fires class 1, p ≤ 1 − θ class 0.
    Membranes of a spiking output layer: any θ > 0. `classes`: the classes that may fire; default all.
    """

    threshold: float = 0.95
    classes: tuple[int, ...] | None = None

    def __post_init__(self):
        object.__setattr__(self, "threshold", _checked(self.threshold))
        object.__setattr__(self, "classes", _checked_classes(self.classes))

    @property
    def by_step(self) -> tuple[float, ...]:
        return (self.threshold,)


@dataclass(frozen=True)
class StepThresholds(_Thresholds):
    """One θ for each step; the last one holds for all later steps. Otherwise like `Threshold`."""

    thresholds: tuple[float, ...]
    classes: tuple[int, ...] | None = None

    def __post_init__(self):
        if not isinstance(self.thresholds, Iterable):
            raise ValueError(f"StepThresholds needs a threshold for each step, not {self.thresholds!r}")
        object.__setattr__(self, "thresholds", tuple(_checked(value) for value in self.thresholds))
        object.__setattr__(self, "classes", _checked_classes(self.classes))
        if not self.thresholds:
            raise ValueError("StepThresholds needs at least one threshold")

    @property
    def by_step(self) -> tuple[float, ...]:
        return self.thresholds


class FireAt:
    """Fires at planted steps, whatever the network's output: one step for each row, or the same step for all."""

    classes = None

    def __init__(self, steps: int | Sequence[int] | Tensor):
        planted = torch.as_tensor(steps)
        if planted.is_floating_point() or planted.dim() > 1 or planted.numel() == 0 or int(planted.min()) < 1:
            raise ValueError("FireAt needs one step, or one for each row, each a whole number of at least 1")
        self.steps = planted.long()

    def __repr__(self) -> str:
        return f"FireAt({self.steps.tolist()})"

    def initial_state(self, batch_size: int) -> State:
        if self.steps.dim() and len(self.steps) != batch_size:
            raise ValueError(f"FireAt has steps for {len(self.steps)} rows, but the batch has {batch_size}")
        return self.steps.expand(batch_size)

    def __call__(self, activations, probabilities, step, state):
        return state <= step, state

    def planted_steps(self, lengths: Tensor) -> Tensor:
        return self.initial_state(len(lengths)).to(lengths.device)


@dataclass(frozen=True)
class Never:
    """Never fires: every row is read to its end."""

    classes = None
    capturable = True

    def initial_state(self, batch_size: int) -> State:
        return None

    def __call__(self, activations, probabilities, step, state):
        return torch.zeros(activations.shape[0], dtype=torch.bool, device=activations.device), state

    def planted_steps(self, lengths: Tensor) -> Tensor:
        return lengths + 1


@dataclass(frozen=True)
class Patience:
    """Fires once `rule` has fired `count` steps in a row for the same class."""

    rule: Rule
    count: int

    def __post_init__(self):
        if not (isinstance(self.count, Integral) and self.count >= 1):
            raise ValueError(f"Patience needs a count of at least 1, not {self.count!r}")

    def check(self, activation: str, num_classes: int) -> None:
        check_rule(self.rule, activation, num_classes)

    @property
    def classes(self) -> tuple[int, ...] | None:
        return getattr(self.rule, "classes", None)

    @property
    def reads_features(self) -> bool:
        return getattr(self.rule, "reads_features", False)

    def initial_state(self, batch_size: int) -> State:
        zeros = torch.zeros(batch_size, dtype=torch.long)
        return self.rule.initial_state(batch_size), zeros, zeros - 1

    def __call__(self, activations, probabilities, step, state, *features):
        inner, seen, last = state
        rule: Any = self.rule
        fired, inner = rule(activations, probabilities, step, inner, *features)
        label = allowed(activations, self.classes).argmax(1)
        seen = torch.where(fired, torch.where(label == last, seen + 1, torch.ones_like(seen)), torch.zeros_like(seen))
        return seen >= self.count, (inner, seen, label)


@dataclass(frozen=True)
class OptimalStopping:
    """Fires when reading on is expected to cost more than answering now. `rankcode.fit_rule` makes it.

    `gains[k]` is what answering at `steps[k]` rather than later is expected to gain, for confidences at equal distances
    from LOWEST to HIGHEST: the logit of the largest probability, after division of the logits by `temperatures[k]`.
    A row fires where the interpolated gain is positive, and at the last of the steps or later in any case. It does not
    fire at steps before the last that are not in `steps`.

    With an `axis` the gain also depends on the cell's features: `gains[k]` has such a row of confidences for each of
    AXIS_PLACES numbers at equal distances from −AXIS_REACH to AXIS_REACH, one row after the other. The number is the
    weighted sum of the features plus a constant. Its weights, with the constant last, are the same for a stretch of
    steps: those of `steps[k]` are `axis[k * len(axis) // len(steps)]`.
    """

    steps: tuple[int, ...]
    gains: tuple[tuple[float, ...], ...]
    temperatures: tuple[float, ...] | None = None  # None: all 1
    classes: tuple[int, ...] | None = None
    axis: tuple[tuple[float, ...], ...] | None = None  # None: the gain depends on the confidence alone

    memoryless: ClassVar[bool] = True
    LOWEST: ClassVar[float] = -3.0
    HIGHEST: ClassVar[float] = 8.0
    AXIS_PLACES: ClassVar[int] = 7
    AXIS_REACH: ClassVar[float] = 2.5

    def __post_init__(self):
        object.__setattr__(self, "classes", _checked_classes(self.classes))
        widths = {len(row) for row in self.gains}
        if list(self.steps) != sorted(set(self.steps)) or not self.steps or self.steps[0] < 1:
            raise ValueError(f"steps must be in increasing order, from 1 on, not {self.steps!r}")
        if len(self.gains) != len(self.steps) - 1 or len(widths) > 1 or min(widths, default=2) < 2:
            raise ValueError("gains must have a row of the same number of values for each step but the last")
        if self.temperatures is not None and (
            len(self.temperatures) != len(self.steps) or not all(0 < value < math.inf for value in self.temperatures)
        ):
            raise ValueError("temperatures must be positive, one for each step")
        if self.axis is not None:
            if not 1 <= len(self.axis) <= len(self.steps) or len({len(row) for row in self.axis}) > 1:
                raise ValueError("axis must have 1 to len(steps) rows, of one weight for each feature and a constant")
            if any(width % self.AXIS_PLACES or width < 2 * self.AXIS_PLACES for width in widths):
                raise ValueError(f"with an axis, gains must have {self.AXIS_PLACES} values for each confidence")

    @property
    def reads_features(self) -> bool:
        return self.axis is not None

    def check(self, activation: str, num_classes: int) -> None:
        """It fits every output layer."""

    def initial_state(self, batch_size: int) -> State:
        return None

    def __call__(self, activations, probabilities, step, state, *features):
        rows, device = probabilities.shape[0], probabilities.device
        if isinstance(step, int):
            if step >= self.steps[-1]:
                return torch.ones(rows, dtype=torch.bool, device=device), state
            if step not in self.steps:
                return torch.zeros(rows, dtype=torch.bool, device=device), state
            step = torch.full((rows,), step, device=device)
        steps = self._tensor("steps", torch.long, device)
        number = (steps < step[:, None]).sum(1).clamp(max=len(self.steps) - 1)
        fired = step >= self.steps[-1]
        if self.gains:
            gain = self._gain(allowed(probabilities, self.classes), number.clamp(max=len(self.gains) - 1), *features)
            fired = fired | ((steps[number] == step) & (gain > 0))
        return fired, state

    def _gain(self, probabilities: Tensor, number: Tensor, features: Tensor | None = None) -> Tensor:
        """The expected gain of answering with these probabilities at the steps with these numbers, [rows]."""
        device, temperature, place = probabilities.device, None, None
        if self.temperatures is not None:
            temperature = self._tensor("temperatures", torch.float64, device)[number]
        if self.axis is not None:
            if features is None or features.shape[1] != len(self.axis[0]) - 1:
                got = None if features is None else list(features.shape)
                raise ValueError(f"the rule reads features of shape [rows, {len(self.axis[0]) - 1}], not {got}")
            weights = self._tensor("axis", torch.float64, device)[number * len(self.axis) // len(self.steps)]
            place = (features.double() * weights[:, :-1]).sum(1) + weights[:, -1]
        confidence = confidence_of(probabilities.double(), temperature)
        return interpolated_gain(self._tensor("gains", torch.float64, device), number, confidence, place)

    def _tensor(self, name: str, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A field as a tensor, made once for each device."""
        made = self.__dict__.setdefault("_tensors", {})
        if (name, device) not in made:
            made[name, device] = torch.tensor(getattr(self, name), dtype=dtype, device=device)
        return made[name, device]

    def __getstate__(self) -> dict:
        return {name: value for name, value in self.__dict__.items() if name != "_tensors"}


def interpolated_gain(gains: Tensor, number: int | Tensor, confidence: Tensor, axis: Tensor | None = None) -> Tensor:
    """The gain [rows] of answering at the steps with these numbers, from `gains` of `OptimalStopping`."""
    grid = gains.shape[1] // (1 if axis is None else OptimalStopping.AXIS_PLACES)
    left, part = between(confidence, OptimalStopping.LOWEST, OptimalStopping.HIGHEST, grid)
    if axis is None:
        return torch.lerp(gains[number, left], gains[number, left + 1], part)
    below, share = between(axis, -OptimalStopping.AXIS_REACH, OptimalStopping.AXIS_REACH, OptimalStopping.AXIS_PLACES)
    at = below * grid + left
    lower = torch.lerp(gains[number, at], gains[number, at + 1], part)
    upper = torch.lerp(gains[number, at + grid], gains[number, at + grid + 1], part)
    return torch.lerp(lower, upper, share)


def between(values: Tensor, low: float, high: float, places: int) -> tuple[Tensor, Tensor]:
    """The last of so many places at equal distances from `low` to `high` that is not above each value, and what share
    of the distance to the next one the value is above it."""
    place = ((values - low) / (high - low) * (places - 1)).clamp(0, places - 1)
    left = place.nan_to_num(0.0).long().clamp(max=places - 2)  # the share stays NaN
    return left, place - left


MIN_CONFIDENT, MAX_CONFIDENT = 1e-4, 1 - 1e-4  # largest probabilities outside are read as these


def confidence_of(probabilities: Tensor, temperature: Tensor | None = None) -> Tensor:
    """The logit of the largest probability [...] of probabilities [..., classes], after division of their logits by a
    temperature [...]."""
    if temperature is not None:
        probabilities = (probabilities.clamp(min=1e-38).log() / temperature[..., None]).softmax(-1)
    return probabilities.amax(-1).clamp(MIN_CONFIDENT, MAX_CONFIDENT).logit()


def allowed(activations: Tensor, classes: tuple[int, ...] | None) -> Tensor:
    """The activations, with −∞ for every class that may not fire."""
    if classes is None:
        return activations
    may_fire = tuple(label in classes for label in range(activations.shape[1]))
    return activations.where(constant(may_fire, torch.bool, activations.device), -math.inf)


def check_rule(rule: Any, activation: str, num_classes: int) -> None:
    """Raise a ValueError if `rule` is not a rule, or cannot be used with a network's output layer."""
    if isinstance(rule, Real):
        raise ValueError(f"a rule is needed, not {rule!r}: Threshold({rule!r}) is one")
    if not isinstance(rule, Rule) or isinstance(rule, type):
        raise ValueError(
            f"a rule has initial_state(batch_size) and (activations, probabilities, step, state) -> (fired, state); "
            f"{rule!r} does not"
        )
    if (own_check := getattr(rule, "check", None)) is not None:
        own_check(activation, num_classes)
    for label in getattr(rule, "classes", None) or ():
        if not 0 <= label < num_classes:
            raise ValueError(f"class {label} in {rule!r} is outside 0…{num_classes - 1}, the network's classes")


def _checked(threshold: float) -> float:
    if not isinstance(threshold, Real) or isinstance(threshold, bool) or not 0 < threshold < math.inf:
        raise ValueError(f"a threshold must be a number above 0, not {threshold!r}")
    return float(threshold)


def _checked_classes(classes: Sequence[int] | None) -> tuple[int, ...] | None:
    if classes is None:
        return None
    if not (isinstance(classes, Iterable) and all(isinstance(label, Integral) for label in classes)):
        raise ValueError(f"classes= takes whole numbers, such as (0, 2), not {classes!r}")
    if not len(classes):
        raise ValueError("no class may fire: give at least one in classes=, or use Never()")
    return tuple(int(label) for label in classes)
