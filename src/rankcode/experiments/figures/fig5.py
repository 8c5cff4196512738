"""Fig. 5 and section 3.4: speed against accuracy on Speech Commands, over θ and over β."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from rankcode.experiments.figures import numbers
from rankcode.experiments.figures.fig4 import SHADES, scale_errors
from rankcode.experiments.reproduction import Number, Reproduction, Result, Trained
from rankcode.experiments.trainings import speech as trainings
from rankcode.experiments.trainings.speech import CONTEXT, CONVENTIONAL, FRAME, MAIN, RANK_CODED, THETA, Run
from rankcode.metrics import Curve
from rankcode.plots.style import BLUE, COLOURS, DARK, GREEN, GREY, RED, plain
from rankcode.rules import Threshold

TITLE = "Fig. 5: speed and accuracy on Speech Commands"
THRESHOLDS = (
    0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.93, 0.95, 0.97, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995, 0.9998,
    0.9999, 0.99995, 0.99999, 0.999999,
)  # fmt: skip
SPEEDS = (450, 500, 550, 600, 650, 700, 750, 850, 950)  # ms heard
SOME_SPEEDS = (500, 600, 700)
AUGMENTED = ", augmented"
EVERY, OWN = "every step", "our own network, augmented"
UNTIL = {0.99: "until spike (θ = 0.99)", 0.999: "until spike (θ = 0.999)"}
COLOUR = {
    RANK_CODED: BLUE, CONVENTIONAL: RED, EVERY: COLOURS[2], UNTIL[0.99]: COLOURS[4],
    UNTIL[0.999]: "#b45bcf", OWN: GREEN,
}  # fmt: skip


class Composite(NamedTuple):
    """The upper envelope of some networks, in order of time. Networks and θ are chosen on validation data; times and
    accuracies are those on test data."""

    chosen: tuple[str, ...]
    time: tuple[float, ...]  # ms heard
    steps: tuple[float, ...]
    accuracy: tuple[float, ...]

    def at(self, time: float) -> float | None:
        """Accuracy at a speed, interpolated between points; None before the first point."""
        if time < self.time[0]:
            return None
        return float(np.interp(time, self.time, self.accuracy))

    def leads(self, other: Composite, times: Sequence[float]) -> list[float]:
        """Accuracy minus that of another, in points, at the times at which both answer."""
        pairs = ((self.at(time), other.at(time)) for time in times)
        return [100 * (one - two) for one, two in pairs if one is not None and two is not None]


def envelope(times: Sequence[float], accuracies: Sequence[float]) -> list[int]:
    """Indices of the points that no other point beats in both time and accuracy, in order of time. Of equal points, the
    first."""
    order = sorted(range(len(times)), key=lambda each: (times[each], -accuracies[each], each))
    found: list[int] = []
    for each in order:
        if not found or accuracies[each] > accuracies[found[-1]]:
            found.append(each)
    return found


def composite(networks: Mapping[str, Trained]) -> Composite:
    points = []  # (name, θ), (validation time, accuracy), (test time, steps, accuracy)
    for name, trained in networks.items():
        validation, test = (trained.curve(THRESHOLDS, split) for split in ("validation", "test"))
        for k, threshold in enumerate(test.thresholds):
            found = times(validation)[k], validation.accuracy[k]
            points.append((f"{name}, θ = {threshold:g}", found, (times(test)[k], test.mean_steps[k], test.accuracy[k])))
    chosen = [points[k] for k in envelope(*zip(*(point[1] for point in points), strict=True))]
    chosen.sort(key=lambda point: point[2])
    time, steps, accuracy = zip(*(point[2] for point in chosen), strict=True)
    return Composite(tuple(point[0] for point in chosen), time, steps, accuracy)


def times(curve: Curve) -> tuple[float, ...]:
    """Mean ms heard."""
    return tuple(FRAME * each for each in curve.mean_steps) if curve.milliseconds is None else curve.milliseconds


def reproduce(place: Reproduction) -> Result:
    kinds = (RANK_CODED, CONVENTIONAL)
    wanted = [Run(kind, beta) for kind in kinds for beta in trainings.betas(place)]
    runs = {run: place.trained(trainings.of(place, run)) for run in wanted}
    groups = {kind: {str(run): trained for run, trained in runs.items() if run.kind == kind} for kind in kinds}
    groups[EVERY] = {EVERY: place.trained(trainings.every_step(place))}
    groups |= {name: {name: place.trained(trainings.until_spike(place, theta))} for theta, name in UNTIL.items()}
    if place.scale != "quick":
        groups[OWN] = {OWN: place.trained(trainings.own(place))}
        for kind in kinds:
            run = Run(kind, MAIN)
            groups[kind + AUGMENTED] = {str(run) + AUGMENTED: place.trained(trainings.of(place, run, augment=True))}
    best = {name: composite(group) for name, group in groups.items()}
    seeds = [
        [composite({str(run): place.trained(trainings.of(place, run), seed)}) for run in (Run(k, MAIN) for k in kinds)]
        for seed in place.seeds()
    ]
    networks = {name: trained for group in groups.values() for name, trained in group.items()}
    rows = runs[Run(RANK_CODED, MAIN)].report(Threshold(THETA))["rows"]
    drawn: dict[str, Any] = {
        "over θ": {name: trained.curve(THRESHOLDS).as_dict() for name, trained in networks.items()},
        "composite": {name: found._asdict() for name, found in best.items()},
        "accuracy at ms heard": {name: {str(t): found.at(t) for t in SPEEDS} for name, found in best.items()},
        **numbers.cost_curves({name: [trained] for name, trained in networks.items()}),
    }
    found = [
        *_leads(best[RANK_CODED], best[CONVENTIONAL], "rank-coded − conventional, composites", rows, "above 0"),
        *_over_seeds(seeds),
        *_leads(best[RANK_CODED], best[EVERY], "rank-coded composite − every step", rows, speeds=SOME_SPEEDS),
    ]
    for name in UNTIL.values():
        found += _leads(best[name], best[EVERY], f"{name} − every step", rows)
    if OWN in best:
        one, two = (best[kind + AUGMENTED] for kind in kinds)
        found += _leads(one, two, "rank-coded − conventional, β = 0.2, augmented", rows)
        found += _of_own(groups[OWN][OWN])
    for name, group in groups.items():
        seconds = sum(trained.seconds for trained in group.values())
        share = numbers.share_read(name, group.values(), f"{seconds:.0f} s of training in total")
        found.append(share._replace(spread=None))  # the runs of a group differ in β, not in the seed
    return Result(_draw(runs, best), found, drawn, _text(place, best), networks.values())


def _leads(first: Composite, other: Composite, what: str, rows: int, paper=None, speeds=SPEEDS) -> list[Number]:
    """Test accuracy of the first minus that of the other, in points."""
    found = []
    for time in speeds:
        one, two = first.at(time), other.at(time)
        lead, note = None, "one of them never answers that early"
        if one is not None and two is not None:
            lead = 100 * (one - two)
            error = 100 * math.sqrt((one * (1 - one) + two * (1 - two)) / rows)
            note = f"{100 * one:.2f} % − {100 * two:.2f} %; standard error {error:.2f} or less"
        found.append(Number(f"{what}, {time} ms heard", paper, lead, "points", None, note))
    return found


def _over_seeds(seeds: Sequence[Sequence[Composite]]) -> list[Number]:
    """Rank-coded minus conventional, both with β = 0.2, over seeds."""
    found = []
    for time in SOME_SPEEDS:
        leads = [lead for one, two in seeds for lead in one.leads(two, [time])]
        what, note = f"rank-coded − conventional, β = 0.2 in both, {time} ms heard", f"seeds compared: {len(leads)}"
        found.append(numbers.mean(what, leads, "points", None, note) if leads else Number(what, None, None, "points"))
    return found


def _of_own(trained: Trained) -> list[Number]:
    """At the θ of its training."""
    report = trained.report(trained.setting.objective.rule)
    size = sum(part.numel() for part in trained.setting.network().parameters())
    return [
        Number(f"{OWN}: accuracy", None, 100 * report["accuracy"], "%", None, f"{size:,} parameters"),
        numbers.mean_steps(OWN, [report]),
        Number(f"{OWN}: mean time heard", None, trainings.heard(report), "ms"),
    ]


def _text(place: Reproduction, best: Mapping[str, Composite]) -> str:
    parts = [trainings.what_was_trained(place)]
    pairs = [("", "The composite of the rank-coded networks"), (AUGMENTED, "With augmented recordings and β = 0.2 it")]
    for suffix, opening in pairs:
        if RANK_CODED + suffix in best:
            leads = best[RANK_CODED + suffix].leads(best[CONVENTIONAL + suffix], SPEEDS)
            above = sum(lead > 0 for lead in leads)
            reach = f" (differences of {_reach(leads)})" if leads else ""
            parts.append(
                f"{opening} is above that of the conventional ones at {above} of {len(leads)} speeds compared{reach}."
            )
    for name in UNTIL.values():
        if leads := best[name].leads(best[EVERY], SPEEDS):
            parts.append(f"Training {name} differs from the loss at every step by {_reach(leads)}.")
    parts.append(
        "A composite is the upper envelope over β and θ: chosen on validation data, drawn and compared on test data."
    )
    return " ".join(parts)


def _reach(leads: Sequence[float]) -> str:
    return f"{min(leads):+.2f} to {max(leads):+.2f} points"


def _draw(runs: Mapping[Run, Trained], best: Mapping[str, Composite]) -> Figure:
    figure = Figure(figsize=(11, 10), layout="constrained")
    axes = figure.subplot_mosaic([["left", "right"], ["wide", "wide"]], height_ratios=(1, 1.15))
    panels = [axes["left"], axes["right"]]
    panels[1].sharey(panels[0])
    panels[1].sharex(panels[0])
    for kind, panel in zip((RANK_CODED, CONVENTIONAL), panels, strict=True):
        chosen = {run: trained.curve(THRESHOLDS) for run, trained in runs.items() if run.kind == kind}
        _line(panel, best[kind].time, best[kind].accuracy, color=GREY, lw=4, alpha=0.5, label="composite best")
        for run, curve in chosen.items():
            label = f"β = {run.beta:g}, over θ"
            _line(panel, times(curve), curve.accuracy, color=SHADES[kind][run.beta], marker="o", ms=3, label=label)
        at_theta = [(curve, curve.thresholds.index(THETA)) for curve in chosen.values()]
        fixed = [(times(curve)[k], curve.accuracy[k]) for curve, k in at_theta]
        look = {"color": DARK, "ls": "--", "marker": "D", "ms": 5, "mfc": "none"}
        _line(panel, *zip(*fixed, strict=True), label=f"θ = {THETA:g}, over β", **look)
        panel.set(title=f"{kind} training", xlabel="mean time heard (ms)", ylabel="test accuracy (%)")
    wide = axes["wide"]
    for name, found in best.items():
        base = name if name in COLOUR else name.removesuffix(AUGMENTED)
        look = {"color": COLOUR[base], "ls": "-" if name == base else "--", "marker": "o", "ms": 3}
        several = " composite" if name in (RANK_CODED, CONVENTIONAL) else ""
        _line(wide, found.time, found.accuracy, label=name + several, **look)
    wide.set(title="best at every speed", xlabel="mean time heard (ms)", ylabel="test accuracy (%)")
    highest = 100 * max(max(found.accuracy) for found in best.values())
    lowest = 100 * min(runs[run].curve(THRESHOLDS).majority for run in runs)
    for panel in (*panels, wide):
        panel.set_ylim(min(lowest, highest - 5), min(100, highest + 1))
        panel.legend(frameon=False, fontsize=8.5, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.13))
        plain(panel)
    steps = wide.secondary_xaxis(-0.12, functions=(_steps, _times))
    steps.set_xlabel("mean steps read")
    steps.spines["bottom"].set_visible(False)
    wide.legend(frameon=False, fontsize=8.5, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.24))
    scale_errors(panels)
    scale_errors([wide])
    return figure


def _steps(time):
    """Steps after which this many ms are heard, in a recording that is at least as long."""
    return time / FRAME + 0.5 - 2 * CONTEXT


def _times(steps):
    return FRAME * (steps - 0.5 + 2 * CONTEXT)


def _line(axes, time: Sequence[float], accuracy: Sequence[float], **look) -> None:
    axes.plot(time, [100 * each for each in accuracy], **{"lw": 1.3, **look})
