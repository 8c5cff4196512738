"""The composite front of a sweep, over the curves of all its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from rankcode.plots.style import COLOURS, DARK, legend_below, plain
from rankcode.plots.tradeoff import MIN_RANGE

MAX_LABELS = 8  # points of the front that are labelled with their run and threshold


def plot_front(curves: Mapping[int, Mapping[str, Any]], front: Sequence[Mapping[str, Any]], title: str) -> Figure:
    """Accuracy against mean steps of every run, by its number, and of the points of the front."""
    figure = Figure(figsize=(7.5, 5.2), layout="constrained")
    axes = figure.subplots()
    handles = []
    for curve in curves.values():
        accuracy = [100 * value for value in curve["accuracy"]]
        handles = axes.plot(curve["mean_steps"], accuracy, "-", color=DARK, alpha=0.25, lw=0.8)
    steps, accuracy = ([point["test"][name] for point in front] for name in ("mean_steps", "accuracy"))
    percent = [100 * value for value in accuracy]
    handles += axes.plot(steps, percent, "o-", color=COLOURS[0], ms=4, lw=1.8)
    figure.draw_without_rendering()  # places everything
    placed = []
    for place in range(0, len(front), -(-len(front) // MAX_LABELS) or 1):
        label = f"run {front[place]['run']}, θ={front[place]['threshold']:g}"
        at = steps[place], percent[place]
        text = axes.annotate(label, at, (5, -9), textcoords="offset points", fontsize=7, color=COLOURS[0])
        box = text.get_window_extent().padded(2)
        if any(box.overlaps(other) for other in placed):
            text.remove()
        else:
            placed.append(box)
    axes.set(xlabel="mean steps read", ylabel="accuracy (%)")
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, high - MIN_RANGE), high)
    axes.set_title(title, loc="left", parse_math=False)
    legend_below(figure, handles, ["each run", "composite, chosen on validation data"])
    plain(axes)
    return figure
