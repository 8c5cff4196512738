"""What a network says about held-out rows at every step: all that is needed to fit a stopping rule."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rankcode.checks import check_read, checked_inputs, checked_labels, rows_named
from rankcode.data.sources import BadData
from rankcode.engines import run
from rankcode.engines.run import ask
from rankcode.inference import inference
from rankcode.metrics import source_of
from rankcode.network import Network
from rankcode.progress import watched
from rankcode.rules import Never, Rule, allowed, check_rule

MAX_STEPS = 400  # with an output: in longer sequences, only every second, third, … step may fire


@dataclass(frozen=True)
class Traces:
    """Class probabilities of rows at a number of steps. A row that has ended keeps its last probabilities."""

    activations: Tensor  # [rows, steps, classes]: what `Threshold` compares with θ
    probabilities: Tensor  # [rows, steps, classes], float64
    steps: tuple[int, ...]
    lengths: Tensor  # [rows]
    labels: Tensor  # [rows]
    weights: Tensor  # [rows], float64
    axis: Tensor | None = None  # [rows, steps]: the second axis of an optimal rule, see second_axis
    axis_weights: Tensor | None = None  # [stretches of steps, features + 1]: from the cell's features to it

    @property
    def reached(self) -> Tensor:
        """How many steps each row has read at each of the steps, [rows, steps]."""
        return torch.tensor(self.steps).minimum(self.lengths[:, None])

    def rows(self, index: Tensor) -> Traces:
        names = ("activations", "probabilities", "lengths", "labels", "weights", *(["axis"] * (self.axis is not None)))
        return replace(self, **{name: getattr(self, name)[index] for name in names})

    def decide(self, rule: Rule) -> tuple[Tensor, Tensor, Tensor]:
        """(labels, steps read, whether they fired) of every row with a rule, without running the network again. A rule
        that reads features reads the second axis as its only feature."""
        rows, count = self.probabilities.shape[:2]
        state = rule.initial_state(rows)
        open_, answer = torch.ones(rows, dtype=torch.bool), torch.full((rows,), count - 1)
        fired = torch.zeros(rows, dtype=torch.bool)
        features = torch.empty(rows, count, 0) if self.axis is None else self.axis[..., None]
        ends = torch.searchsorted(torch.tensor(self.steps), self.lengths).clamp(max=count - 1)
        for number, step in enumerate(self.steps):
            outputs = self.activations[:, number], self.probabilities[:, number]
            now, state = ask(rule, *outputs, step, state, features[:, number])
            now = now & open_ & (step <= self.lengths)
            fired |= now
            stop = open_ & (now | (ends == number))
            answer[stop] = number
            open_ &= ~stop
        outputs = self.activations[torch.arange(rows), answer]
        spike = allowed(outputs, getattr(rule, "classes", None)).argmax(1)
        label = torch.where(fired, spike, outputs.argmax(1))
        steps = torch.where(fired, torch.tensor(self.steps)[answer], self.lengths)
        return label, steps, fired


def traces_of(
    network: Network, task, split: str = "validation", progress: bool = False, steps: tuple[int, ...] | None = None
) -> Traces:
    """Run a network through every step of every row of a split of a task, or of any data. `steps`: those to keep, by
    default its checkpoints or all."""
    check_rule(Never(), network.activation, network.num_classes)
    device = next(network.parameters()).device
    source = source_of(network, task, split)
    parts, first = [], 0
    for inputs, labels, lengths in watched(source.scan(256, device), getattr(source, "size", None), progress):
        with rows_named(lambda row, first=first: f"row {first + row} of the data"):
            inputs, lengths = checked_inputs(network, inputs, lengths)
            labels = checked_labels(network, labels, len(inputs), device)
            check_read(inputs, lengths)
        with inference(network):
            result = run(network, inputs, lengths, Never(), "read")
        parts.append((result.logits, result.row + first, result.step, lengths, labels))
        first += len(inputs)
    if not parts:
        raise BadData("there is no data to fit a rule to")
    logits, row, step, lengths, labels = (torch.cat(column).cpu() for column in zip(*parts, strict=True))
    last = int(lengths.max())
    steps = tuple(each for each in steps or network.checkpoints or range(1, last + 1) if each <= last)
    steps = steps[:: -(-len(steps) // MAX_STEPS)]
    if steps[-1] < last:
        steps = (*steps, last)
    # The output with the last step up to each of the steps: of a row that has ended, its last one.
    place = torch.searchsorted(torch.tensor(steps), step)
    activations, probabilities = network.activate(logits)
    size = (len(lengths), len(steps), network.num_classes)
    filled = torch.full(size[:2], -1)
    order = step.argsort(stable=True)
    keep = (torch.tensor(steps)[place] == step) | (step == lengths[row])
    order = order[keep[order]]
    filled[row[order], place[order]] = order
    number = torch.where(filled >= 0, torch.arange(len(steps)), -1).cummax(1).values
    # Before a row's first output (there is none at a skipped step) it has the first one that follows.
    first_output = (filled >= 0).int().argmax(1, keepdim=True)
    entry = filled.gather(1, torch.where(number < 0, first_output, number))
    return Traces(
        activations[entry].double(),
        probabilities[entry].double(),
        steps,
        lengths,
        labels,
        torch.ones(len(lengths), dtype=torch.float64),
    )
