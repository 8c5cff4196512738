"""Calibration: a temperature for each step, so that probabilities are what they say; also by the second axis if any."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rankcode.rules import confidence_of
from rankcode.stopping.traces import Traces

TEMPERATURES = torch.logspace(-0.7, 0.7, 29, dtype=torch.float64)  # 0.2 … 5
NEIGHBOURS = 2  # steps before and after, over which the log-loss is averaged
STRETCHES = 8  # of steps, each with its own regression on the second axis
PRIOR_WEIGHT = 10.0  # of the coefficients with which the second axis changes nothing
NEWTON_STEPS = 8


def fit_temperatures(probabilities: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """The temperature [steps] by which the logits of probabilities [rows, steps, classes] are to be divided, which
    minimises the log-loss averaged over neighbouring steps."""
    share = weights / weights.sum()
    logits = probabilities.clamp(min=1e-38).log()
    index = labels[:, None, None].expand(-1, logits.shape[1], 1)
    losses = []
    for temperature in TEMPERATURES.tolist():
        scaled = logits / temperature
        losses.append(share @ (scaled.logsumexp(-1) - scaled.gather(-1, index)[..., 0]))
    table = torch.stack(losses, 1)  # [steps, temperatures]
    near = [table[max(0, step - NEIGHBOURS) : step + NEIGHBOURS + 1].mean(0) for step in range(len(table))]
    return TEMPERATURES[torch.stack(near).argmin(1)]


class Calibration(NamedTuple):
    """Of the rows of traces."""

    temperatures: Tensor | None  # [steps]; None: all 1
    confidence: Tensor  # [rows, steps], with these temperatures
    errors: Tensor  # [rows, steps]: the chance that the likeliest class is wrong


def calibrate(traces: Traces, temperatures: bool = True) -> Calibration:
    """`temperatures=False` takes probabilities as they are."""
    fitted = fit_temperatures(traces.probabilities, traces.labels, traces.weights) if temperatures else None
    confidence = confidence_of(traces.probabilities, None if fitted is None else fitted.expand(len(traces.labels), -1))
    errors = 1 - confidence.sigmoid() if traces.axis is None else _errors_by_axis(traces, confidence, traces.axis)
    return Calibration(fitted, confidence, errors)


def _errors_by_axis(traces: Traces, confidence: Tensor, axis: Tensor) -> Tensor:
    """By a logistic regression on the confidence u and the second axis a: logit P(right) is linear in u, with
    coefficients that are quadratic in a."""
    right = (traces.activations.argmax(2) == traces.labels[:, None]).double()
    count, found = right.shape[1], []
    stretches = max(1, min(STRETCHES, count // 2))
    prior = torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    for number in range(stretches):
        steps = [step for step in range(count) if step * stretches // count == number]
        u, a = confidence[:, steps], axis[:, steps].clamp(-3, 3)
        x = torch.stack([torch.ones_like(u), u, a, u * a, a * a, u * a * a], -1).flatten(0, 1)
        target, weights = right[:, steps].flatten(), traces.weights[:, None].expand_as(u).flatten()
        solved = prior
        for _ in range(NEWTON_STEPS):
            p = (x @ solved).sigmoid()
            curvature = weights * (p * (1 - p)).clamp(min=1e-3)
            gradient = x.T @ (weights * (target - p)) - PRIOR_WEIGHT * (solved - prior)
            solved = solved + torch.linalg.solve((x.T * curvature) @ x + PRIOR_WEIGHT * torch.eye(6).double(), gradient)
        found.append((-(x @ solved)).sigmoid().view_as(u))
    return torch.cat(found, 1)


class Reliability(NamedTuple):
    """How often answers given with a confidence are right: for each of some bins of the largest probability."""

    confidence: Tensor  # mean in the bin
    accuracy: Tensor
    share: Tensor  # of all answers that are in the bin
    error: float  # expected calibration error: the mean distance of confidence and accuracy


def reliability(probabilities: Tensor, labels: Tensor, bins: int = 10) -> Reliability:
    """Of probabilities [..., classes] and labels [...], over bins of equally many answers."""
    confidence, label = probabilities.flatten(0, -2).max(-1)
    right = (label == labels.flatten()).double()
    order = confidence.argsort()
    parts = [part for part in order.tensor_split(min(bins, len(order))) if len(part)]
    mean = torch.stack([confidence[part].mean() for part in parts]).double()
    accuracy = torch.stack([right[part].mean() for part in parts])
    share = torch.tensor([len(part) / len(order) for part in parts], dtype=torch.float64)
    return Reliability(mean, accuracy, share, float((share * (mean - accuracy).abs()).sum()))


def reliability_by_calibration(traces: Traces) -> dict[str, Reliability]:
    """Of the outputs at all steps, before and after calibration with temperatures fitted to the other half of the
    rows."""
    rows, probabilities = len(traces.labels), traces.probabilities
    half = torch.empty(rows, dtype=torch.long)
    half[traces.labels.argsort(stable=True)] = torch.arange(rows) % 2
    calibrated = probabilities.clone()
    for own in (half == 0, half == 1):
        others = traces.rows(~own)
        temperatures = fit_temperatures(others.probabilities, others.labels, others.weights)
        logits = probabilities[own].clamp(min=1e-38).log()
        calibrated[own] = (logits / temperatures[:, None]).softmax(-1)
    before_end = traces.reached.diff(prepend=torch.zeros(rows, 1, dtype=torch.long)) > 0  # later ones repeat the last
    labels = traces.labels[:, None].expand_as(before_end)[before_end]
    parts = {"before calibration": probabilities, "after calibration": calibrated}
    return {name: reliability(part[before_end], labels) for name, part in parts.items()}
