"""Fig. 6: is it rank coding that makes networks answer early, or the data? Rank-coded and conventional training of the
LSTM of 340 units, with the loss at every step and until the spike for comparison.

Rank-coded training has the β of Table 1, conventional training has none, as in the paper. Through training the
threshold is 0.95, except for training until the spike, which has 0.99. As in the paper, the last models are evaluated
over θ on the test digits."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from rankcode.experiments.figures import numbers
from rankcode.experiments.figures.through_training import draw_through_training, through_training
from rankcode.experiments.reproduction import Number, Reproduction, Result, Trained
from rankcode.experiments.trainings import mnist as trainings
from rankcode.metrics import Curve
from rankcode.plots.style import COLOURS, plain
from rankcode.rules import Never, Threshold

TITLE = "Fig. 6: rank-coded and conventional training on temporal MNIST"
SPIKE, END, EVERY, UNTIL = "rank-coded", "conventional", "every step", "until spike (θ = 0.99)"
PAPER = f"rank-coded, the paper's β = {trainings.PAPER_BETA:g}"
THRESHOLDS = {  # the first two are the paper's
    SPIKE: (0.85, 0.9, 0.95, 0.99),
    END: (0.25, 0.35, 0.45, 0.55, 0.75, 0.95),
    EVERY: (0.45, 0.55, 0.75, 0.85, 0.95, 0.99),
    UNTIL: (0.45, 0.55, 0.75, 0.85, 0.95, 0.99),
}


def reproduce(place: Reproduction) -> Result:
    made = trainings.settings(place)
    runs = place.runs({SPIKE: made["lstm-rank-coded"], END: made["lstm-conventional"]}, place.seeds())
    paper = place.runs({PAPER: made["lstm-fast"]}, place.seeds())
    runs |= place.runs({EVERY: made["lstm-every-step"], UNTIL: made["lstm-until-spike"]})
    first = {name: trained[0] for name, trained in runs.items()}
    curves = {name: trained.curve(THRESHOLDS[name], model="last") for name, trained in first.items()}
    histories = {name: through_training(trained) for name, trained in first.items()}
    drawn = {
        "through training": histories,
        "trade-off": {name: curve.as_dict() for name, curve in curves.items()},
        "units": trainings.lstm_units(place),
        "seeds": len(runs[SPIKE]),
        **numbers.cost_curves(runs),
    }
    found = [*_numbers(runs | paper), *numbers.cost(runs)]
    return Result(_draw(histories, curves), found, drawn, _text(place, first, curves), first.values())


def _numbers(runs: dict[str, list[Trained]]) -> list[Number]:
    found = []
    for name, theta in [*((name, trainings.THETA) for name in runs), (END, THRESHOLDS[END][0])]:
        found += numbers.answers(f"{name}, θ = {theta:g}", runs[name], Threshold(theta))
    return [*found, numbers.accuracy(f"{END}, last step", numbers.reports(runs[END], Never()))]


def _text(place: Reproduction, first: dict[str, Trained], curves: dict[str, Curve]) -> str:
    spike, end = (first[name].report(Threshold(trainings.THETA), model="last") for name in (SPIKE, END))
    curve = curves[END]
    share = 100 * first[SPIKE].share_read / first[END].share_read
    best = ", ".join(
        f"{name} {100 * max(curves[name].accuracy):.2f} % (after {_steps_of_best(curves[name]):.2f} steps)"
        for name in curves
    )
    return (
        f"With θ = 0.95 the rank-coded LSTM reads {spike['mean_steps']:.2f} steps and gets "
        f"{100 * spike['accuracy']:.2f} % right, the conventional one {end['mean_steps']:.2f} and "
        f"{100 * end['accuracy']:.2f} %. With θ = {curve.thresholds[0]:g} the conventional one answers after "
        f"{curve.mean_steps[0]:.2f} steps and gets {100 * curve.accuracy[0]:.2f} % right. Best over the "
        f"thresholds drawn: {best}. Rank-coded training read {share:.0f} % of the steps that conventional training "
        f"read. β is {trainings.BETA:g} and weight decay {trainings.DECAY['weight_decay']:g}; for the paper's β "
        f"without weight decay see the table.{trainings.at_this_scale(place)}"
    )


def _steps_of_best(curve: Curve) -> float:
    return curve.mean_steps[curve.accuracy.index(max(curve.accuracy))]


def _draw(histories: dict[str, Any], curves: dict[str, Curve]) -> Figure:
    figure = Figure(figsize=(11, 7.6), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.1, h_pad=0.1)  # type: ignore[union-attr]
    panels: Any = figure.subplots(2, 2)
    draw_through_training(panels[0, 0], panels[0, 1], histories)
    panels[0, 1].legend(frameon=False, loc="lower right", fontsize=8)
    highest = 100 * max(max(curve.accuracy) for curve in curves.values())
    lowest = 100 * min(min(curve.accuracy) for curve in curves.values())
    _draw_tradeoff(panels[1, 0], curves, END)
    panels[1, 0].set(title="trade-off over θ (numbers: θ)", xlim=(0.7, 10.6))
    panels[1, 0].set_ylim(max(0, lowest - 6), min(100.5, highest + 4))
    early = {name: curve for name, curve in curves.items() if name != END}
    _draw_tradeoff(panels[1, 1], curves, SPIKE)
    steps = [step for curve in early.values() for step in curve.mean_steps]
    right = [100 * share for curve in early.values() for share in curve.accuracy]
    panels[1, 1].set(title="the fast corner of C")
    for limit, found in ((panels[1, 1].set_xlim, steps), (panels[1, 1].set_ylim, right)):
        margin = 0.1 * (max(found) - min(found)) + 0.01
        limit(min(found) - margin, max(found) + margin)
    for axes, letter in zip(panels.flatten(), "ABCD", strict=True):
        axes.set_title(letter, loc="left", weight="bold")
    return figure


def _draw_tradeoff(axes: Any, curves: dict[str, Curve], labelled: str) -> None:
    """Accuracy against mean steps, with θ at the points of one training."""
    for (name, curve), colour in zip(curves.items(), COLOURS, strict=False):
        main = name in (SPIKE, END)
        accuracy = [100 * share for share in curve.accuracy]
        line = {"color": colour, "marker": "o", "ms": 5 if main else 3.5, "lw": 1.6 if main else 1, "label": name}
        axes.plot(curve.mean_steps, accuracy, ls="-" if main else "--", **line)
        points = zip(curve.thresholds, curve.mean_steps, accuracy, strict=True) if name == labelled else ()
        for number, (theta, x, y) in enumerate(points):
            side = {"xytext": (0, 6 if number % 2 else -13), "textcoords": "offset points", "ha": "center"}
            axes.annotate(f"{theta:g}", (x, y), fontsize=7.5, color=colour, annotation_clip=True, **side)
    axes.set(xlabel="mean steps read", ylabel="accuracy (%)")
    plain(axes)
