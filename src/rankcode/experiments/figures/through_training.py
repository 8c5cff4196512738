"""First-spike accuracy and time on validation digits through training, as JSON and as lines of a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rankcode.experiments.reproduction import Trained
from rankcode.plots.style import COLOURS, plain


def through_training(trained: Trained) -> dict[str, list[float]]:
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
    accuracy_axes.set_ylim(*_accuracy_range([history["accuracy"] for history in histories.values()]))
    for axes in (time_axes, accuracy_axes):
        axes.set_xlim(left=0)
        plain(axes)


def _accuracy_range(columns: Sequence[Sequence[float]]) -> tuple[float, float]:
    """From somewhat below the lowest accuracy after the first quarter of training to the highest accuracy."""
    settled = [min(column[len(column) // 4 :]) for column in columns]
    highest = 100 * max(max(column) for column in columns)
    lowest = max(0.0, min(100 * min(settled), highest - 2))
    margin = 0.08 * (highest - lowest)
    return max(0.0, lowest - margin), min(100.4, highest + margin)
