"""Trainings on the 2-sequence problem, with the paper's settings (section B.2): an LSTM of 125 units and one sigmoid
output, Adam at 0.0003, 128 sequences a batch."""

from __future__ import annotations

from rankcode import cells
from rankcode.experiments.reproduction import Reproduction, Setting
from rankcode.network import Network
from rankcode.objectives import AtEnd, AtSpike, EveryStep, Objective, UntilSpike
from rankcode.tasks import TwoSequence
from rankcode.training_config import Training

UNITS = 125


def task(place: Reproduction) -> TwoSequence:
    return TwoSequence(validation_rows=place.pick(200, 2_000, 2_000), test_rows=place.pick(500, 20_000, 1_000_000))


def training(place: Reproduction, objective: Objective, name: str) -> Setting:
    examples = place.pick(5_120, 200_000, 2_000_000)
    settings = Training(
        examples=examples, rows=128, rate=place.pick(0.01, 0.001, 0.0003), clip=None, finish_with="last",
        validate_every=place.pick(5, 50, 100),
    )  # fmt: skip
    return Setting(
        f"two-sequence-{name}",
        task(place),
        lambda: Network(cells.LSTM(1, place.pick(16, UNITS, UNITS)), outputs=1),
        objective,
        settings,
    )


def rank_coded(place: Reproduction, threshold: float = 0.95) -> Setting:
    return training(place, AtSpike(threshold), f"rank-coded-{threshold:g}")


def conventional(place: Reproduction) -> Setting:
    return training(place, AtEnd(), "conventional")


def every_step(place: Reproduction) -> Setting:
    return training(place, EveryStep(), "every-step")


def until_spike(place: Reproduction) -> Setting:
    return training(place, UntilSpike(0.99), "until-spike")
