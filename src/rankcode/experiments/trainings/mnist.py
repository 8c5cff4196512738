"""Trainings on temporal MNIST (the paper's sections 3.3 and B.3), and what its figures share.

From the paper: 340 LSTM units, or 10 or 20 ConvLSTM units, one linear readout, Adam at a constant 0.001, θ = 0.95. It
names no kernel (7 × 7 here), no batch size and no epochs, but for "within only 50 epochs", and no weight decay. Here 64
digits are a batch, gradients are clipped at norm 1, weights decay by 0.1, those of the ConvLSTM of 20 units by 0.3
(AdamW), and validation and saved models have averaged weights (0.999). LSTMs are trained for 50 epochs, ConvLSTMs for
25, in the slow regime for 16. 55,000 of the training digits are trained on and 5,000 kept for validation, where the
paper trains on all 60,000.

The paper's β is 0.165. With it our LSTM ends in the fast regime, but at the edge of it, so `BETA` is 0.1; `lstm_paper`
has the paper's β, and no weight decay. Its slow regime is made with "a higher β" that it does not name. A network that
is sure of one class out of ten does best at the probability p with β = 1 / (p · log(9p / (1 − p))): p = 0.95 at β =
0.205, and above that it pays never to fire. β = 0.2 is just below: firing pays, but hardly. The run that switches
begins above, at 0.4, and goes on with 0.1.

At quick scale networks and trainings are small, and at smoke scale the digits are those of scikit-learn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from rankcode import cells
from rankcode.experiments.reproduction import Reproduction, Setting, paper_time
from rankcode.network import Network
from rankcode.objectives import AtEnd, AtSpike, Beta, EveryStep, Objective, Switch, UntilSpike
from rankcode.tasks import TemporalDigits, TemporalMNIST
from rankcode.training.config import Training

THETA = 0.95
BETA, PAPER_BETA, SLOW_BETA, FIRST_BETA = 0.1, 0.165, 0.2, 0.4
DECAY: dict[str, Any] = {"optimizer": "adamw", "weight_decay": 0.1}
CONV_DECAY = {10: 0.1, 20: 0.3}  # by the paper's number of units
SWITCH_AT = 0.25  # share of training after which β goes from FIRST_BETA to BETA


@cache
def task(place: Reproduction, flat: bool = False, augment: bool = False) -> Any:
    if place.scale == "smoke":
        return TemporalDigits(flat=flat)
    return TemporalMNIST(place.data_of("mnist"), flat=flat, augment=augment)


def lstm_units(place: Reproduction) -> int:
    return place.pick(12, 64, 340)


def conv_lstm_units(place: Reproduction, paper: int) -> int:
    """At the paper's scale the paper's 10 or 20."""
    return place.pick(paper // 5, paper // 5, paper)


def kernel(place: Reproduction) -> int:
    return place.pick(3, 3, 7)


def training(place: Reproduction, epochs: tuple[float, float, float], records: int = 12, **settings: Any) -> Training:
    """`records`: validations at quick scale; at the paper's there is one after every epoch."""
    length, rows = place.pick(*epochs), place.pick(64, 32, 64)
    return Training(
        epochs=length,
        batch_size=rows,
        learning_rate=place.pick(0.01, 0.003, 0.001),
        ema_decay=place.pick(None, 0.99, 0.999),
        validate_every=place.pick(3, int(length * 55_000 / rows / records), None),
        **settings,
    )


def lstm(place: Reproduction, objective: Objective, name: str, **settings: Any) -> Setting:
    read = task(place, flat=True)
    return Setting(
        f"mnist-lstm-{name}",
        read,
        lambda: Network(cells.LSTM(read.input_shape[0], lstm_units(place)), outputs=10),
        objective,
        training(place, (0.7, 4, 50), **settings),
    )


def lstm_fast(place: Reproduction) -> Setting:
    return lstm(place, AtSpike(THETA, BETA), "rank-coded", select="harmonic_mean", **DECAY)


