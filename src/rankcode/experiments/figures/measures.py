"""Numbers and lines that the figures on digits share: accuracy and time at the first spike, and what training cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rankcode.experiments.reproduction import Number, Trained, over_seeds
from rankcode.plots.style import COLOURS, plain


def accuracy(what: str, found: Sequence[Mapping[str, Any]], paper: float | str | None = None, note: str = "") -> Number:
    mean, spread = over_seeds([100 * report["accuracy"] for report in found])
    return Number(what, paper, mean, "%", spread, note)


def time(what: str, found: Sequence[Mapping[str, Any]]) -> Number:
    mean, spread = over_seeds([report["mean_steps"] for report in found])
    return Number(f"{what}: mean steps read", None, mean, "steps", spread, "silent digits in full")


def cost(runs: Mapping[str, Sequence[Trained]]) -> list[Number]:
    """What each training cost."""
    numbers = []
    for name, trained in runs.items():
        share, spread = over_seeds([100 * each.share_read for each in trained])
        numbers.append(Number(f"{name}: steps read in training ÷ steps there were", None, share, "%", spread))
        seconds, spread = over_seeds([each.seconds for each in trained])
        numbers.append(Number(f"{name}: time of training", None, seconds, "s", spread, "validation included"))
    return numbers


def cost_curves(runs: Mapping[str, Sequence[Trained]]) -> dict[str, Any]:
    """The same for each seed."""
    return {
        "share of steps read in training": {name: [each.share_read for each in runs[name]] for name in runs},
        "seconds of training": {name: [each.seconds for each in runs[name]] for name in runs},
    }


def through_training(trained: Trained) -> dict[str, list[float]]:
    """First-spike inference on the validation digits."""
    size, records = trained.setting.task.train.size, trained.records
    return {
        "epochs": [record["examples"] / size for record in records],
        "accuracy": [record["first_spike"]["accuracy"] for record in records],
        "mean_steps": [record["first_spike"]["mean_steps"] for record in records],
    }


def draw_through_training(time_axes: Any, accuracy_axes: Any, histories: Mapping[str, Mapping[str, Any]]) -> None:
    """Mean steps in one panel, accuracy in the other, a line for each training."""
    for (name, history), colour in zip(histories.items(), COLOURS, strict=False):
        line = {"color": colour, "lw": 1.6, "marker": "." if len(history["epochs"]) < 25 else "", "label": name}
        time_axes.plot(history["epochs"], history["mean_steps"], **line)
        accuracy_axes.plot(history["epochs"], [100 * each for each in history["accuracy"]], **line)
    time_axes.set(xlabel="epochs", ylabel="mean steps read", ylim=(0, 10.4), title="first-spike time")
    accuracy_axes.set(xlabel="epochs", ylabel="accuracy (%)", title="first-spike accuracy")
    accuracy_axes.set_ylim(*accuracy_range([history["accuracy"] for history in histories.values()]))
    for axes in (time_axes, accuracy_axes):
        axes.set_xlim(left=0)
        plain(axes)


def accuracy_range(columns: Sequence[Sequence[float]]) -> tuple[float, float]:
    """From somewhat below the accuracy of the worse trainings, once they are past their beginning, to the best."""
    settled = [min(column[len(column) // 4 :]) for column in columns]
    highest = 100 * max(max(column) for column in columns)
    lowest = max(0.0, min(100 * min(settled), highest - 2))
    margin = 0.08 * (highest - lowest)
    return max(0.0, lowest - margin), min(100.4, highest + margin)
