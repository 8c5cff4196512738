"""When a row fires.

A rule is any object with `initial_state(batch_size)` and `(activations, probabilities, step, state) ->
(fired, state)`. Like a cell it is handed its state and gives it back, so it can remember and stream.

- activations [rows, classes]: what is compared with θ. Class probabilities; for a spiking output layer,
  the membranes before reset. One sigmoid output p counts as the two classes (1 − p, p).
- probabilities [rows, classes]: the softmax of the outputs, whatever the output layer.
- step: 1…T, a number, or an int64 tensor [rows] where rows are at different steps.
- fired: bool [rows]. A row is asked until it fires.

`classes` on a rule says which classes may fire; the label of a row that fired is the largest activation
among them. A rule that is only a table of thresholds has `table(steps, classes)`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from rankcode.state import State


@runtime_checkable
class Rule(Protocol):
    """Decides when a row fires: fired is bool [rows], and the state is handed back at the next step."""

    def initial_state(self, batch_size: int) -> State: ...

    def __call__(
        self, activations: Tensor, probabilities: Tensor, step: int | Tensor, state: State
    ) -> tuple[Tensor, State]: ...


@dataclass(frozen=True)
class Threshold:
    """Fires when the activation of a class is at least `threshold` (θ).

    Softmax outputs: 0 < θ ≤ 1. One sigmoid output: 0.5 ≤ θ ≤ 1; p ≥ θ fires class 1, p ≤ 1 − θ class 0.
    Membranes of a spiking output layer: any θ > 0. `classes`: those that may fire; default all.
    """

    threshold: float = 0.95
    classes: tuple[int, ...] | None = None

    def __post_init__(self):
        object.__setattr__(self, "threshold", _checked(self.threshold))
        object.__setattr__(self, "classes", _checked_classes(self.classes))

    def initial_state(self, batch_size: int) -> State:
        return None

    def __call__(self, activations, probabilities, step, state):
        return allowed(activations, self.classes).amax(1) >= self.threshold, state

    def table(self, steps: int, classes: int) -> Tensor:
        return _table(torch.full((steps,), self.threshold, dtype=torch.float64), self.classes, classes)


@dataclass(frozen=True)
class StepThresholds:
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

    def initial_state(self, batch_size: int) -> State:
        return None

    def __call__(self, activations, probabilities, step, state):
        largest = allowed(activations, self.classes).amax(1)
        if isinstance(step, Tensor):
            column = torch.tensor(self.thresholds, dtype=largest.dtype, device=largest.device)
            return largest >= column[step.clamp(max=len(column)) - 1], state
        return largest >= self.thresholds[min(step, len(self.thresholds)) - 1], state

    def table(self, steps: int, classes: int) -> Tensor:
        column = torch.tensor(self.thresholds, dtype=torch.float64)[
            torch.arange(steps).clamp(max=len(self.thresholds) - 1)
        ]
        return _table(column, self.classes, classes)


def written_thresholds(written: dict[str, Any]) -> Threshold | StepThresholds | None:
    """A rule from its kind and settings, as files have them; None where it is not one of thresholds."""
    kind: Any = {"Threshold": Threshold, "StepThresholds": StepThresholds}.get(written.get("kind", ""))
    return kind(**{name: value for name, value in written.items() if name != "kind"}) if kind else None


class FireAt:
    """Fires at planted steps, whatever the network says: a step for each row, or one for all."""

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
            raise ValueError(f"FireAt was planted for {len(self.steps)} rows, the batch has {batch_size}")
        return self.steps.expand(batch_size)

    def __call__(self, activations, probabilities, step, state):
        return state <= step, state


@dataclass(frozen=True)
class Never:
    """Never fires: every row is read to its end."""

    classes = None

    def initial_state(self, batch_size: int) -> State:
        return None

    def __call__(self, activations, probabilities, step, state):
        return torch.zeros(len(activations), dtype=torch.bool, device=activations.device), state

    def table(self, steps: int, classes: int) -> Tensor:
        return torch.full((steps, classes), math.inf, dtype=torch.float64)


@dataclass(frozen=True)
class Patience:
    """Fires once `rule` has fired `count` steps in a row for the same class."""

    rule: Rule
    count: int

    def __post_init__(self):
        if not (isinstance(self.count, Integral) and self.count >= 1):
            raise ValueError(f"Patience needs a count of at least 1, not {self.count!r}")

    @property
    def classes(self) -> tuple[int, ...] | None:
        return getattr(self.rule, "classes", None)

    def initial_state(self, batch_size: int) -> State:
        zeros = torch.zeros(batch_size, dtype=torch.long)
        return self.rule.initial_state(batch_size), zeros, zeros - 1

    def __call__(self, activations, probabilities, step, state):
        inner, seen, last = state
        fired, inner = self.rule(activations, probabilities, step, inner)
        label = allowed(activations, self.classes).argmax(1)
        seen = torch.where(fired, torch.where(label == last, seen + 1, torch.ones_like(seen)), torch.zeros_like(seen))
        return seen >= self.count, (inner, seen, label)


def allowed(activations: Tensor, classes: tuple[int, ...] | None) -> Tensor:
    """The activations with every class that may not fire at −∞."""
    if classes is None:
        return activations
    masked = torch.full_like(activations, -math.inf)
    masked[:, classes] = activations[:, classes]
    return masked


def check_rule(rule: Any, activation: str, classes: int) -> None:
    """Raise a ValueError where a rule cannot be used with a network's output layer."""
    if isinstance(rule, Real):
        raise ValueError(f"a rule is needed, not {rule!r}: Threshold({rule!r}) is one")
    if not isinstance(rule, Rule) or isinstance(rule, type):
        raise ValueError(
            f"a rule has initial_state(batch_size) and (activations, probabilities, step, state) -> (fired, state); "
            f"{rule!r} does not"
        )
    if isinstance(rule, Patience):
        return check_rule(rule.rule, activation, classes)
    if isinstance(rule, Threshold | StepThresholds) and activation != "membrane":
        lowest = 0.5 if activation == "sigmoid" else 0.0
        for value in (rule.threshold,) if isinstance(rule, Threshold) else rule.thresholds:
            if not lowest <= value <= 1:
                interval = "[0.5, 1]" if activation == "sigmoid" else "(0, 1]"
                raise ValueError(f"threshold {value:g} is outside {interval}, the range for a {activation} output")
    for label in getattr(rule, "classes", None) or ():
        if not 0 <= label < classes:
            raise ValueError(f"class {label} in {rule!r} is outside 0…{classes - 1}, the network's classes")
    return None


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


def _table(thresholds: Tensor, classes: tuple[int, ...] | None, count: int) -> Tensor:
    """[steps, classes]: θ by step where a class may fire, ∞ where it may not."""
    table = torch.full((len(thresholds), count), math.inf, dtype=torch.float64)
    columns = slice(None) if classes is None else list(classes)
    table[:, columns] = thresholds[:, None]
    return table
