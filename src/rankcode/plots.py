"""Pictures of runs. Needs matplotlib: `pip install 'rankcode[plots]'`."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

try:
    from matplotlib.figure import Figure
except ImportError:
    raise ImportError("pictures need matplotlib: pip install 'rankcode[plots]'") from None

from rankcode.bench import Measured
from rankcode.inference import Trace
from rankcode.metrics import Curve

BLUE, RED, GREEN, GREY = "#1f6fd6", "#d1495b", "#2a9d5c", "#8a8f98"
COLOURS = (BLUE, RED, "#e0912f", GREEN, "#7b5cc4", "#16a3a3")
DARK = "#30343b"  # limits, and what is not a training


def plot_training(records: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Accuracy and steps read over training."""
    figure = Figure(figsize=(8, 6), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True)
    parts = {"training": GREY, "validation": BLUE, "first_spike": RED}
    for part, colour in parts.items():
        chosen = [record for record in records if part in record]
        if part == "first_spike" and all(record["validation"] == record[part] for record in chosen):
            continue
        examples = [record["examples"] for record in chosen]
        label = part.replace("_", " ")
        upper.plot(examples, [100 * record[part]["accuracy"] for record in chosen], colour, lw=1.4, label=label)
        lower.plot(examples, [record[part]["mean_steps"] for record in chosen], colour, lw=1.4, label=label)
    upper.set(ylabel="accuracy (%)")
    lower.set(ylabel="mean steps read", xlabel="training examples", ylim=(0, None))
    upper.legend(frameon=False)
    for axes in (upper, lower):
        plain(axes)
    figure.savefig(path, dpi=120)


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


def plot_bench(found: Sequence[Measured]) -> Figure:
    """Time of a training step ÷ that of conventional training, for every engine, recorded where it can be; a line is
    the ideal, and a dot, on a GPU, the same ratio of the time the GPU worked."""
    training = [each for each in found if each.mode == "training" and each.engine != "conventional"]
    recorded = {(each.rows, each.spikes, each.engine, each.precision) for each in training if each.recorded}
    training = [
        each
        for each in training
        if each.recorded or (each.rows, each.spikes, each.engine, each.precision) not in recorded
    ]
    sizes = sorted({each.rows for each in training})
    columns = min(2, len(sizes))
    lines = -(-len(sizes) // columns)
    figure = Figure(figsize=(5 * columns + 1, 3.7 * lines + 0.5), layout="constrained")
    panels = figure.subplots(lines, columns, sharey=True, squeeze=False).flatten()
    for unused in panels[len(sizes) :]:
        unused.remove()
    names = sorted({(each.engine, each.precision) for each in training})
    on_gpu = any(each.busy is not None for each in training)
    for axes, rows in zip(panels, sizes, strict=False):
        here = [each for each in training if each.rows == rows]
        spikes = list(dict.fromkeys(each.spikes for each in here))
        width = 0.8 / len(names)
        for number, name in enumerate(names):
            bars = {each.spikes: each.ratio for each in here if (each.engine, each.precision) == name}
            places = [spikes.index(which) - 0.4 + (number + 0.5) * width for which in bars]
            label = f"{name[0]}, {name[1]}" if on_gpu else name[0]
            label += " (recorded)" if any((rows, which, *name) in recorded for which in bars) else ""
            axes.bar(places, list(bars.values()), width * 0.9, color=(COLOURS * 9)[number], label=label)
            worked = {each.spikes: each.busy_ratio for each in here if (each.engine, each.precision) == name}
            dots = [(place, worked[which]) for place, which in zip(places, bars, strict=True) if worked[which]]
            axes.plot(*zip(*dots, strict=True), "o", ms=4, mfc="white", mec=DARK, mew=1) if dots else None
        for place, which in enumerate(spikes):
            ideal = next(each.ideal for each in here if each.spikes == which)
            axes.plot([place - 0.4, place + 0.4], [ideal, ideal], color=DARK, lw=1.5)
        axes.axhline(1, color=GREY, lw=1)
        axes.set_xticks(range(len(spikes)), [which.replace(", ", ",\n") for which in spikes], fontsize=8)
        axes.set(title=f"{rows:,} rows")
        plain(axes)
    ticks = [0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50]
    for axes in panels[::columns]:
        axes.set(ylabel="training step ÷ conventional", yscale="log")
        axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
    lowest = min(each.busy_ratio or each.ratio for each in training)
    panels[0].set_ylim(0.8 * lowest, 1.2 * max(1, *(each.ratio for each in training)))
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper right", ncols=len(names), frameon=False)
    return figure


def plot_epochs(runs: Mapping[str, tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]]]) -> Figure:
    """Time between two records of rank-coded training ÷ the median of conventional training, for each machine, and
    the share of the steps that was read, which is what it could be at best."""
    figure = Figure(figsize=(5.2 * len(runs), 3.9), layout="constrained")
    panels = figure.subplots(1, len(runs), sharey=True, squeeze=False)[0]
    for axes, (name, (rank_coded, conventional)) in zip(panels, runs.items(), strict=True):
        usual = statistics.median(record["training_seconds"] for record in conventional[1:] or conventional)
        longest = max(record["training"]["mean_steps"] for record in conventional)
        epochs = range(1, len(rank_coded) + 1)
        ratio = [record["training_seconds"] / usual for record in rank_coded]
        read = [record["training"]["mean_steps"] / longest for record in rank_coded]
        axes.plot(epochs, ratio, color=COLOURS[0], lw=1.5, marker="." if len(ratio) < 30 else "", label="time")
        axes.plot(epochs, read, color=DARK, lw=1.2, ls="--", label="steps read")
        axes.axhline(1, color=GREY, lw=1)
        axes.set(title=f"{name}: conventional {usual:.3g} s", xlabel="epoch", ylim=(0, 1.1))
        plain(axes)
    panels[0].set(ylabel="rank-coded ÷ conventional")
    panels[0].legend(frameon=False, loc="lower left")
    return figure


