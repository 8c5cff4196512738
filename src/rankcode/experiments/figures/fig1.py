"""Fig. 1 and section B.1, sequence spotting: does a sequence contain five equal values in a row, and how soon after
the fifth does a network answer?

This is the only task of the paper in which every sequence has an earliest step at which its answer is certain.
"""

from __future__ import annotations

import statistics
from operator import attrgetter

import torch
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from torch import Tensor

from rankcode.experiments.figures import numbers
from rankcode.experiments.reproduction import Number, Reproduction, Result, Trained
from rankcode.experiments.trainings import spotting as trainings
from rankcode.inference import decide, trace
from rankcode.metrics import Curve
from rankcode.plots import plot_examples
from rankcode.plots.style import BLUE, DARK, GREEN, GREY, RED, plain
from rankcode.rules import Never, Threshold
from rankcode.tasks import Spotting

TITLE = "Fig. 1: continuous sequence spotting"
THETA = 0.95
share_read = attrgetter("share_read")
THRESHOLDS = (0.6, 0.7, 0.8, 0.85, 0.9, 0.93, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999)
SPIKE, END, OWN = "rank-coded", "conventional", "rank-coded, our setting"
RULES = {SPIKE: Threshold(THETA), END: Threshold(THETA), OWN: Threshold(trainings.OWN_THETA)}
ONLY_POSITIVE = "conventional, positive spikes only"
POSITIVE_ONLY = Threshold(THETA, classes=(1,))
# Blue and red are the classes here.
COLOURS = {SPIKE: GREEN, OWN: "#e0912f", END: "#7b5cc4", "until spike": "#16a3a3", "every step": GREY}
EXAMPLES = (0, 4, 11, 14)  # rows of `trainings.examples` in the small picture: two of each class


def reproduce(place: Reproduction) -> Result:
    made = trainings.settings(place)
    settings = {SPIKE: made["rank-coded"], END: made["conventional"], OWN: made["rank-coded-own"]}
    runs = place.runs(settings, place.seeds())
    runs |= place.runs({"until spike": made["until-spike"], "every step": made["every-step"]})
    first = {name: trained[0] for name, trained in runs.items()}
    task = trainings.task(place)
    times = {name: [trainings.spike_times(each, rule) for each in runs[name]] for name, rule in RULES.items()}
    times[ONLY_POSITIVE] = [trainings.spike_times(each, POSITIVE_ONLY) for each in runs[END]]
    curves = {name: trained.curve(THRESHOLDS, model="last") for name, trained in first.items()}
    drawn = {
        "trade-off": {name: curve.as_dict() for name, curve in curves.items()},
        "limit": task.limit(THETA)._asdict(),
        "spikes": {name: found[0] for name, found in times.items()},
        "share of steps read in training": {name: trained.share_read for name, trained in first.items()},
        "seconds of training": {name: trainings.seconds(trained) for name, trained in first.items()},
        "seeds": len(runs[SPIKE]),
    }
    return Result(
        _draw(first, curves, times, task), _numbers(runs, times, task), drawn, _text(runs, task),
        first.values(), {"examples": _draw_examples(first, task)},
    )  # fmt: skip


def _saved(runs: dict[str, list[Trained]], name: str, measure) -> float:
    """How much less than conventional training, in per cent."""
    spent, usual = (statistics.fmean(measure(each) for each in runs[which]) for which in (name, END))
    return 100 * (1 - spent / usual)


