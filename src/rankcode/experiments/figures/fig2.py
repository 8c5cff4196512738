"""Fig. 2 and section B.2: when networks answer in the 2-sequence problem, and how that changes through training."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from rankcode.experiments.figures import numbers
from rankcode.experiments.reproduction import Number, Reproduction, Result, Trained, paper_time
from rankcode.experiments.trainings import two_sequence as trainings
from rankcode.inference import decide, trace
from rankcode.plots import plot_spike_times, plot_tradeoff
from rankcode.plots.style import COLOURS, DARK, GREY, plain
from rankcode.plots.training import draw_spike_times
from rankcode.rules import FireAt, Never, Threshold
from rankcode.tasks import TwoSequence

TITLE = "Fig. 2: the 2-sequence problem"
THETA = 0.95
THRESHOLDS = (0.6, 0.7, 0.8, 0.85, 0.9, 0.93, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999)
SPIKE, END = "rank-coded", "conventional"
OWN_SPIKE, OWN_END = "rank-coded, own settings", "conventional, own settings"
DRAWN = (8, 30)  # mean steps of the enlarged trade-off
CONSTANT = "constant threshold on the exact posterior"  # the name of a limit
EQUAL = ", at equal mean steps"


def reproduce(place: Reproduction) -> Result:
    made = trainings.settings(place)
    settings = {SPIKE: made[f"rank-coded-{THETA:g}"], END: made["conventional"]}
    settings |= {OWN_SPIKE: made["rank-coded-own"], OWN_END: made["conventional-own"]}
    runs = place.runs(settings, place.seeds())
    runs |= place.runs({"every step": made["every-step"], "until spike": made["until-spike"]})
    first = {name: trained[0] for name, trained in runs.items()}
    curves = {name: trained.curve(THRESHOLDS, model="last") for name, trained in first.items()}
    task = trainings.task(place)
    found = {} if place.scale == "smoke" else task.limit_curves()  # these take a minute
    limits = {name: (limit.accuracy.tolist(), limit.steps.tolist()) for name, limit in found.items()}
    noise = {name: _time_by_noise(first[name], task, place.pick(200, 5_000, 50_000)) for name in (SPIKE, END)}
    drawn = {
        "trade-off": {name: curve.as_dict() for name, curve in curves.items()},
        "limits": {name: {"accuracy": accuracy, "mean_steps": steps} for name, (accuracy, steps) in limits.items()},
        "through training": {
            name: [
                {"examples": record["examples"], "mean_steps": record["first_spike"]["mean_steps"],
                 "accuracy": record["first_spike"]["accuracy"]}
                for record in trained.records
            ]
            for name, trained in first.items()
        },
        **numbers.cost_curves(runs),
        "seeds": len(runs[SPIKE]),
        "spike time by noise": noise,
    }  # fmt: skip
    all_numbers = _numbers(runs, task.steps) + _at_equal_speed(runs, limits)
    pictures = {
        "spike-times": plot_spike_times({name: first[name].records for name in (SPIKE, END)}),
        "trade-off": plot_tradeoff({SPIKE: curves[OWN_SPIKE], END: curves[OWN_END]}, limits),
    }
    figure = _draw(first, curves, limits, noise, task)
    return Result(figure, all_numbers, drawn, _text(first, all_numbers), first.values(), pictures)


def _text(first: dict[str, Trained], found: list[Number]) -> str:
    saved = 1 - first[SPIKE].share_read / first[END].share_read
    leads = {number.what: number for number in found if number.what.endswith(EQUAL)}
    return (
        f"With the paper's settings rank-coded training read {100 * saved:.0f} % fewer steps than conventional "
        "training. The paper compares the two at a fixed step, 14, at which conventional training does not learn to "
        "answer. At equal mean steps, both answering at the first spike, rank coding is "
        f"{_lead(leads[f'{SPIKE} minus {END}{EQUAL}'])} with the paper's settings and "
        f"{_lead(leads[f'{OWN_SPIKE} minus {OWN_END}{EQUAL}'])} with our own: see the trade-off, with the "
        "limits of ideal observers on the same sequences."
    )


def _lead(points: Number) -> str:
    ours, spread = points.ours or 0.0, "" if points.spread is None else f" (± {points.spread:.2f})"
    return f"{abs(ours):.2f} points {'ahead' if ours > 0 else 'behind'}{spread}"


def _numbers(runs: dict[str, list[Trained]], steps: int) -> list[Number]:
    def first_spike(name: str, accuracy: float, time: float) -> list[Number]:
        """Ours beside the paper's."""
        what, found = f"{name}, first spike", numbers.reports(runs[name], Threshold(THETA))
        counted, note = (paper_time(report, steps) for report in found), "from 0, without rows that never fire"
        return [
            numbers.accuracy(what, found, accuracy),
            numbers.mean(f"{what}: spike time as the paper counts", counted, "steps", time, note),
            numbers.mean_steps(what, found),
        ]

    return [
        *first_spike(SPIKE, 95.45, 14.0),
        numbers.accuracy(f"{END}, step 40", numbers.reports(runs[END], Never()), 96.84),
        numbers.accuracy(f"{END}, step 14", numbers.reports(runs[END], FireAt(14)), 89.0),
        *first_spike(END, 96.32, 23.0),
        *numbers.answers(f"{OWN_SPIKE}, first spike", runs[OWN_SPIKE], Threshold(THETA)),
        *numbers.answers(f"{OWN_END}, first spike", runs[OWN_END], Threshold(THETA)),
    ]


