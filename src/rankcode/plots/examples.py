"""Example sequences, and when each network answers them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from matplotlib.figure import Figure

from rankcode.inference import Trace
from rankcode.plots.style import COLOURS, DARK, GREY, plain


def plot_examples(inputs: torch.Tensor, labels: Sequence[str], traces: Mapping[str, Trace], threshold: float) -> Figure:
    """Example inputs of one value per step, and below each the activation of the last class in every network: a
    strong line up to its first spike, a faint one after it."""
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