def _numbers(runs: dict[str, list[Trained]], times: dict[str, list[dict]], task: Spotting) -> list[Number]:
    limit = task.limit(THETA)
    ideal = f"an ideal observer: {100 * limit.accuracy:.0f} % after {limit.steps:.3f} steps"
    least = trainings.ideal_steps(task, THETA)
    same, shared = "an ideal observer on the same sequences", "without validation; other runs may have shared the GPU"
    found = []
    for name in (SPIKE, OWN):
        theta = f"θ = {RULES[name].threshold:g}"
        reports = numbers.reports(runs[name], RULES[name])
        beyond = (each["mean_steps"] - least for each in reports)
        on_time = (100 * trainings.share_at(each, 0) for each in times[name])
        found += [
            numbers.accuracy(f"{name}, first spike", reports, 100.0, theta),
            numbers.mean_steps(f"{name}, first spike", reports, ideal),
            numbers.mean(f"{name}: steps beyond the limit", beyond, "steps", note=same),
            numbers.mean(f"{name}: positive sequences with a spike at the earliest step", on_time, "%", "almost all"),
            numbers.mean(f"{name}: steps saved in training", [_saved(runs, name, share_read)]),
            numbers.mean(f"{name}: training time saved", [_saved(runs, name, trainings.seconds)], note=shared),
        ]
    best = numbers.reports(runs[SPIKE], RULES[SPIKE], "best")
    found.insert(1, numbers.accuracy(f"{SPIKE}, best on validation data", best, 100.0, "same training"))
    return [*found, *_conventional_numbers(runs[END], times), *_other_numbers(runs)]


def _conventional_numbers(runs: list[Trained], times: dict[str, list[dict]]) -> list[Number]:
    late = numbers.reports(runs, POSITIVE_ONLY)
    negative = (each["negative share of first spikes"] for each in times[END])
    negative = (float("nan") if each is None else 100 * each for each in negative)
    one_late = (100 * trainings.share_at(each, 1) for each in times[ONLY_POSITIVE])
    delays = (trainings.mean_delay(each) for each in times[ONLY_POSITIVE])
    read = (each["classes"][0]["mean_steps"] for each in late)
    return [
        numbers.accuracy(f"{END}, last step", numbers.reports(runs, Never())),
        *numbers.answers(f"{END}, first spike", runs, Threshold(THETA)),
        numbers.mean(f"{END}: first spikes that are negative", negative, "%", "always"),
        numbers.accuracy(ONLY_POSITIVE, late),
        numbers.mean(f"{ONLY_POSITIVE}: steps after the earliest", delays, "steps", 1.0),
        numbers.mean(f"{ONLY_POSITIVE}: exactly one step late", one_late),
        numbers.mean(f"{ONLY_POSITIVE}: steps read in negative sequences", read, "steps", 25.0),
    ]


def _other_numbers(runs: dict[str, list[Trained]]) -> list[Number]:
    reports = {name: numbers.reports(runs[name], Threshold(THETA)) for name in runs if name not in RULES}
    return [
        *(numbers.accuracy(f"{name}, first spike", found) for name, found in reports.items()),
        *(numbers.mean_steps(f"{name}, first spike", found) for name, found in reports.items()),
    ]


def _text(runs: dict[str, list[Trained]], task: Spotting) -> str:
    limit = task.limit(THETA)

    def at_spike(name: str) -> str:
        found = numbers.reports(runs[name], RULES[name])
        accuracy, steps = (statistics.fmean(each[key] for each in found) for key in ("accuracy", "mean_steps"))
        return f"{100 * accuracy:.2f} % right after {steps:.2f} of {task.steps} steps"

    def compared(saved: float) -> str:
        return f"{abs(saved):.0f} % {'fewer' if saved >= 0 else 'more'} steps"

    saved = {name: compared(_saved(runs, name, share_read)) for name in (SPIKE, OWN)}
    return (
        f"Answers at the first spike: rank-coded training with the paper's settings {at_spike(SPIKE)}, with our own "
        f"setting {at_spike(OWN)}, conventional training {at_spike(END)}. An ideal observer is "
        f"{100 * limit.accuracy:.0f} % right after {limit.steps:.2f} steps; an observer that reads less makes errors. "
        f"Rank-coded training read {saved[SPIKE]} than conventional training, with our own setting {saved[OWN]}."
    )


