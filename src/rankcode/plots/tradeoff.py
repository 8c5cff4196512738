"""Accuracy against steps read, a curve for each network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rankcode.metrics import Curve
from rankcode.plots.style import COLOURS, DARK, legend_below, plain

MIN_RANGE = 5  # smallest range of the accuracy axis, in %: differences of a few hundredths must not fill it
# Thresholds that get a label, the most useful first; if none of these is on the curve, all thresholds do.
LABELLED = (0.95, 0.99, 0.9, 0.8, 0.999, 0.7, 0.6, 0.5)
# Places of a label, in points from its dot; the nearest first.
OFFSETS = ((0, 8), (0, -8), (10, 7), (-10, 7), (10, -7), (-10, -7), (17, 0), (-17, 0), (20, 12), (20, -12), (-20, 12))


def plot_tradeoff(
    curves: Mapping[str, Curve],
    limits: Mapping[str, tuple[Any, Any]] | None = None,
    title: str = "Accuracy against steps read",
) -> Figure:
    """Accuracy against mean steps for each network, θ beside some of the dots, and theoretical limits: name ->
    (accuracy, steps)."""
    limits = limits or {}
    figure = Figure(figsize=(7.5, 5.2), layout="constrained")
    axes = figure.subplots()
    for (name, (accuracy, steps)), style in zip(limits.items(), ("-", "--", ":"), strict=False):
        marker = "*" if len(steps) == 1 else ""  # a limit that is one point has no line
        axes.plot(steps, 100 * torch.as_tensor(accuracy), style, color=DARK, lw=1.2, marker=marker, label=name)
    for (name, curve), colour in zip(curves.items(), COLOURS * 9, strict=False):
        accuracy = [100 * value for value in curve.accuracy]
        axes.plot(curve.mean_steps, accuracy, "o-", color=colour, ms=4, lw=1.4, label=name)
    axes.set(xlabel="mean steps read", ylabel="accuracy (%)")
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, high - MIN_RANGE), high)
    axes.set_title(title, loc="left", parse_math=False)
    handles = axes.get_lines()
    names = [str(name) for name in (*limits, *curves)]
    legend_below(figure, handles, names)
    plain(axes)
    _label_thresholds(figure, axes, list(curves.values()))
    return figure


def _label_thresholds(figure: Figure, axes: Axes, curves: list[Curve]) -> None:
    """Write θ beside dots, where the label covers no dot, no line and no other label."""
    figure.draw_without_rendering()  # places everything
    lines = [axes.transData.transform(np.asarray(line.get_xydata())) for line in axes.get_lines()]
    covered = np.concatenate(lines + [_between(line) for line in lines])
    frame, placed = axes.get_window_extent(), []
    for curve, colour, dots in zip(curves, COLOURS * 9, lines[-len(curves) :], strict=False):
        points = {t: place for place, t in enumerate(curve.thresholds) if frame.contains(*dots[place])}
        for threshold in [t for t in LABELLED if t in points] or points:
            at = curve.mean_steps[points[threshold]], 100 * curve.accuracy[points[threshold]]
            style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 7.5, "color": colour}
            label = axes.annotate(f"θ={threshold:g}", at, (0, 0), textcoords="offset points", **style)
            box = label.get_window_extent().padded(1.5)
            for offset in OFFSETS:
                moved = box.translated(*(np.array(offset) * figure.dpi / 72))
                inside = frame.contains(*moved.min) and frame.contains(*moved.max)
                if inside and not moved.count_contains(covered) and not any(moved.overlaps(each) for each in placed):
                    placed.append(moved)
                    label.set_position(offset)
                    break
            else:
                label.remove()


def _between(points: np.ndarray) -> np.ndarray:
    """Points every few pixels on the lines between points."""
    shares = np.linspace(0, 1, 40)[:, None, None]
    return (points[:-1] + shares * (points[1:] - points[:-1])).reshape(-1, 2)