def _at_equal_speed(runs: dict[str, list[Trained]], limits: dict[str, tuple[list[float], list[float]]]) -> list[Number]:
    """Accuracy at θ = 0.95 minus that of others at equal mean steps: the ideal observer with a constant threshold, and
    the same training with the loss at the end."""

    def lead(name: str, what: str, others: Iterable[tuple[Any, Any]], note: str = "") -> Number:
        """`others`: mean steps and accuracy, for each seed."""
        pairs = zip(numbers.reports(runs[name], Threshold(THETA)), others, strict=False)
        leads = (100 * one["accuracy"] - float(np.interp(one["mean_steps"], *other)) for one, other in pairs)
        return numbers.mean(f"{name} minus {what}", leads, "points", note=note)

    found = []
    if CONSTANT in limits:
        accuracy, steps = (np.array(column) for column in limits[CONSTANT])
        ideal, note = (steps[steps.argsort()], 100 * accuracy[steps.argsort()]), "same sequences, equal mean steps"
        for name in (SPIKE, END, OWN_SPIKE, OWN_END):
            found.append(lead(name, "the constant threshold's limit", repeat(ideal), note))
    for name, other in ((OWN_SPIKE, OWN_END), (SPIKE, END)):
        curves = [trained.curve(THRESHOLDS, model="last") for trained in runs[other]]
        columns = [(curve.mean_steps, [100 * each for each in curve.accuracy]) for curve in curves]
        found.append(lead(name, f"{other}{EQUAL}", columns))
    return found


def _time_by_noise(trained: Trained, task: TwoSequence, rows: int) -> dict[str, list[float]]:
    """Mean steps read in twelve bins of the standard deviation of a sequence."""

    def make() -> dict[str, list[float]]:
        batch, sigma = task.draw_with_std(rows, torch.Generator().manual_seed(7))
        inputs = batch.inputs.to(trained.device)
        steps = decide(trained.model("last"), inputs, rule=Threshold(THETA)).steps.cpu().double()
        edges = torch.linspace(task.low, task.high, 13)
        where = torch.bucketize(sigma, edges[1:-1])
        count = torch.bincount(where, minlength=12).clamp(min=1)
        mean = torch.bincount(where, steps, minlength=12) / count
        return {"standard deviation": ((edges[1:] + edges[:-1]) / 2).tolist(), "mean steps": mean.tolist()}

    return trained.kept(f"last mean steps by noise, {rows} sequences", "test", make)


