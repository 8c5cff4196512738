"""Fig. 4 and section 3.4: accuracy and spike time on Speech Commands through training, rank-coded and conventional."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from rankcode.experiments.figures import numbers
from rankcode.experiments.reproduction import Number, Reproduction, Result, Trained
from rankcode.experiments.trainings import speech as trainings
from rankcode.experiments.trainings.speech import CONVENTIONAL, MAIN, RANK_CODED, THETA, Run, heard
from rankcode.plots.style import DARK, GREY, plain
from rankcode.rules import Never, Threshold

TITLE = "Fig. 4: Speech Commands through training"
RISEN = 0.05  # a run can fall once its accuracy was this much above the majority class's share
SHADES = {
    RANK_CODED: {0.0: "#9cc9f5", 0.2: "#4a90dd", 0.3: "#2461b0", 0.4: "#12305f"},
    CONVENTIONAL: {0.0: "#f0a8ae", 0.2: "#d1495b", 0.3: "#9c2740", 0.4: "#570f24"},
}
TICKS = (10, 20, 30, 40, 50, 60, 70, 75, 80, 84, 88, 90, 92, 94, 96, 98, 99, 100)
Runs = dict[Run, list[Trained]]


def reproduce(place: Reproduction) -> Result:
    wanted = [Run(kind, beta) for kind in (RANK_CODED, CONVENTIONAL) for beta in trainings.betas(place)]
    seeds = {run: place.seeds() if run.beta == MAIN else range(1) for run in wanted}
    runs: Runs = {run: [place.trained(trainings.of(place, run), seed) for seed in seeds[run]] for run in wanted}
    fallen = [run for run, (first, *_) in runs.items() if until_fallen(first.records) < len(first.records)]
    drawn: dict[str, Any] = {
        "through training": {
            str(run): [_moment(first, record) for record in first.records] for run, (first, *_) in runs.items()
        },
        "at the best epoch": {str(run): [_best(trained, run) for trained in seeds] for run, seeds in runs.items()},
        "majority class": majority(runs[wanted[0]][0].records[0]["first_spike"]),
        "fell below it": [str(run) for run in fallen],
        **numbers.cost_curves({str(run): seeds for run, seeds in runs.items()}),
    }
    first_runs = [first for first, *_ in runs.values()]
    return Result(_draw(runs), _numbers(runs), drawn, _text(place, runs, fallen), first_runs)


def majority(report: Mapping[str, Any]) -> float:
    """Share of the majority class."""
    counts = [each["rows"] for each in report["classes"]]
    return max(counts) / sum(counts)


def until_fallen(records: Sequence[Mapping[str, Any]]) -> int:
    """Number of records until the first-spike accuracy falls below the majority class's share after it had risen above
    it. The paper stops such runs there."""
    highest, share = 0.0, majority(records[0]["first_spike"])
    for number, record in enumerate(records):
        accuracy = record["first_spike"]["accuracy"]
        highest = max(highest, accuracy)
        if highest >= share + RISEN and accuracy < share:
            return number
    return len(records)


def _epoch(trained: Trained, record: Mapping[str, Any]) -> float:
    return (trained.setting.training.epochs or 1) * record["examples"] / trained.records[-1]["examples"]


def _moment(trained: Trained, record: Mapping[str, Any]) -> dict[str, float]:
    spike = record["first_spike"]
    return {
        "epoch": _epoch(trained, record), "accuracy": spike["accuracy"], "mean_steps": spike["mean_steps"],
        "heard": heard(spike), "accuracy at the end": record["validation"]["accuracy"],
    }  # fmt: skip


def _best(trained: Trained, run: Run) -> dict[str, Any]:
    """The best model on validation data, at θ, on both splits."""
    record, test = trained.best, trained.report(Threshold(THETA))
    spikes = max(trained.records, key=lambda each: each["first_spike"]["accuracy"])
    found = {
        "epoch": _epoch(trained, record),
        "validation": {name: record["first_spike"][name] for name in ("accuracy", "mean_steps", "fired")},
        "test": {name: test[name] for name in ("accuracy", "mean_steps", "fired")},
        "highest spiking accuracy": _moment(trained, spikes),
    }
    found["validation"]["heard"], found["test"]["heard"] = heard(record["first_spike"]), heard(test)
    if run.kind == CONVENTIONAL:
        found["validation"]["accuracy at the end"] = record["validation"]["accuracy"]
        found["test"]["accuracy at the end"] = trained.report(Never())["accuracy"]
    return found


def _settled(trained: Trained, time=heard) -> float:
    """Mean spike time over the last tenth of training, on validation data."""
    records = trained.records[-max(1, len(trained.records) // 10) :]
    return statistics.fmean(time(record["first_spike"]) for record in records)


def _numbers(runs: Runs) -> list[Number]:
    validation = {run: 100 * runs[run][0].best["validation"]["accuracy"] for run in runs}
    main, last, none = Run(RANK_CODED, MAIN), Run(RANK_CODED, 0.4), Run(RANK_CODED, 0.0)
    usual = runs[Run(CONVENTIONAL, 0.0)][0].records
    spiking, at_end = (100 * max(each[part]["accuracy"] for each in usual) for part in ("first_spike", "validation"))
    top = max(value for run, value in validation.items() if run.kind == RANK_CODED)
    late = (_settled(trained) for trained in runs[main])
    frame = (_settled(trained, trainings.at_frame) for trained in runs[main])
    found = [
        numbers.mean(f"{main}: settled spike time, validation", late, "ms", "around 600 ms", "look-ahead included"),
        numbers.mean(f"{main}: the same without look-ahead", frame, "ms", None, "time of the frame answered at"),
        Number(f"{none}: settled spike time", "below 500 ms", _settled(runs[none][0]), "ms", note="validation"),
        Number("accuracy, β = 0.2 minus β = 0.4, rank-coded", "about 0", validation[main] - validation[last], "points",
               note="validation, best epochs"),
        Number("accuracy, rank-coded β = 0.2 minus conventional at the end", "about 0",
               validation[main] - at_end, "points", note="validation, best epoch of each; conventional β = 0"),
        Number("highest spiking accuracy, conventional β = 0 minus best rank-coded", "below 0", spiking - top, "points",
               note="validation"),
    ]  # fmt: skip
    for run, seeds in runs.items():
        found += _test_numbers(run, seeds)
    return found


def _test_numbers(run: Run, seeds: Sequence[Trained]) -> list[Number]:
    """The best model of each seed on test data, and what training cost."""
    best = [_best(trained, run) for trained in seeds]
    first, tests = best[0], [each["test"] for each in best]
    where = f"seed 0: best epoch {first['epoch']:.4g}, validation {100 * first['validation']['accuracy']:.2f} %"
    fired = f"{first['test']['mean_steps']:.1f} steps; {100 * first['test']['fired']:.1f} % fired"
    found = [
        numbers.mean(f"{run}: test accuracy, first spike", (100 * each["accuracy"] for each in tests), note=where),
        numbers.mean(f"{run}: test, heard", (each["heard"] for each in tests), "ms", note=fired),
    ]
    if run.kind == CONVENTIONAL:
        where = f"seed 0: validation {100 * first['validation']['accuracy at the end']:.2f} %"
        ends = (100 * each["accuracy at the end"] for each in tests)
        found.append(numbers.mean(f"{run}: test accuracy, at the end", ends, note=where))
    return [*found, numbers.share_read(str(run), seeds[:1], f"{seeds[0].seconds:.0f} s of training")]


def _text(place: Reproduction, runs: Runs, fallen: Sequence[Run]) -> str:
    main, last = runs[Run(RANK_CODED, MAIN)][0], runs[Run(RANK_CODED, 0.4)][0]
    names = "; ".join(str(run) for run in fallen)
    return (
        f"{trainings.what_was_trained(place)} Rank-coded with β = 0.2 reaches "
        f"{100 * main.best['validation']['accuracy']:.2f} % on validation data and, in the last tenth of training, "
        f"answers after {_settled(main):.0f} ms heard; with β = 0.4 it is "
        f"{100 * last.best['validation']['accuracy']:.2f} % and {_settled(last):.0f} ms. Heard is the audio an answer "
        f"depended on, {trainings.CONTEXT * trainings.FRAME} ms of look-ahead included; the paper does not say how it "
        "counts time. Runs that fell below the majority class's share are drawn up to that point: "
        f"{names or 'none'}. Training with β = 0.2 read {100 * main.share_read:.0f} % of the steps. Seeds with "
        f"β = 0.2: {len(runs[Run(RANK_CODED, MAIN)])}; one elsewhere."
    )


def _draw(runs: Runs) -> Figure:
    figure = Figure(figsize=(11, 8.5), layout="constrained")
    panels = figure.subplots(2, 2, sharex=True, sharey="row", height_ratios=(1.3, 1))
    usual = runs[Run(CONVENTIONAL, 0.0)][0]
    for kind, (upper, lower) in zip((RANK_CODED, CONVENTIONAL), panels.T, strict=True):
        shown = {f"β = {run.beta:g}": (run, seeds) for run, seeds in runs.items() if run.kind == kind}
        if kind == RANK_CODED:
            shown["conventional, β = 0"] = (Run(CONVENTIONAL, 0.0), [usual])
        for label, (run, seeds) in shown.items():
            for trained in seeds:
                moments = [_moment(trained, record) for record in trained.records[: until_fallen(trained.records)]]
                look: dict[str, Any] = {"color": SHADES[run.kind][run.beta], "lw": 1.3, "label": label}
                look |= {} if trained is seeds[0] else {"lw": 0.7, "alpha": 0.5, "label": None}
                epochs = [moment["epoch"] for moment in moments]
                upper.plot(epochs, [100 * moment["accuracy"] for moment in moments], **look)
                lower.plot(epochs, [moment["heard"] for moment in moments], **look)
        ends = [(_epoch(usual, record), 100 * record["validation"]["accuracy"]) for record in usual.records]
        upper.plot(*zip(*ends, strict=True), color=DARK, lw=1.1, label="conventional, β = 0, at the end")
        share = 100 * majority(usual.records[0]["first_spike"])
        upper.axhline(share, color=GREY, lw=1, ls=":", label="majority class")
        lower.axhline(max(heard(record["validation"]) for record in usual.records), color=GREY, lw=1, ls=":")
        upper.set(title=f"{kind} training")
        lower.set(xlabel="epoch")
        upper.legend(frameon=False, fontsize=8.5, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.03))
        plain(upper)
        plain(lower)
    scale_errors(panels[0])
    panels[0, 0].set(ylabel=f"validation accuracy (%) at the first spike, θ = {THETA:g}")
    panels[1, 0].set(ylabel="mean time heard (ms)")
    return figure


def scale_errors(panels) -> None:
    """Draw errors on a logarithmic scale, which shows differences between high accuracies. The panels share it."""
    lowest, highest = panels[0].get_ylim()
    for axes in panels:
        axes.set_yscale("function", functions=(lambda a: -np.log(101 - a), lambda y: 101 - np.exp(-y)))
    panels[0].set_ylim(lowest, min(highest, 100))
    panels[0].set_yticks([tick for tick in TICKS if lowest <= tick <= highest])
