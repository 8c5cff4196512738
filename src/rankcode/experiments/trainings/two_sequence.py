"""Training runs on the 2-sequence problem, with the paper's settings (section B.2: an LSTM of 125 units and one sigmoid
output, Adam with learning rate 0.0003, batches of 128) and with our own, chosen on validation data."""

from __future__ import annotations

from dataclasses import replace

from rankcode import cells
from rankcode.experiments.reproduction import TRAINING, Reproduction, Setting
from rankcode.network import Network
from rankcode.objectives import AtEnd, AtSpike, EveryStep, Objective, UntilSpike
from rankcode.tasks import TwoSequence
from rankcode.training.config import Training

UNITS = 125
THRESHOLDS = (0.85, 0.9, 0.95, 0.99, 0.999)  # θ in training, compared in Fig. 7
DRAWN = ("rank-coded-0.95", "conventional")  # the runs whose spike times Fig. 2 draws


def task(place: Reproduction) -> TwoSequence:
    return TwoSequence(validation_rows=place.pick(200, 2_000, 2_000), test_rows=place.pick(500, 20_000, 1_000_000))


def settings(place: Reproduction) -> dict[str, Setting]:
    """The runs by name. "own": a cosine schedule, larger batches, clipped gradients and averaged weights."""
    common = replace(
        TRAINING,
        examples=place.pick(2_560, 200_000, 2_000_000),
        finish_with="last",
        validate_every=place.pick(5, 50, 100),
    )
    paper = replace(common, learning_rate=place.pick(0.01, 0.001, 0.0003), max_grad_norm=None)
    own = replace(
        common,
        batch_size=256,
        learning_rate=place.pick(0.01, 0.002, 0.002),
        schedule="cosine",
        ema_decay=place.pick(0.9, 0.99, 0.999),
    )
    made: dict[str, tuple[Objective, Training]] = {
        **{f"rank-coded-{theta:g}": (AtSpike(theta), paper) for theta in THRESHOLDS},
        "conventional": (AtEnd(), paper),
        "rank-coded-own": (AtSpike(0.99), own),  # a higher θ than it is evaluated at
        "conventional-own": (AtEnd(), own),
        "every-step": (EveryStep(), paper),
        "until-spike": (UntilSpike(0.99), paper),
    }

    def network() -> Network:
        return Network(cells.LSTM(1, place.pick(16, UNITS, UNITS)), outputs=1)

    return {
        name: Setting(f"two-sequence-{name}", task(place), network, *parts, keep_histograms=name in DRAWN)
        for name, parts in made.items()
    }
