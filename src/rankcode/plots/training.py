"""A training run through time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from matplotlib.figure import Figure

from rankcode.plots.style import BLUE, COLOURS, GREY, RED, legend_below, plain


def plot_training(records: Sequence[Mapping[str, Any]], title: str) -> Figure:
    """Accuracy and steps read through training."""
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
    upper.set_title(title, loc="left", parse_math=False)
    lower.set(ylabel="mean steps read", xlabel="training examples", ylim=(0, None))
    legend_below(figure, *upper.get_legend_handles_labels())
    for axes in (upper, lower):
        plain(axes)
    return figure


def plot_spike_times(histories: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """The distribution of first-spike times through training, a panel for each network (the paper's Fig. 2B)."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    panels = figure.subplots(1, len(histories), sharey=True, squeeze=False)[0]
    for axes, (name, records), colour in zip(panels, histories.items(), COLOURS, strict=False):
        draw_spike_times(axes, records, colour)
        axes.set(title=name)
    panels[0].set(ylabel="steps read at the first spike")
    return figure


def draw_spike_times(axes: Any, records: Sequence[Mapping[str, Any]], colour: str) -> None:
    """First-spike times on the validation rows: the darker, the more rows answer after that many steps. The line is the
    mean."""
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
    axes.set(xlabel="training sequences (thousands)", ylim=(0.5, steps + 0.5))
