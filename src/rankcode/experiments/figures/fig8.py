"""Fig. 8 and the section on hidden temporal dynamics: the states of a rank-coded network that hears the word "on"."""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from rankcode.experiments.figures import numbers
from rankcode.experiments.reproduction import Number, Reproduction, Result
from rankcode.experiments.trainings import speech as trainings
from rankcode.experiments.trainings.speech import CONTEXT, MAIN, RANK_CODED, THETA, Run
from rankcode.inference import decide, trace
from rankcode.network import Network
from rankcode.plots.style import BLUE, GREY, RED, plain
from rankcode.rules import Threshold
from rankcode.tasks.sound_collection import SoundRows

TITLE = "Fig. 8: hidden states"
WORD = "on"
BEHIND = {"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 1}
ACTIVE = 0.5  # a unit counts as active where its hidden state, in −1…1, is at least this far from 0


def reproduce(place: Reproduction) -> Result:
    run = Run(RANK_CODED, MAIN)
    trained = place.trained(trainings.of(place, run))
    network, source = trained.model().cpu(), trainings.task(place).test
    row = typical(network, source)
    stored, labels, inputs, steps = taken(network, source, torch.tensor([row]))
    answer, seen = decide(network, inputs, steps, Threshold(THETA)), trace(network, inputs, steps)
    spike, length = int(answer.steps), int(steps[0])
    hidden, cell = (state[0, :length, 0] for state in seen.states)  # [steps, units]
    time = float(network.front_end.heard(answer.steps, source.samples[row : row + 1]))  # type: ignore[union-attr]
    names = trainings.task(place).label_names
    facts = {
        "recording": str(source.names[row]),
        "word": names[int(labels)],
        "answer": names[int(answer.label)],
        "fired": bool(answer.fired),
        "steps read": spike,
        "steps": length,
        "heard": time,
        "probability": float(answer.probabilities.max()),
        "units": hidden.shape[1],
        "active before the answer": active(hidden[:spike]),
        "active in the whole": active(hidden),
        "components": components(hidden[:spike]),
    }
    figure = _draw(seen.activations[0, :length], stored[0], hidden, cell, spike, facts, names)
    drawn: dict[str, Any] = {**facts, **numbers.cost_curves({str(run): [trained]})}
    drawn |= {name: state.double().round(decimals=3).tolist() for name, state in (("hidden", hidden), ("cell", cell))}
    found = [
        Number("steps read", None, spike, f"of {length}", note=f"recording {facts['recording']}"),
        Number("heard", None, time, "ms"),
        Number(f"hidden units that pass ±{ACTIVE:g} up to the answer", None, facts["active before the answer"],
               f"of {facts['units']}", note=f"in the whole recording {facts['active in the whole']}"),
        Number("principal components for 90 % of the hidden variance up to the answer", None, facts["components"], ""),
        numbers.share_read(str(run), [trained], f"{trained.seconds:.0f} s of training"),
    ]  # fmt: skip
    how = "the first spike answers" if facts["fired"] else "it never fires, and answers at the last step"
    text = (
        f"{trainings.what_was_trained(place)} {str(run).capitalize()}, one test recording of “{facts['word']}”: the "
        f"one with the median answer time among those answered correctly at a spike, if there are any. Here {how} "
        f"“{facts['answer']}” after {spike} of {length} steps, {time:.0f} ms heard. States after the answer are grey, "
        "by magnitude: they are neither computed nor trained on. Units are sorted by the step at which their state is "
        f"furthest from 0 up to the answer; {facts['active before the answer']} of {facts['units']} pass "
        f"±{ACTIVE:g} by then."
    )
    return Result(figure, found, drawn, text, [trained])


def taken(network: Network, source: SoundRows, rows: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Frames, labels, inputs and steps of some recordings."""
    stored, labels, lengths = source.take(rows, "cpu")
    inputs, steps = network.front_end(stored, lengths)  # type: ignore[misc]
    return stored, labels, inputs, steps  # type: ignore[return-value]


def typical(network: Network, source: SoundRows) -> int:
    """The recording of the word with the median time of answer among those answered correctly at a spike; among all
    recordings of the word if there are none."""
    names = network.label_names or ()
    rows = (source.labels == names.index(WORD)).nonzero()[:, 0]
    _, labels, inputs, steps = taken(network, source, rows)
    answers = decide(network, inputs, steps, Threshold(THETA))
    right = answers.fired & (answers.label == labels)
    chosen = rows[right] if right.any() else rows
    steps = answers.steps[right] if right.any() else answers.steps
    return int(chosen[steps.argsort(stable=True)[(len(steps) - 1) // 2]])


def active(hidden: Tensor) -> int:
    """Number of units whose state is far from 0 at some step; `hidden` is [steps, units]."""
    return int((hidden.abs().amax(0) > ACTIVE).sum())


def components(hidden: Tensor, share: float = 0.9) -> int:
    """Number of principal components of [steps, units] that hold this share of the variance."""
    variance = torch.linalg.svdvals((hidden - hidden.mean(0)).double()).square()
    held = variance.cumsum(0) / variance.sum().clamp(min=1e-12)
    return min(len(held), int((held < share).sum()) + 1)


def _draw(activations, stored, hidden, cell, spike: int, facts: dict[str, Any], names) -> Figure:
    figure = Figure(figsize=(10, 10.5), layout="constrained")
    sound, outputs, *states = figure.subplots(4, 1, sharex=True, height_ratios=(0.6, 0.8, 1.4, 1.4))
    length = len(hidden)
    own = stored[CONTEXT : CONTEXT + length].T  # a step's own frame
    sound.imshow(own, origin="lower", aspect="auto", cmap="Greys", extent=(0.5, length + 0.5, 0.5, len(own) + 0.5))
    sound.axvspan(spike + 0.5, min(spike + CONTEXT, length) + 0.5, color=RED, alpha=0.15, lw=0)
    sound.set(ylabel="mel band", title=f"“{facts['word']}”: answer “{facts['answer']}” after {facts['heard']:.0f} ms")
    if spike < length:
        sound.text(spike + 1, len(own) - 0.5, "look-ahead", fontsize=8, color=RED, va="top", bbox=BEHIND)
    steps = range(1, length + 1)
    shown = activations[:spike].amax(0).argsort(descending=True)[:3].tolist()
    for column, value in enumerate(activations.T):
        look: dict[str, Any] = {"color": GREY, "lw": 0.9, "zorder": 1}
        if column in shown:
            look = {"color": (BLUE, "#e0912f", "#7b5cc4")[shown.index(column)], "lw": 1.8, "label": names[column]}
        outputs.plot(steps[:spike], value[:spike], **look)
        outputs.plot(steps[spike - 1 :], value[spike - 1 :], color="#b9bdc4", lw=0.9, zorder=0)
    outputs.axhline(THETA, color=RED, lw=1, ls=":")
    if facts["fired"]:
        outputs.plot(spike, activations[spike - 1].max(), "o", color=RED, ms=6, label="spike")
    outputs.set(ylabel="output", ylim=(-0.03, 1.05))
    outputs.legend(loc="lower center", bbox_to_anchor=(0.5, 0.98), ncols=4, fontsize=8, frameon=False)
    plain(outputs)
    order = hidden[:spike].abs().argmax(0) * 2 + (hidden[:spike].mean(0) < 0)  # by step, then by sign
    order = order.argsort(stable=True)
    for axes, state, label in zip(states, (hidden, cell), ("hidden state", "cell state"), strict=True):
        limit = 1.0 if label == "hidden state" else float(state[:spike].abs().quantile(0.97).clamp(min=0.1))
        values = state[:, order].T  # [units, steps]
        look = {"origin": "lower", "aspect": "auto", "vmin": -limit, "vmax": limit, "interpolation": "nearest"}
        units = len(values) + 0.5
        if spike < length:
            later = (spike + 0.5, length + 0.5, 0.5, units)
            axes.imshow(values[:, spike:].abs(), cmap="Greys", extent=later, **{**look, "vmin": 0, "vmax": 1.5 * limit})
        image = axes.imshow(values[:, :spike], cmap="RdBu_r", extent=(0.5, spike + 0.5, 0.5, units), **look)
        axes.axvline(spike + 0.5, color=RED, lw=1.2)
        axes.set(ylabel=f"{label}, unit", xlim=(0.5, length + 0.5))
        figure.colorbar(image, ax=axes, pad=0.01, aspect=25, extend="both" if label == "cell state" else "neither")
    states[-1].set(xlabel="step")
    return figure
