"""Numbers that several figures report: accuracy and steps at the first spike, and the cost of training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rankcode.experiments.reproduction import Number, Trained, over_seeds
from rankcode.rules import Rule

Reports = Sequence[Mapping[str, Any]]  # one for each seed


def mean(
    what: str, values: Iterable[float], unit: str = "%", paper: float | str | None = None, note: str = ""
) -> Number:
    """Mean and standard deviation over seeds."""
    ours, spread = over_seeds(values)
    return Number(what, paper, ours, unit, spread, note)


def accuracy(what: str, found: Reports, paper: float | str | None = None, note: str = "") -> Number:
    return mean(f"{what}: accuracy", (100 * report["accuracy"] for report in found), "%", paper, note)


def mean_steps(what: str, found: Reports, note: str = "rows that never fire count in full") -> Number:
    return mean(f"{what}: mean steps read", (report["mean_steps"] for report in found), "steps", None, note)


def reports(trained: Iterable[Trained], rule: Rule, model: str = "last") -> list[dict[str, Any]]:
    """The report of each seed on test data."""
    return [each.report(rule, model=model) for each in trained]


def answers(what: str, trained: Iterable[Trained], rule: Rule) -> list[Number]:
    """Accuracy and steps of the last models."""
    found = reports(trained, rule)
    return [accuracy(what, found), mean_steps(what, found)]


def cost(runs: Mapping[str, Sequence[Trained]]) -> list[Number]:
    """The share of steps that each run read in training, and its training time."""
    numbers = []
    for name, trained in runs.items():
        numbers.append(share_read(name, trained))
        seconds = (each.seconds for each in trained)
        numbers.append(mean(f"{name}: training time", seconds, "s", note="validation included"))
    return numbers


def share_read(what: str, trained: Iterable[Trained], note: str = "") -> Number:
    """Steps read in training ÷ steps in the training data."""
    return mean(f"{what}: share of steps read in training", (100 * each.share_read for each in trained), note=note)


def cost_curves(runs: Mapping[str, Sequence[Trained]]) -> dict[str, Any]:
    """The same for each seed."""
    return {
        "share of steps read in training": {name: [each.share_read for each in runs[name]] for name in runs},
        "seconds of training": {name: [each.seconds for each in runs[name]] for name in runs},
    }
