"""Pictures of the measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from rankcode.bench.cases import CONVENTIONAL
from rankcode.bench.epochs import RANK_CODED, Epoch, conventional_seconds
from rankcode.bench.grid import SPIKES, GridRow
from rankcode.bench.listening import MAX_WORD_ALARMS, Point
from rankcode.bench.listening_tracks import NOISE_LEVELS
from rankcode.bench.serving import LIMIT_MS as SERVING_LIMIT_MS
from rankcode.bench.serving import Served
from rankcode.bench.steps import Measured
from rankcode.bench.streams import LIMIT_MS, Streams
from rankcode.plots.style import COLOURS, DARK, GREY, plain

TICKS = tuple(digit * 10.0**power for power in range(-4, 4) for digit in (1, 2, 5))


def plot_bench(found: Sequence[Measured]) -> Figure:
    """Time of a training step ÷ that of conventional training, with every engine, captured where it can be. A line is
    the ideal; a dot, on a GPU, is the same ratio for the time in kernels."""
    training = [each for each in found if each.mode == "training" and each.engine != CONVENTIONAL]
    captured = {_case(each) for each in training if each.captured}
    training = [each for each in training if each.captured or _case(each) not in captured]
    sizes = sorted({each.batch_size for each in training})
    columns = min(2, len(sizes))
    lines = -(-len(sizes) // columns)
    figure = Figure(figsize=(5 * columns + 1, 3.7 * lines + 0.5), layout="constrained")
    panels = figure.subplots(lines, columns, sharey=True, squeeze=False).flatten()
    for unused in panels[len(sizes) :]:
        unused.remove()
    names = sorted({(each.engine, each.precision) for each in training})
    for axes, size in zip(panels, sizes, strict=False):
        _draw_bars(axes, [each for each in training if each.batch_size == size], names)
        axes.set(title=f"batch size {size:,}")
    for axes in panels[::columns]:
        axes.set(ylabel="training step ÷ conventional", yscale="log")
        axes.set_yticks(TICKS, [f"{tick:g}" for tick in TICKS])
        axes.minorticks_off()
    lowest = min(min(each.gpu_ratio or each.ratio, each.ideal) for each in training)
    panels[0].set_ylim(0.8 * lowest, 1.2 * max(1, *(each.ratio for each in training)))
    handles = panels[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside upper right", ncols=len(names) + 2, frameon=False)
    return figure


def _case(each: Measured) -> tuple[int, str, str, str]:
    return each.batch_size, each.spikes, each.engine, each.precision


def _draw_bars(axes: Any, here: Sequence[Measured], names: Sequence[tuple[str, str]]) -> None:
    """A group of bars for each way of planting spikes, a bar for each engine and precision."""
    spikes = list(dict.fromkeys(each.spikes for each in here))
    width = 0.8 / len(names)
    for number, name in enumerate(names):
        chosen = [each for each in here if (each.engine, each.precision) == name]
        places = [spikes.index(each.spikes) - 0.4 + (number + 0.5) * width for each in chosen]
        label = ", ".join(name) if len({precision for _, precision in names}) > 1 else name[0]
        label += " (captured)" if any(each.captured for each in chosen) else ""
        colour = COLOURS[number % len(COLOURS)]
        axes.bar(places, [each.ratio for each in chosen], width * 0.9, color=colour, label=label)
        dots = [(place, each.gpu_ratio) for place, each in zip(places, chosen, strict=True) if each.gpu_ratio]
        if dots:
            label = None if number else "the same for the time in kernels"
            axes.plot(*zip(*dots, strict=True), "o", ms=4, mfc="white", mec=DARK, mew=1, label=label)
    for place, which in enumerate(spikes):
        ideal = next(each.ideal for each in here if each.spikes == which)
        label = None if place else "steps read"
        axes.plot([place - 0.4, place + 0.4], [ideal, ideal], color=DARK, lw=1.5, label=label)
    axes.axhline(1, color=GREY, lw=1)
    axes.set_xticks(range(len(spikes)), [which.replace(", ", ",\n") for which in spikes], fontsize=8)
    plain(axes)


def plot_lengths(found: Mapping[int, Sequence[Measured]]) -> Figure:
    """Time and memory of a training step against the mean number of steps read, by how many steps rows have: a point
    for each way of planting spikes, and for conventional training, which reads everything."""
    figure = Figure(figsize=(9.2, 3.9), layout="constrained")
    training = [(steps, each) for steps, here in found.items() for each in here if each.mode == "training"]
    engines = dict.fromkeys(each.engine for _, each in training)
    for axes, value in zip(figure.subplots(1, 2), ("milliseconds", "megabytes"), strict=True):
        for engine, marker, colour in zip(engines, "s.", (GREY, COLOURS[0]), strict=False):
            points = sorted(
                (steps * each.ideal, getattr(each, value)) for steps, each in training if each.engine == engine
            )
            axes.loglog(*zip(*points, strict=True), marker, color=colour, label=engine)
        axes.set(xlabel="steps read", ylabel=f"{value} of a training step")
        _plain_ticks(axes)
        plain(axes)
    figure.axes[0].legend(frameon=False)
    return figure


def _plain_ticks(axes: Any) -> None:
    """Ticks of logarithmic axes as plain numbers: 1, 10, 100, or 1, 2, 5, 10 if the axis is short."""
    for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())


def plot_epochs(found: Mapping[int, Mapping[str, Sequence[Epoch]]]) -> Figure:
    """Seconds of a rank-coded epoch ÷ those of a conventional one, a panel for each batch size, and the share of steps
    read, which is the ideal."""
    figure = Figure(figsize=(5.2 * len(found), 3.9), layout="constrained")
    panels = figure.subplots(1, len(found), sharey=True, squeeze=False)[0]
    for axes, (batch_size, runs) in zip(panels, found.items(), strict=True):
        usual, coded = conventional_seconds(runs), runs[RANK_CODED]
        longest = max(each.mean_steps for each in runs[CONVENTIONAL])
        numbers, ratio = range(1, len(coded) + 1), [each.seconds / usual for each in coded]
        read = [each.mean_steps / longest for each in coded]
        axes.plot(numbers, ratio, color=COLOURS[0], lw=1.5, marker="." if len(ratio) < 30 else "", label="time")
        axes.plot(numbers, read, color=DARK, lw=1.2, ls="--", label="steps read")
        axes.axhline(1, color=GREY, lw=1, zorder=1)
        highest = max(1, *ratio[1:], *read)  # the first epoch, in which kernels are compiled, may take far longer
        axes.set(title=f"batch size {batch_size:,}: conventional {usual:.3g} s", xlabel="epoch")
        axes.set_ylim(0, 1.1 * highest)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        plain(axes)
    panels[0].set(ylabel="rank-coded ÷ conventional")
    panels[0].legend(frameon=False)
    return figure


def plot_grid(found: Sequence[GridRow]) -> Figure:
    """The ratio of `auto` against the time of conventional training and inference, a point for each shape."""
    figure = Figure(figsize=(9.2, 3.9), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, mode in zip(panels, ("training", "inference"), strict=True):
        rows = [each for each in found if each.mode == mode]
        for number, spikes in enumerate(SPIKES):
            ratios = [each.auto[number] for each in rows]
            axes.loglog([each.milliseconds for each in rows], ratios, ".", color=COLOURS[number], label=spikes)
        axes.axhline(1, color=GREY, lw=1)
        axes.set(title=mode, xlabel="conventional (ms)")
        _plain_ticks(axes)
        plain(axes)
    panels[0].set(ylabel="auto ÷ conventional")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper right", ncols=3, frameon=False)
    return figure


def plot_streams(found: Sequence[Streams]) -> Figure:
    """Milliseconds from the sound to the decision against the number of live streams, and the limit."""
    figure = Figure(figsize=(5.2, 3.9), layout="constrained")
    axes = figure.subplots()
    count = [each.streams for each in found]
    axes.plot(count, [each.p50 for each in found], color=DARK, lw=1.2, marker=".", label="median")
    axes.plot(count, [each.p99 for each in found], color=COLOURS[0], lw=1.5, marker=".", label="99 %")
    axes.axhline(LIMIT_MS, color=GREY, lw=1)
    axes.set(xlabel="live streams", ylabel="sound to decision (ms)", ylim=(0, 4 * LIMIT_MS))
    axes.legend(frameon=False, loc="upper left")
    plain(axes)
    return figure


def plot_serving(found: Sequence[Served]) -> Figure:
    """Against the number of streams that clients ask for: milliseconds from the sound to the decision, and how many
    streams were served. A colour for each number of streams on a connection."""
    figure = Figure(figsize=(9.2, 3.9), layout="constrained")
    latency, served = figure.subplots(1, 2)
    sizes = sorted({-(-each.streams // each.connections) for each in found})
    for number, size in enumerate(sizes):
        here = [each for each in found if -(-each.streams // each.connections) == size]
        count, colour = [each.streams for each in here], COLOURS[number % len(COLOURS)]
        label = f"{size} stream{'s' * (size > 1)} a connection"
        latency.plot(count, [each.p99 for each in here], color=colour, lw=1.5, marker=".", label=f"99 %, {label}")
        latency.plot(count, [each.p50 for each in here], color=colour, lw=1.2, ls="--", label="median")
        served.plot(count, [each.streams - each.refused for each in here], color=colour, marker=".", label=label)
    latency.axhline(SERVING_LIMIT_MS, color=GREY, lw=1)
    latency.set(xlabel="streams", ylabel="sound to decision (ms)", ylim=(0, 2 * SERVING_LIMIT_MS))
    served.axhline(max(each.capacity for each in found), color=GREY, lw=1)
    served.set(xlabel="streams", ylabel="streams served, the others refused", ylim=(0, None))
    for axes in (latency, served):
        axes.legend(frameon=False, fontsize=8)
        plain(axes)
    return figure


def plot_listening(points: Sequence[Point]) -> Figure:
    """Recall against false alarms an hour of other words, over thresholds: of each policy, and of the listener at each
    level of noise. The grey lines are the goal."""
    figure = Figure(figsize=(10.4, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    curves: dict[tuple[str, int], list[Point]] = {}
    for point in points:
        curves.setdefault((point.policy, point.patience), []).append(point)
    styles = ("-", "--", ":", "-.")
    names = list(dict.fromkeys(policy for policy, _ in curves))
    for (policy, patience), curve in curves.items():
        here = [other for other in curves if other[0] == policy]
        style = {
            "color": (*COLOURS, DARK, GREY, "tab:brown")[names.index(policy) % 9],
            "ls": styles[here.index((policy, patience)) % 4],
        }
        alarms, recall = [each.word_alarms for each in curve], [each.recall for each in curve]
        left.plot(alarms, recall, lw=1.3, label=f"{policy}, {patience} steps", **style)
    chosen = next(iter(curves.values()))
    for number, level in enumerate(NOISE_LEVELS):
        label = "no noise" if level is None else f"noise {level} dB below the words"
        recall = [each.recall_by_level[number] for each in chosen]
        right.plot([each.word_alarms for each in chosen], recall, color=COLOURS[number], marker=".", label=label)
    left.set(ylabel="recall of keywords", title="all levels of noise")
    right.set(title=f"listener, {chosen[0].patience} steps")
    for axes in (left, right):
        axes.set(xlabel="false alarms in an hour of other words", xlim=(0, 10 * MAX_WORD_ALARMS), ylim=(0, 1))
        axes.axvline(MAX_WORD_ALARMS, color=GREY, lw=1)
        axes.axhline(0.9, color=GREY, lw=1)
        axes.legend(frameon=False, fontsize=7, loc="lower right")
        plain(axes)
    return figure
