"""Training runs on temporal MNIST (the paper's sections 3.3 and B.3), and the texts its figures share.

From the paper: 340 LSTM units, or 10 or 20 ConvLSTM units, one linear readout, Adam with a constant learning rate of
0.001, θ = 0.95. It does not give the kernel size (here 7 × 7), the batch size (64), the number of epochs except for
"within only 50 epochs" (LSTMs 50, ConvLSTMs 25, in the slow regime 16), or weight decay (0.1, for the ConvLSTM of 20
units 0.3, AdamW). Here gradients are clipped at norm 1, and validation and saved models use averaged weights (0.999).
55,000 of the training digits are trained on and 5,000 are held out for validation; the paper trains on all 60,000.

The paper's β is 0.165. With it our LSTM ends at the edge of the fast regime, so `BETA` is 0.1; the training "lstm-fast"
has the paper's β and no weight decay. The paper reaches its slow regime with "a higher β" that it does not give. For a
row whose label is certain, the loss with ten classes is smallest at the probability p with β = 1 / (p · log(9p /
(1 − p))): p = 0.95 at β = 0.205, and above that firing at 0.95 raises the loss. `SLOW_BETA` is just below, 0.2. The run
that switches β starts above, at 0.4, and continues with 0.1.

At quick scale networks are small and training is short; at smoke scale the digits are scikit-learn's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from rankcode import cells
from rankcode.experiments.reproduction import TRAINING, Reproduction, Setting, paper_time
from rankcode.network import Network
from rankcode.objectives import AtEnd, AtSpike, EveryStep, Objective, Switch, UntilSpike
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
    """`paper`, the number of units in the paper, at paper scale; fewer at others."""
    return place.pick(paper // 5, paper // 5, paper)


def kernel(place: Reproduction) -> int:
    return place.pick(3, 3, 7)


def training(place: Reproduction, epochs: tuple[float, float, float], records: int = 12, **settings: Any) -> Training:
    """`records`: number of validations at quick scale; at paper scale there is one after every epoch."""
    length, rows = place.pick(*epochs), place.pick(64, 32, 64)
    return replace(
        TRAINING,
        epochs=length,
        batch_size=rows,
        learning_rate=place.pick(0.01, 0.003, 0.001),
        ema_decay=place.pick(None, 0.99, 0.999),
        validate_every=place.pick(3, int(length * 55_000 / rows / records), None),
        **settings,
    )


def settings(place: Reproduction) -> dict[str, Setting]:
    """The runs by name. Slow ones are shorter: training starts in the slow regime."""
    flat, images = task(place, flat=True), task(place)
    channels, *size = images.input_shape

    def lstm(name: str, objective: Objective, **more: Any) -> Setting:
        def network() -> Network:
            return Network(cells.LSTM(flat.input_shape[0], lstm_units(place)), outputs=10)

        return Setting(f"mnist-lstm-{name}", flat, network, objective, training(place, (0.7, 4, 50), **more))

    def conv_lstm(paper: int, name: str, beta: float | Switch, epochs: tuple[float, float], **more: Any) -> Setting:
        def network() -> Network:
            units = conv_lstm_units(place, paper)
            return Network(cells.ConvLSTM(channels, units, (size[0], size[1]), kernel(place)), outputs=10)

        decay = DECAY | {"weight_decay": CONV_DECAY[paper]}
        how = training(place, (0.7, *epochs), records=6, **more, **decay)
        return Setting(f"mnist-conv-lstm-{paper}-{name}", images, network, AtSpike(THETA, beta), how)

    spike = {"first_spike_threshold": THETA}
    made = [
        lstm("rank-coded", AtSpike(THETA, BETA), select="harmonic_mean", **DECAY),
        lstm("fast", AtSpike(THETA, PAPER_BETA), select="harmonic_mean"),  # with the paper's β, and no weight decay
        lstm("conventional", AtEnd(), **spike, **DECAY),
        lstm("every-step", EveryStep(), **spike, **DECAY),
        lstm("until-spike", UntilSpike(0.99), **DECAY),
        conv_lstm(20, "switch", Switch((0, FIRST_BETA), (SWITCH_AT, BETA)), (1.6, 24)),
        own(place),
    ]
    for paper in CONV_DECAY:
        made.append(conv_lstm(paper, "fast", BETA, (1.2, 25), select="harmonic_mean"))
        made.append(conv_lstm(paper, "slow", SLOW_BETA, (0.2, 16)))
    return {setting.name.removeprefix("mnist-"): setting for setting in made}


def own(place: Reproduction) -> Setting:
    """Our own network of 0.40 million parameters, which at each step reads all that has appeared of the digit."""
    digits = task(place, augment=True)
    image, maps, units = digits.input_shape[1:], place.pick(8, 8, 32), place.pick(16, 32, 96)
    how = replace(
        training(place, (0.7, 0.2, 25), select="first_spike_accuracy", schedule="cosine"),
        batch_size=place.pick(64, 32, 256),
        learning_rate=0.002,
        precision=place.pick("float32", "float32", "bfloat16"),
        optimizer="adamw",
        weight_decay=0.01,
    )

    def network() -> Network:
        return Network(cells.Glimpses(image, digits.steps, maps, units), outputs=10)

    return Setting("mnist-own", digits, network, UntilSpike(0.99), how)


def beyond_the_paper(place: Reproduction) -> str:
    """Settings that the paper does not give, or that differ from it, in a sentence for the text of a figure."""
    decay, conv = DECAY["weight_decay"], CONV_DECAY[20]
    return (
        f"Our choices, where the paper gives none: kernels of {kernel(place)} × {kernel(place)}, weight decay "
        f"(AdamW, {decay:g}, ConvLSTM-20 {conv:g}), gradients clipped at norm 1, averaged weights, β = {SLOW_BETA:g} "
        f"for the slow regime; β is {BETA:g} in the fast one, where the paper has {PAPER_BETA:g}."
    )


def at_this_scale(place: Reproduction) -> str:
    """The differences in scale from the paper, in a sentence for the text of a figure."""
    small = " At this scale networks are small and training is short"
    return place.pick(f"{small}, and the digits are scikit-learn's, 8 × 8.", f"{small}.", "")


def share_of_frame(report: Mapping[str, Any], steps: int) -> float:
    """Share of the frame's duration that has passed at the spike, as the paper counts: from 0, without digits that
    never fire. 1 if none fires."""
    return paper_time(report, steps) / steps if report["fired"] else 1.0