def _draw(first: dict[str, Trained], curves: dict[str, Curve], times: dict[str, list[dict]], task: Spotting) -> Figure:
    figure = Figure(figsize=(13, 8.2), layout="constrained")
    upper, lower = figure.subfigures(2, 1, squeeze=False, height_ratios=(1.45, 1))[:, 0]
    left, *sides = upper.subfigures(1, 3, squeeze=False, width_ratios=(1, 2.1, 2.1))[0]
    inputs = trainings.examples(task)
    _draw_inputs(left, inputs, task)
    for side, name, letters in zip(sides, (SPIKE, END), ("BCD", "EFG"), strict=True):
        _draw_answers(side, letters, name, first[name], inputs, task)
    keys = [Patch(fc=BLUE, label="positive"), Patch(fc=RED, label="negative"), Patch(fc=GREY, label="no spike")]
    keys += [Patch(fc="none", ec="black", label=f"{task.run_length} equal steps")]
    keys += [Patch(fc=BLUE, alpha=0.25, label="after the first spike")]
    keys += [Line2D([], [], marker="x", color=DARK, ls="", mew=1.8, label="wrong label")]
    upper.legend(handles=keys, loc="outside lower center", ncols=len(keys), frameon=False, fontsize=9)
    _draw_measures(lower.subplots(1, 3), first, curves, times, task)
    return figure


def _draw_examples(first: dict[str, Trained], task: Spotting) -> Figure:
    """The small picture of the documentation: our setting and conventional training on four sequences."""
    inputs = trainings.examples(task)[list(EXAMPLES)]
    positive, _ = trainings.earliest_steps(inputs, task.run_length)
    labels = [task.label_names[int(each)] for each in positive]
    networks = {"rank-coded": first[OWN].model("last").cpu(), END: first[END].model("last").cpu()}
    traces = {name: trace(network, inputs) for name, network in networks.items()}
    return plot_examples(inputs, labels, traces, trainings.OWN_THETA)


def _draw_inputs(part, inputs: Tensor, task: Spotting) -> None:
    axes = part.subplots()
    part.suptitle("sequences", fontsize=12)
    positive, _ = trainings.earliest_steps(inputs, task.run_length)
    _image(axes, torch.where(positive[:, None], inputs[..., 0], -inputs[..., 0]) / 2 + 0.5)
    _boxes(axes, inputs, task)
    _rows(axes, "A", "inputs", positive, task.steps)
    axes.set_yticks(range(len(inputs)), ["positive" if each else "negative" for each in positive], fontsize=8)
    for label, each in zip(axes.get_yticklabels(), positive, strict=True):
        label.set_color(BLUE if each else RED)


def _draw_answers(part, letters: str, name: str, trained: Trained, inputs: Tensor, task: Spotting) -> None:
    labels, spikes, activations = part.subplots(1, 3, width_ratios=(0.09, 1, 1))
    part.suptitle(f"{name} training", fontsize=12)
    network = trained.model("last").cpu()
    answer = decide(network, inputs, rule=Threshold(THETA))
    probability = trace(network, inputs).activations[..., 1]
    positive, _ = trainings.earliest_steps(inputs, task.run_length)
    after = torch.arange(1, task.steps + 1) > answer.steps[:, None]
    crossed = torch.maximum(probability, 1 - probability) >= THETA
    for row, column in (crossed & after).nonzero().tolist():
        _cell(spikes, row, column + 1, BLUE if probability[row, column] > 0.5 else RED, alpha=0.2)
    for row, (label, step, fired) in enumerate(zip(answer.label, answer.steps, answer.fired, strict=True)):
        colour = BLUE if label else RED
        _cell(labels, row, 0, colour if fired else GREY)
        if bool(label) != bool(positive[row]):
            labels.plot(0, row, "x", color="white", ms=5, mew=1.8)
        _cell(spikes, row, int(step), colour if fired else GREY)
        if fired:
            _cell(activations, row, int(step), "none", ec=DARK, lw=1.3, zorder=3)
    _image(activations, probability, torch.where(after, 0.3, 1.0))
    _boxes(spikes, inputs, task)
    titles = ("", "first spikes", "activations")
    for axes, letter, title in zip((labels, spikes, activations), letters, titles, strict=True):
        _rows(axes, letter, title, positive, task.steps)
    labels.set(xlim=(-0.5, 0.5), xticks=[])
    labels.set_xlabel("label", fontsize=8)


