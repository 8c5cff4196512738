"""Fig. 10: accuracy and time of the spiking networks over thresholds. θ is compared with the output membranes; the
neurons still reset at their own threshold of 0.5. The paper does not list its thresholds; as in the paper, the last
models are evaluated."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from rankcode.experiments.figures import numbers
from rankcode.experiments.reproduction import Number, Reproduction, Result
from rankcode.experiments.trainings import spiking as trainings
from rankcode.experiments.trainings.mnist import at_this_scale
from rankcode.metrics import Curve
from rankcode.plots.style import COLOURS, plain

TITLE = "Fig. 10: rank coding in a spiking network, over thresholds"
THRESHOLDS = (0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)


def reproduce(place: Reproduction) -> Result:
    runs = place.runs(trainings.settings(place))
    curves = {name: trained[0].curve(THRESHOLDS, model="last") for name, trained in runs.items()}
    found = [number for name, curve in curves.items() for number in _numbers(name, curve)] + numbers.cost(runs)
    drawn = {"trade-off": {name: curve.as_dict() for name, curve in curves.items()}, **numbers.cost_curves(runs)}
    return Result(_draw(curves), found, drawn, _text(place, curves), [trained for (trained,) in runs.values()])


def _numbers(name: str, curve: Curve) -> list[Number]:
    trained, best = curve.thresholds.index(trainings.THETA), curve.accuracy.index(max(curve.accuracy))
    found = []
    for label, at in (("θ = 0.5", trained), (f"its best θ of those drawn, {curve.thresholds[best]:g}", best)):
        found.append(Number(f"{name}, {label}: accuracy", None, 100 * curve.accuracy[at]))
        found.append(Number(f"{name}, {label}: mean steps read", None, curve.mean_steps[at], "steps"))
    return found


def _text(place: Reproduction, curves: dict[str, Curve]) -> str:
    parts = []
    for name, curve in curves.items():
        trained, best = curve.thresholds.index(trainings.THETA), curve.accuracy.index(max(curve.accuracy))
        found = (
            f"the {name} network gets {100 * curve.accuracy[trained]:.2f} % right after "
            f"{curve.mean_steps[trained]:.2f} steps at θ = 0.5"
        )
        if best != trained:
            found += (
                f", and at best {100 * curve.accuracy[best]:.2f} % after {curve.mean_steps[best]:.2f} steps, at "
                f"θ = {curve.thresholds[best]:g}"
            )
        parts.append(found + (", its best" if best == trained else ""))
    return f"On the test digits {'; '.join(parts)}.{at_this_scale(place)}"


def _draw(curves: dict[str, Curve]) -> Figure:
    figure = Figure(figsize=(11, 4), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.1, h_pad=0.1)  # type: ignore[union-attr]
    wide, accuracy, time = figure.subplots(1, 3, width_ratios=(1.5, 1, 1))
    for (name, curve), colour in zip(curves.items(), COLOURS, strict=False):
        right = [100 * each for each in curve.accuracy]
        line: dict[str, Any] = {"color": colour, "marker": "o", "ms": 4, "lw": 1.6, "label": name}
        wide.plot(curve.mean_steps, right, **line)
        accuracy.plot(curve.thresholds, right, **line)
        time.plot(curve.thresholds, curve.mean_steps, **line)
        at = curve.thresholds.index(trainings.THETA)
        wide.plot(curve.mean_steps[at], right[at], "o", ms=10, mfc="none", mec=colour)
    wide.set(xlabel="mean steps read", ylabel="accuracy (%)", title="trade-off over θ (circle: θ = 0.5)")
    accuracy.set(xlabel="θ", ylabel="accuracy (%)", title="accuracy")
    time.set(xlabel="θ", ylabel="mean steps read", title="time", ylim=(0, 10.4))
    wide.legend(frameon=False)
    for axes in (accuracy, time):
        axes.set(xscale="log")
        axes.set_xticks([0.1, 0.5, 2, 10], ["0.1", "0.5", "2", "10"])
        axes.axvline(trainings.THETA, color="#8a8f98", lw=1, ls="--")
    for axes in (wide, accuracy, time):
        plain(axes)
    return figure
