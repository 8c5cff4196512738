"""What else than the confidence tells whether reading on pays: a weighted sum of the cell's features.

Two rows of the same confidence differ in how fast it will change. Where it moves much (little noise, say), another step
soon decides; where it hardly moves, a step costs as much and brings less. The confidence does not show this, but the
state of a network often does. So the features are regressed, by ridge regression, on the logarithm of the mean squared
change of the confidence over the steps that follow. Rows count by p (1 − p), p the largest probability: whether to read
on is open only where p is not near 1. The labels are not used.

Weights are shared by a stretch of steps. The values of a row come from a regression on other rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rankcode.checks import checked_inputs
from rankcode.data.sources import Source
from rankcode.engines import run
from rankcode.inference import inference
from rankcode.metrics import source_of
from rankcode.network import Network
from rankcode.rules import MAX_CONFIDENT, MIN_CONFIDENT
from rankcode.state import State
from rankcode.stopping.traces import Traces, traces_of

MIN_ROWS = 5000  # with fewer, a table of two axes is too noisy to gain anything
MAX_FEATURES = 1024  # the time of the regression grows with their square
MAX_VALUES = 2**26  # features that are kept for the regression: 256 MB. Rows after these are only projected
STRETCHES = 8  # of steps, each with its own weights
LOOK_AHEAD = 0.25  # share of all steps over which the change of the confidence is measured
MIN_CHANGE = 1e-3  # mean squared changes below are read as this one
RIDGE = 1e-3  # relative to the mean square of each feature
FOLDS = 5


def traces_with_axis(network: Network, task: Any, split: str = "validation", progress: bool = False) -> Traces:
    """`traces_of` with a second axis; without one if there are too few rows or too many features, or if the data has
    the rows in another order each time."""
    traces, source = traces_of(network, task, split, progress), source_of(network, task, split)
    rows, steps = len(traces.labels), traces.steps
    if rows < MIN_ROWS or len(steps) < 2:
        return traces
    kept, count = [], 0
    for first, features, labels in _features(network, source, steps):
        if features.shape[2] > MAX_FEATURES or not torch.equal(labels, traces.labels[first : first + len(labels)]):
            return traces
        kept.append(features)
        count += features.numel()
        if count > MAX_VALUES:
            break
    features = torch.cat(kept)
    known = traces.rows(torch.arange(len(features)))
    target, weights = _change(known.probabilities), _weights(known)
    values = torch.zeros(rows, len(steps), dtype=torch.float64)
    fold = torch.arange(len(features)) % FOLDS
    for number in range(FOLDS):
        own = fold == number
        axis = _regressed(features[~own], target[~own], weights[~own])
        values[: len(features)][own] = _projected(features[own], axis)
    axis = _regressed(features, target, weights)
    if len(features) < rows:
        for first, part, labels in _features(network, source, steps):
            if not torch.equal(labels, traces.labels[first : first + len(labels)]):
                return traces
            if first >= len(features):
                values[first : first + len(part)] = _projected(part, axis)
    return replace(traces, axis=values, axis_weights=axis)


def _projected(features: Tensor, axis: Tensor) -> Tensor:
    """The values [rows, steps] of features [rows, steps, features]."""
    steps = features.shape[1]
    weights = axis[torch.arange(steps) * len(axis) // steps]
    return torch.einsum("rsf,sf->rs", features.double(), weights[:, :-1]) + weights[:, -1]


def _change(probabilities: Tensor) -> Tensor:
    """The logarithm of the mean squared change of the logit of the class that is the likeliest now, over the steps that
    follow, [rows, steps − 1]."""
    label = probabilities.argmax(2, keepdim=True)
    squared = probabilities.clamp(MIN_CONFIDENT, MAX_CONFIDENT).logit().diff(dim=1).square()
    total = torch.nn.functional.pad(squared.cumsum(1), (0, 0, 1, 0))  # [rows, steps, classes], up to each step
    count = probabilities.shape[1]
    now = torch.arange(count - 1)
    end = (now + max(1, round(LOOK_AHEAD * count))).clamp(max=count - 1)
    mean = (total[:, end] - total[:, now]) / (end - now)[:, None]
    return mean.gather(2, label[:, :-1])[..., 0].clamp(min=MIN_CHANGE).log()


def _weights(traces: Traces) -> Tensor:
    largest = traces.probabilities[:, :-1].amax(2)
    before_end = torch.tensor(traces.steps[:-1]) < traces.lengths[:, None]
    return traces.weights[:, None] * largest * (1 - largest) * before_end


def _regressed(features: Tensor, target: Tensor, weights: Tensor) -> Tensor:
    """Weights [stretches, features + 1] of values with mean 0 and standard deviation 1 in each stretch."""
    count = features.shape[1]
    stretches = max(1, min(STRETCHES, count // 2))
    found = []
    for number in range(stretches):
        chosen = [step for step in range(count - 1) if step * stretches // count == number]
        x = torch.cat([features[:, step].double() for step in chosen])
        y, w = (part[:, chosen].T.flatten() for part in (target, weights))
        x = torch.nn.functional.pad(x, (0, 1), value=1.0)
        weighted = x.T * w
        gram = weighted @ x
        gram += torch.diag(RIDGE * gram.diagonal() + 1e-9 * gram.trace() + 1e-12)  # a feature may be 0 in all rows
        solved = torch.linalg.solve(gram, weighted @ y)
        value = x @ solved
        solved[-1] -= value.mean()
        found.append(solved / value.std().clamp(min=1e-9))
    return torch.stack(found)


class _Recorder:
    """A rule that never fires, and keeps the features of every row at some steps."""

    classes = None
    reads_features = True

    def __init__(self, steps: tuple[int, ...]):
        self.numbers = {step: number for number, step in enumerate(steps)}
        self.found: list[tuple[Tensor, int, Tensor]] = []  # rows, number of the step, features

    def initial_state(self, batch_size: int) -> State:
        return torch.arange(batch_size)

    def __call__(self, activations, probabilities, step, state, *features):
        if step in self.numbers:
            self.found.append((state, self.numbers[step], features[0]))
        return torch.zeros(len(activations), dtype=torch.bool, device=activations.device), state


def _features(network: Network, source: Source, steps: tuple[int, ...]) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Of each batch: its first row, the features [rows, steps, features], 0 after the end of a row, and the labels."""
    device, first = next(network.parameters()).device, 0
    for inputs, labels, lengths in source.scan(256, device):
        inputs, lengths = checked_inputs(network, inputs, lengths)
        recorder = _Recorder(steps)
        with inference(network):
            run(network, inputs, lengths, recorder, "answer")
        whole = torch.zeros(len(inputs), len(steps), recorder.found[0][2].shape[1])
        for row, number, features in recorder.found:
            whole[row.cpu(), number] = features.float().cpu()
        ended = torch.tensor(steps) > lengths.cpu()[:, None]
        yield first, whole.masked_fill(ended[..., None], 0.0), labels.cpu()
        first += len(inputs)
