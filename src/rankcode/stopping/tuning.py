"""From a wish to a rule: which rule answers as early as possible, or as well as possible, within what was asked for?

Rules of a kind form a family, from the earliest to the latest: thresholds, or rules fitted to a cost of waiting. Each
is fitted on four fifths of the held-out rows and tried on the last, five times, so accuracy and steps are those of rows
that the rule was not fitted to. The member that meets the wish best is fitted again to all rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from rankcode.data.sources import BadData
from rankcode.metrics import cost as cost_at
from rankcode.network import Network
from rankcode.rules import Rule, Threshold
from rankcode.stopping.backward_induction import fit_optimal, fit_step_thresholds, thresholds_for
from rankcode.stopping.calibration import Calibration, calibrate
from rankcode.stopping.second_axis import traces_with_axis
from rankcode.stopping.traces import Traces

Kind = Literal["auto", "threshold", "step-thresholds", "optimal"]
DESCRIPTIONS = {
    "threshold": "one threshold",
    "step-thresholds": "a threshold for each step",
    "optimal": "an optimal stopping rule",
}
FOLDS = 5
COSTS = torch.logspace(1.5, -2.5, 25, dtype=torch.float64).tolist()  # of reading a whole row, where an error costs 1
FINE_ROWS = 5000  # with as many, costs between the best one and its neighbours are tried as well
FINER = 5  # steps from one of the costs to the next, then
MIN_ROWS = 4
DEFAULT_ALPHA = 0.2


@dataclass(frozen=True)
class Wish:
    """What a rule is asked for, one of the quantities of `tune`."""

    accuracy: float | None = None
    """Answer as early as possible with this accuracy, such as 0.95."""
    mean_steps: float | None = None
    """Answer as accurately as possible within this many steps on average."""
    cost_per_step: float | None = None
    """Cost of reading one step; a wrong answer costs 1."""
    alpha: float | None = None
    """Cost of reading a whole row; a wrong answer costs 1. Default: 0.2, unless another wish is given."""
    false_alarms_per_hour: float | None = None
    """Maximum number of rows that fire wrongly, per hour of data."""
    seconds_per_step: float | None = None
    """Duration of a step in seconds, for false alarms. Default: that of the recordings, if the data is sound."""

    def __post_init__(self):
        given = self.given
        given.pop("seconds_per_step", None)
        if len(given) > 1:
            raise ValueError(f"a wish is one quantity, not {len(given)}: {', '.join(f'{name}=…' for name in given)}")
        for name, value in given.items():
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < math.inf:
                raise ValueError(f"{name} must be a number of at least 0, not {value!r}")
        if self.accuracy is not None and not 0 < self.accuracy <= 1:
            raise ValueError(f"accuracy is a share between 0 and 1, such as 0.95, not {self.accuracy!r}")
        if self.mean_steps is not None and self.mean_steps < 1:
            raise ValueError(f"mean_steps must be at least 1, the first step, not {self.mean_steps!r}")
        if self.false_alarms_per_hour is not None and not (self.seconds_per_step or 0) > 0:
            raise ValueError("false_alarms_per_hour needs seconds_per_step, the duration of one step")
        if not given:
            object.__setattr__(self, "alpha", DEFAULT_ALPHA)

    @property
    def given(self) -> dict[str, float]:
        """What was given, by name; the quantity comes first."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def __str__(self) -> str:
        name, value = next(iter(self.given.items()))
        return f"{name} {value:g}"


class Point(NamedTuple):
    """Results of a rule on held-out rows that it was not fitted to."""

    accuracy: float
    mean_steps: float
    earliness: float
    fired: float
    false_alarms: float  # share of rows that fired with a wrong label


@dataclass(frozen=True)
class Tuning:
    """A fitted rule, and what it promises on new data."""

    rule: Rule = field(repr=False)
    kind: str
    wish: Wish
    expected: Point
    interval: tuple[float, float]  # of the accuracy, 95 %
    rows: int
    reason: str  # why this kind of rule
    curve: tuple[Point, ...] = field(repr=False)  # of the family of rules, from the earliest to the latest

    @property
    def worth(self) -> float:
        """How well the wish is met; larger is better."""
        return _worth(self.wish, self.expected)

    def __str__(self) -> str:
        low, high = (100 * each for each in self.interval)
        return (
            f"accuracy {100 * self.expected.accuracy:.1f} % ({low:.1f} to {high:.1f} %, from {self.rows} rows) after "
            f"{self.expected.mean_steps:.1f} steps, {100 * self.expected.earliness:.0f} % of the length"
        )


def fit_rule(network: Network, data: Any, **wish: Any) -> Rule:
    """The rule that `tune` finds for a trained network. Use it as any other: `network.rule = rule` keeps and saves it.

    rule = rc.fit_rule(network, data, accuracy=0.95)
    """
    return tune(network, data, **wish).rule


