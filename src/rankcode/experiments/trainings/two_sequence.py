"""Trainings on the 2-sequence problem, with the paper's settings (section B.2: an LSTM of 125 units and one sigmoid
output, Adam with learning rate 0.0003, batches of 128) and with our own, chosen on validation data."""

from __future__ import annotations

from dataclasses import replace

from rankcode import cells
from rankcode.experiments.reproduction import TRAINING, Reproduction, Setting
from rankcode.network import Network
from rankcode.objectives import AtEnd, AtSpike, EveryStep, Objective, UntilSpike
from rankcode.tasks import TwoSequence

UNITS = 125
DRAWN = ("rank-coded-0.95", "conventional")  # the trainings whose spike times Fig. 2 draws


def task(place: Reproduction) -> TwoSequence:
    return TwoSequence(validation_rows=place.pick(200, 2_000, 2_000), test_rows=place.pick(500, 20_000, 1_000_000))


def training(place: Reproduction, objective: Objective, name: str, own: bool = False) -> Setting:
    """`own`: a cosine schedule, larger batches, clipped gradients and averaged weights."""
    if own:
        how = replace(
            TRAINING,
            batch_size=256,
            learning_rate=place.pick(0.01, 0.002, 0.002),
            schedule="cosine",
            ema_decay=place.pick(0.9, 0.99, 0.999),
        )
    else:
        how = replace(TRAINING, learning_rate=place.pick(0.01, 0.001, 0.0003), max_grad_norm=None)
    every, examples = place.pick(5, 50, 100), place.pick(5_120, 200_000, 2_000_000)
    return Setting(
        f"two-sequence-{name}",
        task(place),
        lambda: Network(cells.LSTM(1, place.pick(16, UNITS, UNITS)), outputs=1),
        objective,
        replace(how, examples=examples, finish_with="last", validate_every=every),
        keep_histograms=name in DRAWN,
    )


def rank_coded(place: Reproduction, threshold: float = 0.95) -> Setting:
    return training(place, AtSpike(threshold), f"rank-coded-{threshold:g}")


def conventional(place: Reproduction) -> Setting:
    return training(place, AtEnd(), "conventional")


def own_rank_coded(place: Reproduction) -> Setting:
    """Trained with a higher θ than it is evaluated at."""
    return training(place, AtSpike(0.99), "rank-coded-own", own=True)


def own_conventional(place: Reproduction) -> Setting:
    return training(place, AtEnd(), "conventional-own", own=True)


def every_step(place: Reproduction) -> Setting:
    return training(place, EveryStep(), "every-step")


def until_spike(place: Reproduction) -> Setting:
    return training(place, UntilSpike(0.99), "until-spike")
