"""Training runs on continuous sequence spotting, with the paper's settings (section B.1: an LSTM of 125 units and one
sigmoid output, Adam with learning rate 0.0003, batches of 128) and with our own, chosen on validation data. Also
measures spike times relative to the earliest step at which the answer is certain."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rankcode import cells
from rankcode.experiments.reproduction import TRAINING, Reproduction, Setting, Trained
from rankcode.inference import decide
from rankcode.network import Network
from rankcode.objectives import AtEnd, AtSpike, EveryStep, Objective, UntilSpike
from rankcode.rules import Rule
from rankcode.tasks import Spotting
from rankcode.training.config import Training

UNITS = 125
OWN_THETA = 0.98  # θ at which the network with our own setting is evaluated; it is trained with 0.95


def task(place: Reproduction) -> Spotting:
    return Spotting(validation_rows=place.pick(200, 2_000, 2_000), test_rows=place.pick(500, 20_000, 100_000))


def settings(place: Reproduction) -> dict[str, Setting]:
    """The runs by name. "own" is rank coding with β > 0, a cosine schedule and averaged weights."""
    paper = replace(
        TRAINING,
        examples=place.pick(2_560, 200_000, 1_500_000),
        learning_rate=place.pick(0.01, 0.001, 0.0003),
        max_grad_norm=None,
        finish_with="last",
        validate_every=place.pick(10, 50, 50),
    )
    own = replace(
        paper, learning_rate=0.002, schedule="cosine", ema_decay=place.pick(0.9, 0.99, 0.999), max_grad_norm=1.0
    )  # fmt: skip
    made: dict[str, tuple[Objective, Training]] = {
        "rank-coded": (AtSpike(0.95), paper),
        "conventional": (AtEnd(), paper),
        "every-step": (EveryStep(), paper),
        "until-spike": (UntilSpike(0.99), paper),
        "rank-coded-own": (AtSpike(0.95, beta=0.05), own),
    }

    def network() -> Network:
        return Network(cells.LSTM(1, place.pick(16, UNITS, UNITS)), outputs=1)

    return {name: Setting(f"spotting-{name}", task(place), network, *parts) for name, parts in made.items()}


def seconds(trained: Trained) -> float:
    """Seconds of training, without validation."""
    return sum(record["training_seconds"] for record in trained.records)


def examples(task: Spotting, positive: int = 9, negative: int = 6) -> Tensor:
    """The first sequences drawn of each class, positive ones first, sorted by their earliest step: [rows, steps, 1]."""
    drawn = task.draw(50 * (positive + negative), torch.Generator().manual_seed(1)).inputs
    found, earliest = earliest_steps(drawn, task.run_length)
    chosen = found.nonzero()[:positive, 0]
    chosen = chosen[earliest[chosen].argsort()]
    return torch.cat([drawn[chosen], drawn[~found][:negative]])


def window_ends(inputs: Tensor, length: int) -> Tensor:
    """Steps at which a run of equal values reaches `length`: bool [rows, steps]. A longer run counts once."""
    windows = inputs[..., 0].unfold(1, length, 1)  # [rows, steps − length + 1, length]
    equal = windows.amin(-1) == windows.amax(-1)
    equal[:, 1:] &= ~equal[:, :-1]
    return torch.cat([equal.new_zeros(len(equal), length - 1), equal], 1)


def earliest_steps(inputs: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Whether each sequence is positive, and the first step at which that is certain (0 for negative ones): [rows]."""
    ends = window_ends(inputs, length)
    positive = ends.any(1)
    return positive, torch.where(positive, ends.int().argmax(1) + 1, 0)


def spike_times(trained: Trained, rule: Rule) -> dict[str, Any]:
    """First spikes on the test split relative to the earliest possible step, as JSON."""
    return trained.kept(f"last spike times {rule!r}", "test", lambda: measure_spike_times(trained, rule))


def measure_spike_times(trained: Trained, rule: Rule) -> dict[str, Any]:
    task, network = trained.setting.task, trained.model("last")
    delays, positives, fired, negative = [], 0, 0, 0
    for inputs, _, _ in task.test.scan(1024, trained.device):
        answer = decide(network, inputs, rule=rule)
        positive, earliest = earliest_steps(inputs, task.run_length)
        delays.append((answer.steps - earliest)[positive & answer.fired & (answer.label == 1)].cpu())
        positives += int(positive.sum())
        fired += int(answer.fired.sum())
        negative += int((answer.fired & (answer.label == 0)).sum())
    delay, count = torch.cat(delays).unique(return_counts=True)
    return {
        "negative share of first spikes": negative / fired if fired else None,
        "delay of positive spikes": delay.tolist(),
        "share of positive sequences": (count.double() / max(positives, 1)).tolist(),
    }


def share_at(times: dict[str, Any], delay: int) -> float:
    """Share of the positive sequences with a positive spike this many steps after the earliest possible one."""
    pairs = zip(times["delay of positive spikes"], times["share of positive sequences"], strict=True)
    return dict(pairs).get(delay, 0.0)


def mean_delay(times: dict[str, Any]) -> float:
    """Mean delay over the positive sequences with a positive spike; NaN if there are none."""
    delays, shares = times["delay of positive spikes"], times["share of positive sequences"]
    total = sum(shares)
    return sum(d * s for d, s in zip(delays, shares, strict=True)) / total if total else float("nan")


def ideal_steps(task: Spotting, threshold: float) -> float:
    """Mean steps that an observer with the exact posterior reads on the test split."""
    total = 0
    for inputs, _, _ in task.test.scan(10_000, "cpu"):
        certain = task.posterior(inputs).amax(-1) >= threshold
        certain[:, -1] = True
        total += int((certain.int().argmax(1) + 1).sum())
    return total / task.test_rows