def tune(
    network: Network,
    data: Any,
    *,
    accuracy: float | None = None,
    mean_steps: float | None = None,
    cost_per_step: float | None = None,
    alpha: float | None = None,
    false_alarms_per_hour: float | None = None,
    seconds_per_step: float | None = None,
    kind: Kind = "auto",
    split: str = "validation",
    progress: bool = False,
) -> Tuning:
    """Find the rule for a trained network that meets a wish on held-out data, and what it promises on new data.

    Give one of these; without any, `alpha` is 0.2:

    - `accuracy`: share of right answers, as early as possible.
    - `mean_steps`: steps read on average, as accurately as possible.
    - `cost_per_step`: what reading one step costs, where a wrong answer costs 1.
    - `alpha`: what reading a whole row costs, where a wrong answer costs 1.
    - `false_alarms_per_hour`: rows that fire wrongly per hour of data; needs `seconds_per_step`.

    `kind`: "threshold" is one θ, "step-thresholds" one for each step, and "optimal" backward induction on calibrated
    probabilities; by default, θ unless the optimal rule is better. From 5,000 rows on, an optimal rule reads the cell's
    features as well, if that is better. `data` is a task, of which `split` is taken, or (inputs, labels[, lengths]).
    The data should not have been trained on.
    """
    wish = Wish(accuracy, mean_steps, cost_per_step, alpha, false_alarms_per_hour, seconds_per_step)
    return tune_on(traces_with_axis(network, data, split, progress), wish, kind, network.activation != "membrane")


def tune_on(traces: Traces, wish: Wish, kind: Kind = "auto", temperatures: bool = True) -> Tuning:
    """`tune` with traces. `temperatures`: whether an optimal rule fits temperatures first."""
    if len(traces.labels) < MIN_ROWS:
        raise BadData(f"a rule needs at least {MIN_ROWS} held-out rows, not {len(traces.labels)}")
    kinds = ("threshold", "optimal") if kind == "auto" else (kind,)
    if not set(kinds) <= set(DESCRIPTIONS):
        raise ValueError(f"kind must be auto, {', '.join(DESCRIPTIONS)}, not {kind!r}")
    found = [_tuned(replace(traces, axis=None, axis_weights=None), wish, each, temperatures) for each in kinds]
    if traces.axis is not None and kinds[-1] == "optimal":
        with suppress(ValueError):  # the wish cannot be met with the second axis
            with_axis = _tuned(traces, wish, "optimal", temperatures)
            if with_axis.worth > found[-1].worth:
                found[-1] = replace(with_axis, reason=f"{with_axis.reason}, which reads the cell's features too")
    first, last = found[0], found[-1]
    if len(found) == 1:
        return first
    gain = last.worth - first.worth
    unit = "steps" if wish.accuracy is not None else "points" if wish.mean_steps is not None else "points of cost"
    shown = f"{gain if unit == 'steps' else 100 * gain:.2f} {unit}"
    if gain <= 0:
        return replace(first, reason="one threshold: an optimal stopping rule is no better on this data")
    reads = " that reads the cell's features too" if getattr(last.rule, "reads_features", False) else ""
    return replace(last, reason=f"an optimal stopping rule{reads}: it gains {shown} over one threshold")


def _worth(wish: Wish, point: Point) -> float:
    """How good a rule that meets the wish is; larger is better."""
    if wish.mean_steps is not None:
        return point.accuracy
    if wish.accuracy is not None or wish.false_alarms_per_hour is not None:
        return -point.mean_steps
    if wish.alpha is not None:
        return -cost_at(point.accuracy, point.earliness, wish.alpha)
    return -(1 - point.accuracy + (wish.cost_per_step or 0.0) * point.mean_steps)


def _tuned(traces: Traces, wish: Wish, kind: str, temperatures: bool) -> Tuning:
    family, relative = _family(traces, wish, kind)
    curve = _curve(traces, kind, family, relative, temperatures)
    chosen = _choose(traces, wish, curve)
    if kind != "threshold" and len(family) > 1 and len(traces.labels) >= FINE_ROWS:
        near = pairwise(math.log(each) for each in family[max(chosen - 1, 0) : chosen + 2])
        finer = [math.exp(low + (high - low) * part / FINER) for low, high in near for part in range(1, FINER)]
        found = zip([*family, *finer], [*curve, *_curve(traces, kind, finer, relative, temperatures)], strict=True)
        family, curve = zip(*sorted(found, key=lambda each: -each[0]), strict=True)
        chosen = _choose(traces, wish, curve)
    rule: Any = _fitted(kind, family[chosen], relative, traces, _calibration(traces, kind, temperatures))
    if traces.axis_weights is not None and kind == "optimal":
        rule = replace(rule, axis=tuple(tuple(float(f"{each:.6g}") for each in row) for row in traces.axis_weights))
    rows = len(traces.labels)
    interval = wilson(curve[chosen].accuracy, float(traces.weights.sum() ** 2 / traces.weights.square().sum()))
    return Tuning(rule, kind, wish, curve[chosen], interval, rows, DESCRIPTIONS[kind], curve)


