"""Pictures of what was measured."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from rankcode.bench.measure import Measured
from rankcode.plots.style import COLOURS, DARK, GREY, plain


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
