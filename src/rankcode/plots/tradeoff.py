"""Accuracy against steps read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from matplotlib.figure import Figure

from rankcode.metrics import Curve
from rankcode.plots.style import COLOURS, DARK, GREY, plain


def plot_tradeoff(curves: Mapping[str, Curve], limits: Mapping[str, tuple[Any, Any]] | None = None) -> Figure:
    """Accuracy against mean steps, a curve for each network, and the theoretical limits: name -> (accuracy,
    steps). The picture begins at the lowest accuracy that a network has with θ ≥ 0.8."""
    figure = Figure(figsize=(7.5, 4.6), layout="constrained")
    axes = figure.subplots()
    for (name, (accuracy, steps)), style in zip((limits or {}).items(), ("-", "--", ":"), strict=False):
        axes.plot(steps, 100 * torch.as_tensor(accuracy), style, color=DARK, lw=1.2, marker=_dot(steps), label=name)
    for (name, curve), colour in zip(curves.items(), COLOURS * 9, strict=False):
        accuracy = [100 * value for value in curve.accuracy]
        axes.plot(curve.mean_steps, accuracy, "o-", color=colour, ms=4, lw=1.4, label=name)
    telling = [
        a for curve in curves.values() for t, a in zip(curve.thresholds, curve.accuracy, strict=True) if t >= 0.8
    ]
    lowest, highest = 100 * min(telling, default=0.0), 100 * max(max(curve.accuracy) for curve in curves.values())
    highest = max([highest, *(100 * float(max(accuracy)) for accuracy, _ in (limits or {}).values())])
    lowest = min(lowest, highest - 5)  # a few hundredths of a point are not to fill the picture
    margin = 0.05 * (highest - lowest) + 0.1
    axes.set(xlabel="mean steps read", ylabel="accuracy (%)", ylim=(lowest - margin, highest + margin))
    below = sum(100 * a < lowest - margin for curve in curves.values() for a in curve.accuracy)
    if below:
        axes.set_title(f"further down: {below} with θ < 0.8", loc="left", fontsize=8, color=GREY)
    axes.legend(frameon=False, loc="lower right")
    plain(axes)
    return figure


def _dot(steps: Sequence[float]) -> str:
    """A limit that is one point is drawn as a star, since it has no line."""
    return "*" if len(steps) == 1 else ""