def _cell(axes, row: int, step: int, colour: str, **style) -> None:
    axes.add_patch(Rectangle((step - 0.5, row - 0.42), 1, 0.84, **{"fc": colour, "lw": 0, **style}))


def _image(axes, values: Tensor, alpha: Tensor | None = None) -> None:
    """Probabilities of the positive class as colours: [rows, steps]."""
    rows, steps = values.shape
    colours = LinearSegmentedColormap.from_list("classes", (RED, "#ffffff", BLUE))
    extent = (0.5, steps + 0.5, rows - 0.5, -0.5)
    opacity = None if alpha is None else alpha.numpy()
    axes.imshow(values.numpy(), cmap=colours, vmin=0, vmax=1, alpha=opacity, extent=extent, aspect="auto")
    for row in range(1, rows):
        axes.axhline(row - 0.5, color="white", lw=2.5)


def _boxes(axes, inputs: Tensor, task: Spotting) -> None:
    for row, end in trainings.window_ends(inputs, task.run_length).nonzero().tolist():
        corner = end + 1.5 - task.run_length, row - 0.42
        axes.add_patch(Rectangle(corner, task.run_length, 0.84, fill=False, ec="black", lw=1.3, zorder=3))


def _rows(axes, letter: str, title: str, positive: Tensor, steps: int) -> None:
    """One row for each sequence, with a line between the classes."""
    axes.set_title(letter, loc="left", fontweight="bold", fontsize=11)
    axes.set_title(title, fontsize=10)
    axes.set(xlim=(0.5, steps + 0.5), ylim=(len(positive) - 0.5, -0.5), xlabel="step", yticks=[])
    axes.set_xticks([1, *range(5, steps + 1, 5)])
    axes.axhline(int(positive.sum()) - 0.5, color=DARK, lw=1, zorder=2.5)
    axes.spines[:].set_color("#c3c7cd")
    axes.tick_params(length=2, labelsize=8)


def _draw_measures(panels, first: dict[str, Trained], curves: dict[str, Curve], times, task: Spotting) -> None:
    late, tradeoff, cost = panels
    reach = range(-2, 6)
    shown = {SPIKE: SPIKE, OWN: OWN, END: ONLY_POSITIVE}
    for number, (name, which) in enumerate(shown.items()):
        heights = [100 * trainings.share_at(times[which][0], delay) for delay in reach]
        places = [delay + 0.27 * (number - 1) for delay in reach]
        late.bar(places, heights, 0.25, color=COLOURS[name], label=which.replace(", ", ",\n"))
    late.set(xlabel="steps after the earliest possible one", ylabel="positive sequences (%)", ylim=(0, 104))
    late.set_title("positive spikes", fontsize=10)
    limit = task.limit(THETA)
    for name, curve in curves.items():
        percent = [100 * each for each in curve.accuracy]
        tradeoff.plot(curve.mean_steps, percent, color=COLOURS[name], marker="o", ms=3, lw=1.3, label=name)
        examples = [record["examples"] / 1000 for record in first[name].records]
        read = [record["training"]["mean_steps"] for record in first[name].records]
        cost.plot(examples, read, color=COLOURS[name], lw=1.3)
    tradeoff.plot(limit.steps, 100 * limit.accuracy, "*", color=DARK, ms=12, label="exact limit", zorder=5)
    tradeoff.set(xlabel="mean steps read", ylabel="accuracy (%)", xlim=(0, task.steps + 0.5))
    tradeoff.set_title("answers at the first spike, over θ", fontsize=10)
    cost.axhline(limit.steps, color=DARK, lw=1, ls="--", label="exact limit")
    cost.set(xlabel="training sequences (thousands)", ylabel="mean steps read", ylim=(0, task.steps + 1))
    cost.set_title("steps read in training", fontsize=10)
    for axes, letter in zip(panels, "HIJ", strict=True):
        axes.set_title(letter, loc="left", fontweight="bold", fontsize=11)
        axes.legend(frameon=False, fontsize=8)
        plain(axes)
