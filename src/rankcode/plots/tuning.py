"""The expected results of a rule fitted to a wish, and how well its probabilities are calibrated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rankcode.plots.style import BLUE, COLOURS, DARK, GREY, RED, legend_below, plain
from rankcode.stopping import Tuning
from rankcode.stopping.calibration import Reliability
from rankcode.stopping.tuning import Point


def plot_tuning(tuning: Tuning, others: Mapping[str, Tuning] | None = None) -> Figure:
    """Accuracy against mean steps of the family of rules, the rule that was chosen with the 95 % interval of its
    accuracy, and the wish. `others` are rules to compare with, such as {"one threshold": tune(…, kind="threshold")}."""
    figure = Figure(figsize=(7.5, 5.2), layout="constrained")
    axes = figure.subplots()
    if len(tuning.curve) > 1:
        _draw_curve(axes, tuning.curve, BLUE, f"{tuning.kind} rules")
    for (name, other), colour in zip((others or {}).items(), COLOURS[2:], strict=False):
        _draw_curve(axes, other.curve, colour, name)
    steps, accuracy = tuning.expected.mean_steps, 100 * tuning.expected.accuracy
    low, high = (100 * each for each in tuning.interval)
    error = [[max(accuracy - low, 0)], [max(high - accuracy, 0)]]
    style = {"color": RED, "capsize": 4, "ms": 8, "zorder": 5}
    axes.errorbar([steps], [accuracy], yerr=error, fmt="o", label="chosen, with its 95 % interval", **style)
    _draw_wish(axes, tuning)
    axes.set(xlabel="mean steps read", ylabel="accuracy (%)")
    axes.set_title(f"wish: {tuning.wish}\n{tuning}", loc="left", fontsize=10)
    plain(axes)
    legend_below(figure, *axes.get_legend_handles_labels())
    return figure


def _draw_curve(axes: Axes, curve: Sequence[Point], colour: str, label: str) -> None:
    points = sorted({(point.mean_steps, 100 * point.accuracy) for point in curve})
    axes.plot(*zip(*points, strict=True), ".-", color=colour, ms=6, lw=1.4, label=label)


def _draw_wish(axes: Axes, tuning: Tuning) -> None:
    """A line at the accuracy or the steps that were asked for; for a cost, a line through all points of equal cost."""
    wish, chosen = tuning.wish, tuning.expected
    style = {"color": DARK, "lw": 1.1, "ls": "--", "label": f"wish: {wish}"}
    if wish.accuracy is not None:
        axes.axhline(100 * wish.accuracy, **style)
    elif wish.mean_steps is not None:
        axes.axvline(wish.mean_steps, **style)
    elif wish.false_alarms_per_hour is None:
        price = wish.cost_per_step
        if price is None:
            price = (wish.alpha or 0.0) * chosen.earliness / chosen.mean_steps
        first, last = axes.get_xlim()
        low, high = axes.get_ylim()
        steps = np.array([first, last])
        style["label"] = f"the same cost ({wish}): better above"
        axes.plot(steps, 100 * (chosen.accuracy + price * (steps - chosen.mean_steps)), **style)
        axes.set(xlim=(first, last), ylim=(low, high))


def plot_reliability(parts: Mapping[str, Reliability]) -> Figure:
    """How often answers are right against how sure they are, such as before and after calibration. A dot is a bin of
    answers; on the diagonal, probabilities are calibrated."""
    figure = Figure(figsize=(5.6, 5.6), layout="constrained")
    axes = figure.subplots()
    axes.plot([0, 100], [0, 100], color=GREY, lw=1, ls="--", label="right as often as it says")
    for (name, part), colour in zip(parts.items(), (COLOURS[2], BLUE, *COLOURS[3:]), strict=False):
        label = f"{name}: {100 * part.error:.1f} points off on average"
        axes.plot(100 * part.confidence, 100 * part.accuracy, "o-", color=colour, ms=5, lw=1.4, label=label)
    lowest = min(float(min(part.confidence.min(), part.accuracy.min())) for part in parts.values())
    limits = 100 * lowest - 5, 102
    axes.set(xlabel="largest probability (%)", ylabel="right answers (%)", xlim=limits, ylim=limits, aspect="equal")
    plain(axes)
    legend_below(figure, *axes.get_legend_handles_labels())
    return figure