def lstm_paper(place: Reproduction) -> Setting:
    """With the paper's β, and no weight decay."""
    return lstm(place, AtSpike(THETA, PAPER_BETA), "fast", select="harmonic_mean")


def lstm_conventional(place: Reproduction) -> Setting:
    return lstm(place, AtEnd(), "conventional", first_spike_threshold=THETA, **DECAY)


def lstm_every_step(place: Reproduction) -> Setting:
    return lstm(place, EveryStep(), "every-step", first_spike_threshold=THETA, **DECAY)


def lstm_until_spike(place: Reproduction) -> Setting:
    return lstm(place, UntilSpike(0.99), "until-spike", **DECAY)


def conv_lstm(
    place: Reproduction, paper: int, beta: Beta, name: str, epochs: tuple[float, float, float], **settings: Any
) -> Setting:
    read = task(place)
    channels, height, width = read.input_shape
    return Setting(
        f"mnist-conv-lstm-{paper}-{name}",
        read,
        lambda: Network(
            cells.ConvLSTM(channels, conv_lstm_units(place, paper), (height, width), kernel(place)), outputs=10
        ),
        AtSpike(THETA, beta),
        training(place, epochs, records=6, **settings, **DECAY | {"weight_decay": CONV_DECAY[paper]}),
    )


def conv_lstm_fast(place: Reproduction, paper: int) -> Setting:
    return conv_lstm(place, paper, BETA, "fast", (0.7, 1.2, 25), select="harmonic_mean")


def conv_lstm_slow(place: Reproduction, paper: int) -> Setting:
    """Shorter: the slow regime is where training begins."""
    return conv_lstm(place, paper, SLOW_BETA, "slow", (0.7, 0.2, 16))


def conv_lstm_switch(place: Reproduction, paper: int = 20) -> Setting:
    beta = Switch((0, FIRST_BETA), (SWITCH_AT, BETA))
    return conv_lstm(place, paper, beta, "switch", (0.7, 1.6, 24))


def own(place: Reproduction) -> Setting:
    """A network of our own, of 0.40 million parameters, that looks at what has appeared of a digit so far."""
    read = task(place, augment=True)
    image, maps, units = read.input_shape[1:], place.pick(8, 8, 32), place.pick(16, 32, 96)
    how = training(
        place, (0.7, 0.2, 25), select="first_spike_accuracy", schedule="cosine", optimizer="adamw", weight_decay=0.01
    )  # fmt: skip
    return Setting(
        "mnist-own",
        read,
        lambda: Network(cells.Glimpses(image, read.steps, maps, units), outputs=10),
        UntilSpike(0.99),
        replace(
            how,
            batch_size=place.pick(64, 32, 256),
            learning_rate=0.002,
            precision=place.pick("float32", "float32", "bfloat16"),
        ),
    )


def beyond_the_paper(place: Reproduction) -> str:
    """What the paper does not name, or has otherwise, in a sentence for the text of a figure."""
    decay, conv = DECAY["weight_decay"], CONV_DECAY[20]
    return (
        f"Of our choice, where the paper names nothing: kernels of {kernel(place)} × {kernel(place)}, weight decay "
        f"(AdamW, {decay:g}, ConvLSTM-20 {conv:g}), gradients clipped at norm 1, averaged weights, β = {SLOW_BETA:g} "
        f"for the slow regime; β is {BETA:g} in the fast one, where the paper has {PAPER_BETA:g}."
    )


def at_this_scale(place: Reproduction) -> str:
    """What is smaller than in the paper, in a sentence for the text of a figure."""
    digits = {"smoke": " and the digits are scikit-learn's, 8 × 8", "quick": "", "paper": ""}[place.scale]
    return "" if place.scale == "paper" else f" At this scale networks are small, trainings short{digits}."


def share_of_frame(report: Mapping[str, Any], steps: int) -> float:
    """Of the frame's duration, what had passed at the spike, as the paper counts: from 0, silent digits left out.
    1 where none fired."""
    return paper_time(dict(report), steps) / steps if report["fired"] else 1.0
