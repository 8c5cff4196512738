"""When a network answers, and why: each series, the class probabilities below it, and the step of the answer."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from rankcode.inference import checked_run, decide
from rankcode.network import Network
from rankcode.plots.style import BLUE, COLOURS, DARK, GREY, RED, legend_below, plain, short
from rankcode.rules import Never, Rule, Threshold

MAX_PANELS = 6  # rows that are drawn unless more are asked for
COLUMNS = 3
MAX_LINES = 8  # channels that are drawn as lines; more become an image
TITLE_WIDTH = 50  # characters that fit above a panel
BOUNDARY = "fires when the largest reaches this"
GRID = torch.linspace(0, 1, 201, dtype=torch.float64)  # probabilities at which it is checked whether a rule fires


def some_of_each(labels: Sequence[Any], at_most: int = MAX_PANELS) -> list[int]:
    """Up to two rows for each label, at most `at_most` together: the first of every label, then the second."""
    found: tuple[dict[Any, int], ...] = {}, {}
    for row, label in enumerate(labels):
        place = next((part for part in found if label not in part), None)
        if place is not None:
            place[label] = row
    chosen = [row for part in found for row in part.values()][:at_most]
    return sorted(chosen, key=lambda row: (str(labels[row]), row))


def plot_answers(
    network: Network,
    rows: Sequence[Tensor],
    true_labels: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    rule: Rule | None = None,
) -> Figure:
    """Rows as the network's front end stores them, each [length, features…]; below each, the probabilities of the
    classes, and how high the largest must be for the rule to fire. What comes after the answer is faint.

    With more classes than colours, only the answered class and the true one are coloured. For a rule that compares
    membranes with θ, membranes are drawn instead of probabilities.
    """
    rule = (network.rule or Threshold()) if rule is None else rule
    if len(rows) == 0:
        raise ValueError("there is no row to draw")
    lines = -(-len(rows) // COLUMNS)
    columns = -(-len(rows) // lines)
    figure = Figure(figsize=(max(4.6 * columns, 6.4), 4.4 * lines + 0.5), layout="constrained")
    axes = figure.subplots(2 * lines, columns, squeeze=False)
    panels = list(zip(axes[::2].flatten(), axes[1::2].flatten(), strict=True))
    for above, below in panels[len(rows) :]:
        above.remove()
        below.remove()
    for number, (above, below) in enumerate(panels[: len(rows)]):
        truth = None if true_labels is None else str(true_labels[number])
        title = _draw_row(above, below, network, rows[number], rule, truth)
        name = [] if names is None else [short(names[number], TITLE_WIDTH)]
        lines_of_title = [*name, *textwrap.wrap(title, TITLE_WIDTH, break_long_words=False)]
        above.set_title("\n".join(lines_of_title), fontsize=9, loc="left", parse_math=False)
    handles = _legend(network)
    handles += [line for _, below in panels[:1] for line in below.get_lines() if line.get_label() == BOUNDARY]
    legend_below(figure, handles, [str(handle.get_label()) for handle in handles])
    return figure


def _draw_row(above: Axes, below: Axes, network: Network, row: Tensor, rule: Rule, truth: str | None) -> str:
    """Draw one row; returns its title."""
    device = next(network.parameters()).device
    stored, lengths = row[None].to(device), torch.tensor([len(row)], device=device)
    inputs, lengths = (stored, lengths) if network.front_end is None else network.front_end(stored, lengths)
    answer = decide(network, inputs, lengths, rule)
    label, read, fired = int(answer.label), int(answer.steps), bool(answer.fired)
    result = checked_run(network, inputs, lengths, Never(), "read", "auto")
    order = result.step.argsort()
    steps, length = result.step[order].cpu(), int(result.lengths)
    activations, probabilities = (part.double().cpu() for part in network.activate(result.logits[order]))
    compared = activations if hasattr(rule, "table") else probabilities

    shown = getattr(network.front_end, "shown", None)
    series = (inputs if shown is None else shown(stored))[0].cpu().flatten(1)
    first = length - len(series) + 1  # a step of sound also depends on frames before it
    _draw_series(above, series, first)
    names = network.class_names
    style: dict[str, Any] = {"drawstyle": "steps-post"} if network.checkpoints is not None else {}
    for each in sorted(range(network.num_classes), key=lambda each: (each == label, names[each] == truth)):
        colour = _colour(network, each, label, names[each] == truth)
        width = 2.0 if each == label else 1.3 if colour != GREY else 0.6
        below.plot(steps, compared[:, each], color=colour, lw=width, **style)
    if (boundary := _boundary(rule, steps, compared)) is not None:
        there = boundary.isfinite()
        below.plot(steps[there], boundary[there], color=DARK, lw=1.1, ls="--", label=BOUNDARY, **style)
    at = int((steps == read).nonzero()[0])
    face = _colour(network, label, label, False) if fired else "white"
    below.plot(read, compared[at, label], "o", ms=7, mfc=face, mec=DARK, zorder=5)
    for axes in (above, below):
        plain(axes)
        axes.grid(visible=not axes.images)
        if read < length:
            axes.axvspan(read, length + 0.5, color="#f4f4f5", alpha=0.8, lw=0, zorder=3)
        axes.axvline(read, color=DARK, lw=1.2, zorder=4)
        axes.set_xlim(first - 0.5, length + 0.5)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    below.set(xlabel="step")
    if compared is probabilities or network.activation != "membrane":
        below.set(ylim=(-0.03, 1.05), ylabel="probability")
    else:
        below.set(ylabel="membrane")
    said = f"answered {short(names[label])} after {read} of {length} steps{'' if fired else ', without a spike'}"
    return said if truth is None else f"{said} (true: {short(truth)})"


def _draw_series(axes: Axes, series: Tensor, first: int) -> None:
    """A series [length, channels] from step `first` on, as lines or as an image."""
    length, channels = series.shape
    if channels <= MAX_LINES:
        for channel in range(channels):
            shade = 0.15 + 0.55 * channel / max(channels - 1, 1)
            axes.plot(range(first, first + length), series[:, channel], color=str(shade), lw=1.1)
        axes.set_ylabel("series" if channels == 1 else f"{channels} channels")
        return
    extent = (first - 0.5, first + length - 0.5, 0.5, channels + 0.5)
    image = series.float().T.numpy()
    axes.imshow(image, origin="lower", aspect="auto", extent=extent, cmap="viridis", interpolation="nearest")
    axes.set_ylabel("channel")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))


def _colour(network: Network, label: int, answered: int, true: bool) -> str:
    if network.num_classes <= len(COLOURS):
        return COLOURS[label]
    return BLUE if label == answered else RED if true else GREY


def _boundary(rule: Any, steps: Tensor, compared: Tensor) -> Tensor | None:
    """How high the largest of `compared` [steps, classes] must be at each step for the rule to fire, NaN where it
    cannot; None if that depends on more than the step. The other classes keep their proportions."""
    count, classes = compared.shape
    if hasattr(rule, "table"):
        return rule.table(range(1, int(steps[-1]) + 1), classes)[steps - 1].amin(1)
    reads_features = getattr(rule, "reads_features", False)
    if hasattr(rule, "planted_steps") or rule.initial_state(1) is not None or reads_features:
        return None
    largest = compared.argmax(1, keepdim=True)
    others = compared.scatter(1, largest, 0.0).clamp(min=1e-12).scatter(1, largest, 0.0)
    others = others / others.sum(1, keepdim=True)
    second = others.amax(1, keepdim=True)
    asked = others[:, None] * (1 - GRID)[:, None]  # [steps, grid, classes]
    asked.scatter_(2, largest[:, None].expand(-1, len(GRID), -1), GRID[:, None].expand(count, -1, -1))
    flat = asked.flatten(0, 1)
    fired, _ = rule(flat, flat, steps.repeat_interleave(len(GRID)), None)
    fired = fired.view(count, -1) & (second / (1 + second) <= GRID)  # where it is still the largest
    return GRID[fired.int().argmax(1)].where(fired.any(1), torch.nan)


def _legend(network: Network) -> list[Line2D]:
    if network.num_classes <= len(COLOURS):
        classes = {short(name): colour for name, colour in zip(network.class_names, COLOURS, strict=False)}
    else:
        classes = {"class answered": BLUE, "true class, if another": RED, "other classes": GREY}
    handles = [Line2D([], [], color=colour, lw=2, label=name) for name, colour in classes.items()]
    return [*handles, Line2D([], [], color=DARK, lw=1.2, marker="o", mfc=GREY, label="answer")]