def _draw(first: dict[str, Trained], curves, limits, noise, task) -> Figure:
    figure = Figure(figsize=(11, 9), layout="constrained")
    parts: Any = figure.subfigures(3, 1, height_ratios=(1, 1, 1.2))
    upper, middle, lower = parts
    _draw_examples(upper.subplots(1, 3), first, task)
    *times, by_noise = middle.subplots(1, 3)
    for axes, name in zip(times, (SPIKE, END), strict=True):
        draw_spike_times(axes, first[name].records, COLOURS[name == END])
        axes.set(title=f"first spikes, {name}", ylabel="steps read", ylim=(0.5, task.steps + 0.5))
    for (name, columns), colour in zip(noise.items(), COLOURS, strict=False):
        by_noise.plot(*columns.values(), color=colour, marker=".", label=name)
    by_noise.set(xlabel="standard deviation of a sequence", ylabel="mean steps read", title="answers by noise")
    by_noise.legend(frameon=False)
    plain(by_noise)
    wide, *beside = lower.subplots(1, 2 if limits else 1, squeeze=False)[0]
    for (name, (accuracy, steps)), style in zip(limits.items(), ("-", "--", ":"), strict=False):
        line = {"color": DARK, "lw": 1, "ls": style, "marker": "*" if len(steps) == 1 else ""}
        wide.plot(steps, [100 * each for each in accuracy], label=f"limit: {name}", **line)
    for (name, curve), colour in zip(curves.items(), COLOURS, strict=False):
        wide.plot(curve.mean_steps, [100 * each for each in curve.accuracy], color=colour, marker="o", ms=3, label=name)
    wide.set(xlabel="mean steps read", ylabel="accuracy (%)", title="trade-off over θ")
    wide.set_ylim(bottom=max(50, 100 * max(max(curve.accuracy) for curve in curves.values()) - 12))
    wide.legend(frameon=False, fontsize=8)
    plain(wide)
    for axes in beside:
        _draw_differences(axes, curves, limits)
    for part, letter in zip(parts, "ABC", strict=True):
        part.suptitle(letter, x=0.01, ha="left", weight="bold", fontsize=11)
    return figure


def _draw_differences(axes, curves, limits) -> None:
    """Accuracy minus that of the constant threshold at equal mean steps: differences too small for the trade-off."""
    accuracy, steps = (np.array(column) for column in limits[CONSTANT])
    order = steps.argsort()

    def beyond(found) -> tuple[np.ndarray, np.ndarray]:
        at, right = np.array(found[1]), np.array(found[0])
        inside = (at >= DRAWN[0]) & (at <= DRAWN[1])
        return at[inside], 100 * (right - np.interp(at, steps[order], accuracy[order]))[inside]

    axes.axhline(0, color=DARK, lw=1)
    for name, found in limits.items():
        if name != CONSTANT and len(found[1]) > 1:
            axes.plot(*beyond(found), color=DARK, lw=1, ls="--")
    for curve, colour in zip(curves.values(), COLOURS, strict=False):
        axes.plot(*beyond((curve.accuracy, curve.mean_steps)), color=colour, marker="o", ms=3)
    axes.set(xlabel="mean steps read", ylabel="points", title="minus the limit of a constant threshold")
    plain(axes)


def _draw_examples(panels, first: dict[str, Trained], task) -> None:
    batch, sigma = task.draw_with_std(3, torch.Generator().manual_seed(3))
    steps = range(1, task.steps + 1)
    for row, axes in enumerate(panels):
        axes.plot(steps, batch.inputs[row, :, 0], color=GREY, lw=1, label="input")
        twin = axes.twinx()
        for name, colour in zip((SPIKE, END), COLOURS, strict=False):
            network = first[name].model("last").cpu()
            activation = trace(network, batch.inputs[row : row + 1]).activations[0]
            answer = decide(network, batch.inputs[row : row + 1], rule=Threshold(THETA))
            end = int(answer.steps)
            twin.plot(steps, activation[:, 1], color=colour, lw=0.8, alpha=0.3)
            twin.plot(list(steps)[:end], activation[:end, 1], color=colour, lw=1.6, label=name)
            if bool(answer.fired):
                twin.plot(end, activation[end - 1, 1], "o", color=colour, ms=5)
        twin.hlines([1 - THETA, THETA], 1, task.steps, color=GREY, lw=0.8, ls=":")
        twin.set(ylim=(-0.03, 1.03), yticks=[0, 0.5, 1], ylabel="output; dotted: θ, 1 − θ" if row == 2 else "")
        label = task.label_names[int(batch.labels[row])]
        axes.set(title=f"{label}, σ = {float(sigma[row]):.2f}", xlabel="step")
    panels[0].set(ylabel="input (grey)")