def plot_spike_times(histories: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """The distribution of first-spike times through training, a panel for each network (the paper's Fig. 2B).

    Darker: more of the validation rows answered after that many steps. The line is the mean.
    """
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    panels = figure.subplots(1, len(histories), sharey=True, squeeze=False)[0]
    for axes, (name, records), colour in zip(panels, histories.items(), COLOURS, strict=False):
        reports = [record["first_spike"] for record in records]
        examples = [record["examples"] / 1000 for record in records]
        steps = max(len(report["steps_histogram"]) for report in reports)
        share = torch.zeros(steps, len(reports))
        for column, report in enumerate(reports):
            counts = torch.tensor(report["steps_histogram"], dtype=torch.float32)
            share[: len(counts), column] = counts / counts.sum()
        extent = (0, examples[-1], 0.5, steps + 0.5)
        axes.imshow(share.sqrt().numpy(), origin="lower", aspect="auto", extent=extent, cmap="Greys", vmin=0, vmax=1)
        axes.plot(examples, [report["mean_steps"] for report in reports], color=colour, lw=2)
        axes.set(title=name, xlabel="training sequences (thousands)", ylim=(0.5, steps + 0.5))
    panels[0].set(ylabel="steps read at the first spike")
    return figure


def plot_examples(inputs: torch.Tensor, labels: Sequence[str], traces: Mapping[str, Trace], threshold: float) -> Figure:
    """Example inputs with one value a step, and beneath each the activation of the last class for every
    network: drawn up to its first spike, and faint after it."""
    figure = Figure(figsize=(2.7 * len(inputs), 4.4), layout="constrained")
    upper, lower = figure.subplots(2, len(inputs), sharex=True, sharey="row", squeeze=False)
    steps = torch.arange(1, inputs.shape[1] + 1)
    for row, (above, below) in enumerate(zip(upper, lower, strict=True)):
        above.axhline(0, color=GREY, lw=0.8)
        above.plot(steps, inputs[row, :, 0], color=DARK, lw=1, marker=".", ms=3)
        above.set_title(labels[row], fontsize=10)
        for (name, trace), colour in zip(traces.items(), COLOURS, strict=False):
            activation = trace.activations[row]  # [steps, classes]
            crossed = (activation.amax(1) >= threshold).nonzero().flatten().tolist()
            end = crossed[0] + 1 if crossed else len(steps)
            below.plot(steps, activation[:, -1], color=colour, lw=1, alpha=0.4)
            below.plot(steps[:end], activation[:end, -1], color=colour, lw=1.8, label=name)
            if crossed:
                below.plot(end, activation[end - 1, -1], "o", color=colour, ms=6)
                above.axvline(end, color=colour, lw=1.2, ls="--")
        for level in (threshold, 1 - threshold):
            below.axhline(level, color=GREY, lw=0.8, ls=":")
        below.set(xlabel="step", ylim=(-0.03, 1.03))
        plain(above)
        plain(below)
    upper[0].set(ylabel="input")
    lower[0].set(ylabel="activation, positive class")
    handles, names = lower[0].get_legend_handles_labels()
    figure.legend(handles, names, frameon=False, loc="outside upper center", ncols=len(names))
    return figure


def plain(axes) -> None:
    """Without a box, and with a faint grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)


def _dot(steps: Sequence[float]) -> str:
    """A limit that is one point is drawn as a star, since it has no line."""
    return "*" if len(steps) == 1 else ""
