"""Fig. 7 and appendix C: does the θ used in training matter? On the 2-sequence problem, a network trained with each θ
is tested at all of them.

Networks trained with different θ answer at different times, so they are also compared at equal mean steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from rankcode.experiments.figures.fig2 import THRESHOLDS as CURVE_THRESHOLDS
from rankcode.experiments.reproduction import Number, Reproduction, Result
from rankcode.experiments.trainings import two_sequence as trainings
from rankcode.metrics import Curve
from rankcode.plots.style import COLOURS, plain

TITLE = "Fig. 7: the threshold during training"
THRESHOLDS = trainings.THRESHOLDS
THETA = 0.95  # of the paper's other figures
HIGH = 0.95  # the paper finds little difference as long as θ is reasonably high
ALL, SOME = "all five networks", f"those trained with θ of at least {HIGH:g}"
SEEDS = f"seeds of the network trained with θ = {THETA:g}"


def reproduce(place: Reproduction) -> Result:
    settings = {theta: trainings.settings(place)[f"rank-coded-{theta:g}"] for theta in THRESHOLDS}
    runs = {theta: place.trained(setting) for theta, setting in settings.items()}
    seeds = [place.trained(settings[THETA], seed) for seed in place.seeds()]
    curves = {theta: trained.curve(CURVE_THRESHOLDS, model="last") for theta, trained in runs.items()}
    apart = {ALL: difference(list(curves.values()))}
    apart[SOME] = difference([curve for theta, curve in curves.items() if theta >= HIGH])
    if len(seeds) > 1:  # differences due to chance alone
        apart[SEEDS] = difference([trained.curve(CURVE_THRESHOLDS, model="last") for trained in seeds])
    read = {theta: trained.share_read for theta, trained in runs.items()}
    drawn = {
        "tested at": list(THRESHOLDS),
        "accuracy": {f"trained with {theta:g}": at(curve, curve.accuracy) for theta, curve in curves.items()},
        "mean steps": {f"trained with {theta:g}": at(curve, curve.mean_steps) for theta, curve in curves.items()},
        "trade-off": {f"trained with {theta:g}": curve.as_dict() for theta, curve in curves.items()},
        "share of steps read in training": {f"trained with {theta:g}": share for theta, share in read.items()},
        "accuracy spread at equal mean steps": apart,
    }
    return Result(_draw(curves), _numbers(curves, apart, read), drawn, _text(curves, apart), runs.values())


def at(curve: Curve, values: Sequence[float], thresholds: Sequence[float] = THRESHOLDS) -> list[float]:
    """The values of a curve at some of its thresholds."""
    return [values[curve.thresholds.index(theta)] for theta in thresholds]


def difference(curves: Sequence[Curve]) -> dict[str, float] | None:
    """The difference in accuracy between the highest and the lowest curve at equal mean steps: its mean and maximum
    over the steps that all curves reach with the tested θ. None if there are no such steps."""
    reached = [at(curve, curve.mean_steps) for curve in curves]
    start, end = max(steps[0] for steps in reached), min(steps[-1] for steps in reached)
    if not start < end:
        return None
    steps = np.linspace(start, end, 101)
    between = np.stack([np.interp(steps, curve.mean_steps, curve.accuracy) for curve in curves])
    apart = between.max(0) - between.min(0)
    return {"mean": float(apart.mean()), "largest": float(apart.max()), "from": float(start), "to": float(end)}


def _numbers(curves: dict[float, Curve], apart: dict[str, dict | None], read: dict[float, float]) -> list[Number]:
    found = []
    for theta, curve in curves.items():
        what, paper = f"trained with θ = {theta:g}, tested at {THETA:g}", 95.45 if theta == THETA else None
        note = f"{100 * read[theta]:.0f} % of the steps read in training"
        found.append(Number(f"{what}: accuracy", paper, 100 * at(curve, curve.accuracy, [THETA])[0]))
        steps = at(curve, curve.mean_steps, [THETA])[0]
        found.append(Number(f"{what}: mean steps read", None, steps, "steps", note=note))
    for name, gap in apart.items():
        what, paper = f"accuracy spread at equal mean steps, {name}", None if name == SEEDS else "minimal"
        if gap is None:
            found.append(Number(what, paper, None, "points"))
        else:
            note = f"at most {100 * gap['largest']:.2f}; compared from {gap['from']:.1f} to {gap['to']:.1f} steps"
            found.append(Number(what, paper, 100 * gap["mean"], "points", note=note))
    return found


def _text(curves: dict[float, Curve], apart: dict[str, dict | None]) -> str:
    accuracy = [100 * at(curve, curve.accuracy, [THETA])[0] for curve in curves.values()]
    steps = [at(curve, curve.mean_steps, [THETA])[0] for curve in curves.values()]
    text = (
        f"Tested at θ = {THETA:g}, the five networks are right in {min(accuracy):.2f} to {max(accuracy):.2f} % of "
        f"the sequences, after {min(steps):.1f} to {max(steps):.1f} steps. They are compared at equal mean steps, by "
        "interpolation."
    )
    for name, found in apart.items():
        if found is None:
            text += f" {name.capitalize()}: no mean steps are reached by all."
        else:
            text += (
                f" {name.capitalize()}: {100 * found['mean']:.2f} points of accuracy between the best and the worst on "
                f"average, {100 * found['largest']:.2f} at most."
            )
    return text


def _draw(curves: dict[float, Curve]) -> Figure:
    figure = Figure(figsize=(12, 4.8), layout="constrained")
    left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=(1.35, 1))[0]
    axes = left.subplots()
    dot = {"marker": "o", "ls": "", "ms": 5.5, "mec": "white", "mew": 0.6}
    for (theta, curve), colour in zip(curves.items(), COLOURS, strict=False):
        percent, tested = ([100 * each for each in values] for values in (curve.accuracy, at(curve, curve.accuracy)))
        axes.plot(curve.mean_steps, percent, color=colour, lw=1.3, alpha=0.8)
        axes.plot(at(curve, curve.mean_steps), tested, color=colour, label=f"{theta:g}", **dot)
    steps = np.array([at(curve, curve.mean_steps) for curve in curves.values()])
    accuracy = 100 * np.array([at(curve, curve.accuracy) for curve in curves.values()])
    axes.set(xlabel="mean steps read", ylabel="accuracy (%)", title="trade-off; dots: θ in testing")
    axes.set(xlim=(steps.min() - 1, steps.max() + 1), ylim=(accuracy.min() - 0.5, accuracy.max() + 0.5))
    axes.legend(title="θ in training", frameon=False, loc="lower right")
    plain(axes)
    upper, lower = right.subplots(2, 1, sharex=True)
    _table(upper, "accuracy (%)", [[100 * each for each in at(curve, curve.accuracy)] for curve in curves.values()])
    _table(lower, "mean steps read", [at(curve, curve.mean_steps) for curve in curves.values()])
    lower.set_xlabel("θ in testing")
    return figure


def _table(axes, title: str, values: list[list[float]]) -> None:
    names = [f"{theta:g}" for theta in THRESHOLDS]
    axes.imshow(values, cmap="Blues", aspect="auto", vmax=2 * np.max(values) - np.min(values))
    for row, line in enumerate(values):
        for column, value in enumerate(line):
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=9)
    axes.set_xticks(range(len(names)), names)
    axes.set_yticks(range(len(names)), names)
    axes.set(title=title, ylabel="θ in training")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
