"""Accuracy and earliness: a report for one rule, and the trade-off over thresholds.

With accuracy a and mean earliness e, HM = 2·a·(1 − e)/(a + 1 − e) and cost at α = (1 − a) + α·e. Steps are steps read;
a row that never fires counts as its full length.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from rankcode.checks import checked_labels, rows_named
from rankcode.data.sources import BadData, Rows, Source, split_of
from rankcode.engines import Keep, Run
from rankcode.front_ends import front_end_of
from rankcode.inference import checked_run
from rankcode.network import Network
from rankcode.progress import watched
from rankcode.rules import Rule, Threshold, allowed, check_rule

ALPHA = 0.2  # weight of earliness in the cost: answering at half the length makes up for 10 % more errors
THRESHOLDS = (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.93, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999, 0.9995)


def milliseconds_heard(source: Source, steps: Tensor, first: int = 0) -> Tensor | None:
    """Milliseconds of sound that answers after these steps depend on, for the rows of `scan` from row `first` on; None
    if the source is not sound."""
    heard = getattr(source, "heard", None)
    return None if heard is None else heard(steps, first)


def source_of(network: Network, task, split: str) -> Source:
    """A split of a task, read as this network needs it. Raises a ValueError if its classes are not those of the
    network."""
    names = getattr(task, "label_names", None)
    if names is not None and network.label_names is not None and tuple(names) != network.label_names:
        own, other = (", ".join(each[:6]) + ", …" * (len(each) > 6) for each in (network.label_names, tuple(names)))
        raise BadData(f"the classes of the network are {own}, those of the data {other}: the names must be the same")
    return source_for(network, split_of(task, split))


def source_for(network: Network, source: Source) -> Source:
    """Raw data as this network reads it: with the front end of the network instead of that of the data."""
    given = front_end_of(source)
    if network.front_end is None or given is None or not isinstance(source, Rows):
        return source
    if given.reads != network.front_end.reads:
        raise BadData(f"the network reads {network.front_end.reads}, and the data is {given.reads}")
    source = copy(source)
    source.encode = network.front_end
    return source


def harmonic_mean(accuracy: float, earliness: float) -> float:
    total = accuracy + 1 - earliness
    return 2 * accuracy * (1 - earliness) / total if total > 0 else 0.0


def cost(accuracy: float, earliness: float, alpha: float) -> float:
    return (1 - accuracy) + alpha * earliness


def area(earliness: Sequence[float], accuracy: Sequence[float], majority: float) -> float:
    """The mean over budgets b in [0, 1] of the best accuracy among points with earliness ≤ b; for budgets below every
    point, the share of the majority class."""
    total, at, best = 0.0, 0.0, None
    for e, a in sorted(zip(earliness, accuracy, strict=True)):
        total += (majority if best is None else best) * (e - at)
        at, best = e, a if best is None else max(a, best)
    return total + (majority if best is None else best) * (1 - at)


@dataclass(frozen=True)
class ClassReport:
    label: int
    name: str
    rows: int
    accuracy: float  # share of the class's rows that were answered correctly
    mean_steps: float
    fired: float


@dataclass(frozen=True)
class Report:
    """Results of a network on data, with one rule."""

    rows: int
    accuracy: float
    mean_steps: float
    earliness: float  # mean of steps read ÷ length
    harmonic_mean: float
    cost: float  # at alpha
    alpha: float
    fired: float  # share of rows that fired
    loss: float  # cross-entropy at the answer
    milliseconds: float | None  # mean audio heard, look-ahead included; None if the data is not sound
    classes: tuple[ClassReport, ...]
    steps_histogram: tuple[int, ...]  # rows that read 1, 2, … steps
    confusion: tuple[tuple[int, ...], ...]  # rows by true class, then by the class that was answered

    def as_dict(self) -> dict:
        return asdict(self)

    def __str__(self):
        return (
            f"accuracy {100 * self.accuracy:.2f} %, mean steps {self.mean_steps:.2f}"
            f"{'' if self.milliseconds is None else f' ({self.milliseconds:.0f} ms heard)'}, earliness "
            f"{self.earliness:.3f}, harmonic mean {self.harmonic_mean:.3f}, fired {100 * self.fired:.1f} %"
        )


def evaluate(
    network: Network,
    task,
    rule: Rule | None = None,
    split: str = "test",
    alpha: float = ALPHA,
    batch_size: int = 1024,
    engine: str = "auto",
    progress: bool = False,
) -> Report:
    """Accuracy, steps read and related measures, on a split of a task or on any data.

    `rule` is by default the network's own, or else `Threshold(0.95)`; `batch_size` is how many rows are run at once;
    `progress` shows a bar.
    """
    if not alpha >= 0:
        raise ValueError(f"alpha, the weight of earliness, must be at least 0, not {alpha}")
    columns, source = [], source_of(network, task, split)
    for labels, result in _runs(network, source, rule, "answer", batch_size, engine, progress):
        decision = result.decision
        likelihood = decision.probabilities.gather(1, labels[:, None])[:, 0].double().clamp(min=1e-38)
        earliness = decision.steps.double() / result.lengths
        parts = labels, decision.label, decision.steps, earliness, decision.fired, -likelihood.log()
        columns.append(torch.stack([part.double() for part in parts]))
    label, answer, steps, earliness, fired, loss = torch.cat(columns, 1).cpu()
    right = (answer == label).double()
    classes = network.num_classes
    confusion = torch.bincount((classes * label + answer).long(), minlength=classes**2).view(classes, classes)
    heard = milliseconds_heard(source, steps.long())
    accuracy, mean_earliness = right.mean().item(), earliness.mean().item()
    names = network.class_names
    return Report(
        rows=len(label),
        accuracy=accuracy,
        mean_steps=steps.mean().item(),
        earliness=mean_earliness,
        harmonic_mean=harmonic_mean(accuracy, mean_earliness),
        cost=cost(accuracy, mean_earliness, alpha),
        alpha=alpha,
        fired=fired.mean().item(),
        loss=loss.mean().item(),
        milliseconds=None if heard is None else heard.mean().item(),
        classes=tuple(
            ClassReport(
                label=int(each),
                name=names[int(each)],
                rows=int(chosen.sum()),
                accuracy=right[chosen].mean().item(),
                mean_steps=steps[chosen].mean().item(),
                fired=fired[chosen].mean().item(),
            )
            for each in label.unique()
            for chosen in [label == each]
        ),
        steps_histogram=tuple(torch.bincount(steps.long())[1:].tolist()),
        confusion=tuple(map(tuple, confusion.tolist())),
    )


@dataclass(frozen=True)
class Curve:
    """Accuracy against mean steps, a point for each threshold."""

    thresholds: tuple[float, ...]
    accuracy: tuple[float, ...]
    mean_steps: tuple[float, ...]
    earliness: tuple[float, ...]
    fired: tuple[float, ...]
    milliseconds: tuple[float, ...] | None  # mean audio heard, if the data is sound
    majority: float  # share of the majority class
    area: float

    def as_dict(self) -> dict:
        return asdict(self)


def tradeoff(
    network: Network,
    task,
    thresholds: Sequence[float] = THRESHOLDS,
    split: str = "test",
    batch_size: int = 1024,
    engine: str = "auto",
    progress: bool = False,
    classes: Sequence[int] | None = None,
) -> Curve:
    """Accuracy and steps read at every threshold, from one pass that reads up to the spike of the largest.

    `classes` are the classes that may fire: by default those of the network's own rule, or else all.
    """
    thresholds = sorted(float(threshold) for threshold in thresholds)
    if not thresholds:
        raise ValueError("tradeoff needs at least one threshold")
    may_fire = getattr(network.rule, "classes", None) if classes is None else tuple(classes)
    for threshold in thresholds:
        check_rule(Threshold(threshold, may_fire), network.activation, network.num_classes)
    totals = torch.zeros(len(thresholds), 4, dtype=torch.float64)  # right, steps, earliness, fired
    counts = torch.zeros(network.num_classes, dtype=torch.long)
    source = source_of(network, task, split)
    heard, first = [0.0] * len(thresholds), 0
    rule = Threshold(thresholds[-1], may_fire)
    for labels, result in _runs(network, source, rule, "read", batch_size, engine, progress):
        activations, _ = network.activate(result.logits)
        shape, lengths = (len(labels), int(result.lengths.max())), result.lengths
        largest = torch.full(shape, -torch.inf, dtype=activations.dtype, device=labels.device)
        label, last_label = torch.zeros(2, *shape, dtype=torch.long, device=labels.device)
        at = result.row, result.step - 1
        largest[at], label[at] = allowed(activations, may_fire).max(1)
        last_label[at] = activations.argmax(1)  # used if the row does not fire
        for k, threshold in enumerate(thresholds):
            crossed = largest >= threshold
            fired = crossed.any(1)
            steps = torch.where(fired, crossed.int().argmax(1) + 1, lengths)
            spike, last = (part.gather(1, steps[:, None] - 1)[:, 0] for part in (label, last_label))
            right = torch.where(fired, spike, last) == labels
            columns = right, steps, steps / lengths.double(), fired
            totals[k] += torch.stack([column.double().sum() for column in columns]).cpu()
            now = milliseconds_heard(source, steps.cpu(), first)
            heard[k] = math.nan if now is None else heard[k] + float(now.sum())
        first += len(labels)
        counts += torch.bincount(labels, minlength=network.num_classes).cpu()
    means = (totals / counts.sum()).T.tolist()
    majority = (counts.max() / counts.sum()).item()
    accuracy, steps, earliness, fired = (tuple(column) for column in means)
    milliseconds = None if math.isnan(heard[0]) else tuple(total / first for total in heard)
    below = area(earliness, accuracy, majority)
    return Curve(tuple(thresholds), accuracy, steps, earliness, fired, milliseconds, majority, below)


def _runs(
    network: Network, source: Source, rule: Rule | None, keep: Keep, batch_size: int, engine: str, progress: bool
) -> Iterator[tuple[Tensor, Run]]:
    """Run the network on every row: the labels of each batch, and its run."""
    device, first, answered = next(network.parameters()).device, 0, None
    for inputs, labels, lengths in watched(source.scan(batch_size, device), getattr(source, "size", None), progress):
        with rows_named(lambda row, first=first: f"row {first + row} of the data evaluated"):
            expected = answered if answered is not None and len(answered) == len(inputs) else None
            result = checked_run(network, inputs, lengths, rule, keep, engine, expected)
            labels = checked_labels(network, labels, len(inputs), device)
        yield labels, result
        first += len(inputs)
        answered = result.decision.steps if device.type == "cpu" else None  # an estimate for the next rows
    if first == 0:
        raise BadData("there is no data to evaluate on")
