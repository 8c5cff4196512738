"""Training runs on Speech Commands with the paper's settings (sections 3.4 and B.4): an LSTM of 128 units, a readout
layer of 32, Adam with learning rate 0.001, batches of 512, gradients clipped at norm 0.25.

The smoke scale, which needs no data, uses `ToneSweeps` instead: generated sounds that pass through the same front end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

from rankcode.experiments.reproduction import TRAINING, Reproduction, Setting
from rankcode.experiments.tone_sweeps import CONTEXT, ToneSweeps
from rankcode.network import Network
from rankcode.objectives import AtEnd, AtSpike, EveryStep, Objective, UntilSpike
from rankcode.tasks import SpeechCommands
from rankcode.training.standard_network import standard_network

THETA = 0.95
MAIN = 0.2  # the β the paper recommends
RANK_CODED, CONVENTIONAL = "rank-coded", "conventional"
FRAME = 10  # ms from one step to the next
# Training, validation and test recordings of the published releases.
RELEASES = {(51_088, 6_798, 6_835): " v0.01", (84_843, 9_981, 11_005): " v0.02"}


class Run(NamedTuple):
    """The objective of a training, and its β."""

    kind: str
    beta: float

    def __str__(self) -> str:
        return f"{self.kind}, β = {self.beta:g}"


@cache  # one copy of the data for all runs
def task(place: Reproduction, augment: bool = False) -> SpeechCommands | ToneSweeps:
    if place.scale == "smoke":
        return ToneSweeps(augment=augment)
    return SpeechCommands(data=place.data_of("speech-commands"), augment=augment)


def betas(place: Reproduction) -> tuple[float, ...]:
    return place.pick((0.0, 0.2, 0.4), (0.0, 0.2, 0.4), (0.0, 0.2, 0.3, 0.4))


def setting(place: Reproduction, objective: Objective, name: str, augment: bool = False) -> Setting:
    training = replace(
        TRAINING,
        epochs=place.pick(6, 2, 300),
        batch_size=place.pick(60, 128, 512),
        learning_rate=place.pick(0.03, 0.003, 0.001),
        max_grad_norm=0.25,
        validate_every=place.pick(None, 100, None),
        select="first_spike_accuracy",
    )
    units, hidden = place.pick((12, 12), (32, 32), (128, 32))
    data = task(place, augment)

    def network() -> Network:
        return standard_network(data, "lstm", units, readout_layer_size=hidden)

    if augment:
        training, name = replace(training, ema_decay=place.pick(0.5, 0.999, 0.999)), f"{name}-augmented"
    return Setting(f"speech-{name}", data, network, objective, training)


def of(place: Reproduction, run: Run, augment: bool = False) -> Setting:
    """Rank-coded or conventional training with a β. The best model of either is selected by first-spike accuracy."""
    objective = AtSpike(THETA, run.beta) if run.kind == RANK_CODED else AtEnd(run.beta)
    return setting(place, objective, f"{run.kind}-{run.beta:g}", augment)


def every_step(place: Reproduction) -> Setting:
    return setting(place, EveryStep(), "every-step")


def until_spike(place: Reproduction, threshold: float) -> Setting:
    return setting(place, UntilSpike(threshold), f"until-spike-{threshold:g}")


def own(place: Reproduction) -> Setting:
    """Our own network of 0.47 million parameters."""
    base, units = setting(place, UntilSpike(0.999), "own", augment=True), place.pick(12, 32, 168)
    how = replace(
        base.training, epochs=place.pick(6, 2, 200), learning_rate=place.pick(0.03, 0.003, 0.004), schedule="cosine",
        optimizer="adamw", weight_decay=0.05,
    )  # fmt: skip

    def network() -> Network:
        return standard_network(base.task, "gru", units, num_layers=2, readout_layer_size=32)

    return replace(base, name="speech-own", network=network, training=how)


def heard(report: Mapping[str, Any]) -> float:
    """Mean milliseconds of audio that answers depended on, look-ahead included."""
    return FRAME * report["mean_steps"] if report["milliseconds"] is None else report["milliseconds"]


def at_frame(report: Mapping[str, Any]) -> float:
    """Mean time in ms of the frames at which answers came, without look-ahead."""
    return FRAME * (report["mean_steps"] - 1 + CONTEXT)


def what_was_trained(place: Reproduction) -> str:
    """The data and the network, in two sentences, for the text of a figure."""
    each = setting(place, AtEnd(), "")
    data = "Stand-in data, tones that rise, fall or stay, not speech: these numbers only show that the code runs."
    if place.scale != "smoke":
        data = f"Speech Commands{release(task(place))} (the paper: v0.02)."
    cell = each.network().cell
    return (
        f"{data} An LSTM of {cell.hidden_size} units (the paper: 128), trained for {each.training.epochs:g} epochs "
        "(the paper: 1,000), the best model by validation accuracy at the first spike, θ = 0.95."
    )


def release(speech: SpeechCommands | ToneSweeps) -> str:
    """The release of Speech Commands with as many recordings, or their number."""
    sizes = speech.train.size, speech.validation.size, speech.test.size
    return RELEASES.get(sizes, ", {:,} training, {:,} validation and {:,} test recordings".format(*sizes))