def _family(traces: Traces, wish: Wish, kind: str) -> tuple[Sequence[float], bool]:
    """Thresholds, or costs of a step, from the rule that answers first to the one that answers last; a single cost if
    the wish is one. Whether a cost is that of a whole row."""
    if kind == "threshold":
        return thresholds_for(traces).tolist(), False
    if wish.alpha is not None:
        return [wish.alpha], True
    length = float(traces.lengths.double().mean())
    return [each / length for each in COSTS] if wish.cost_per_step is None else [wish.cost_per_step], False


def _curve(traces: Traces, kind: str, family: Sequence[float], relative: bool, temperatures: bool) -> tuple[Point, ...]:
    right, steps, fired = _cross_fitted(traces, kind, family, relative, temperatures)
    total = traces.weights.sum()
    return tuple(
        Point(*(float(traces.weights @ column / total) for column in columns))
        for columns in zip(right, steps, steps / traces.lengths, fired, fired * (1 - right), strict=True)
    )


def _fitted(kind: str, price: float, relative: bool, traces: Traces, calibration: Calibration | None) -> Rule:
    """A member of a family, fitted to these rows. `price`: its threshold, or its cost, as `_family` has it."""
    if kind == "threshold":
        return Threshold(price)
    reached = traces.reached.double()
    waiting = price * (reached / traces.lengths[:, None] if relative else reached)
    if kind == "step-thresholds":
        return fit_step_thresholds(traces, waiting)
    return fit_optimal(traces, waiting, calibration)


def _calibration(traces: Traces, kind: str, temperatures: bool) -> Calibration | None:
    return calibrate(traces, temperatures) if kind == "optimal" else None


def _cross_fitted(
    traces: Traces, kind: str, family: Sequence[float], relative: bool, temperatures: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """(right, steps, fired) of every row with every member of a family, each [members, rows], by rules that were not
    fitted to the row. A threshold is not fitted to any row: one fold is enough."""
    rows, folds = len(traces.labels), 1 if kind == "threshold" else FOLDS
    fold = torch.empty(rows, dtype=torch.long)
    fold[traces.labels.argsort(stable=True)] = torch.arange(rows) % folds
    right, steps, fired = torch.zeros(3, len(family), rows, dtype=torch.float64)
    for number in range(min(folds, rows)):
        own = (fold == number).nonzero().squeeze(1)
        others, tried = traces.rows((fold != number).nonzero().squeeze(1)), traces.rows(own)
        calibration = _calibration(others, kind, temperatures)
        for member, price in enumerate(family):
            label, read, spike = tried.decide(_fitted(kind, price, relative, others, calibration))
            right[member, own] = (label == tried.labels).double()
            steps[member, own] = read.double()
            fired[member, own] = spike.double()
    return right, steps, fired


def _choose(traces: Traces, wish: Wish, curve: tuple[Point, ...]) -> int:
    """The member of a family that meets the wish best; a ValueError says what can be reached if none does."""
    members = range(len(curve))
    if wish.accuracy is not None:
        fitting = [each for each in members if curve[each].accuracy >= wish.accuracy]
        if not fitting:
            best = max(members, key=lambda each: (curve[each].accuracy, -curve[each].mean_steps))
            raise ValueError(
                f"an accuracy of {100 * wish.accuracy:g} % cannot be reached: the highest is "
                f"{100 * curve[best].accuracy:.1f} %, after {curve[best].mean_steps:.1f} steps on average"
            )
        return min(fitting, key=lambda each: curve[each].mean_steps)
    if wish.mean_steps is not None:
        fitting = [each for each in members if curve[each].mean_steps <= wish.mean_steps]
        if not fitting:
            least = min(point.mean_steps for point in curve)
            raise ValueError(f"{wish.mean_steps:g} steps on average cannot be reached: the least is {least:.2f}")
        return max(fitting, key=lambda each: curve[each].accuracy)
    if wish.false_alarms_per_hour is not None:
        hours = float(traces.lengths.sum()) * (wish.seconds_per_step or 0.0) / 3600
        rates = [point.false_alarms * len(traces.labels) / hours for point in curve]
        fitting = [each for each in members if rates[each] <= wish.false_alarms_per_hour]
        if not fitting:
            raise ValueError(
                f"{wish.false_alarms_per_hour:g} false alarms per hour cannot be reached: the least is {min(rates):.3g}"
            )
        return min(fitting, key=lambda each: curve[each].mean_steps)
    return max(members, key=lambda each: _worth(wish, curve[each]))


def wilson(share: float, rows: float, z: float = 1.96) -> tuple[float, float]:
    """Wilson's 95 % interval of a share that was measured on this many rows."""
    centre = (share + z**2 / (2 * rows)) / (1 + z**2 / rows)
    half = z / (1 + z**2 / rows) * math.sqrt(share * (1 - share) / rows + z**2 / (4 * rows**2))
    return max(0.0, centre - half), min(1.0, centre + half)
