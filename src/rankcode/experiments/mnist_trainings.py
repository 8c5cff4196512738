"""Trainings on temporal MNIST (the paper's sections 3.3 and B.3), and what its figures share.

From the paper: 340 LSTM units, or 10 or 20 ConvLSTM units, one linear readout, Adam at a constant 0.001, θ = 0.95, β =
0.165. It names no kernel (3 × 3 here), no batch size and no epochs, but for "within only 50 epochs". From
results/temporal_mnist: 64 digits a batch, gradients clipped at norm 1, validation and saved models with averaged
weights (0.999), and 50 epochs for the LSTM. ConvLSTMs have 60, in the slow regime 40. 55,000 of the training digits
are trained on and 5,000 kept for validation, where the paper trains on all 60,000.

The paper's slow regime is made with "a higher β" that it does not name. A network that is sure of one class out of ten
does best at the probability p with β = 1 / (p · log(9p / (1 − p))): p = 0.95 at β = 0.205, and above that it pays
never to fire. β = 0.2 is just below: firing pays, but hardly. The run that switches begins above, at 0.4, and goes on
with 0.165.

At quick scale networks and trainings are small, and at smoke scale the digits are those of scikit-learn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from rankcode import cells
from rankcode.experiments.reproduction import Number, Reproduction, Setting, Trained, over_seeds, paper_time
from rankcode.network import Network
from rankcode.objectives import AtEnd, AtSpike, Beta, EveryStep, Objective, Switch, UntilSpike
from rankcode.plots import COLOURS, plain
from rankcode.tasks import TemporalDigits, TemporalMNIST
from rankcode.training_config import Training

THETA = 0.95
BETA, SLOW_BETA, FIRST_BETA = 0.165, 0.2, 0.4
SWITCH_AT = 0.25  # share of training after which β goes from FIRST_BETA to BETA


@cache
def task(place: Reproduction, flat: bool = False) -> Any:
    return TemporalDigits(flat=flat) if place.scale == "smoke" else TemporalMNIST(place.data_of("mnist"), flat=flat)


def lstm_units(place: Reproduction) -> int:
    return place.pick(12, 64, 340)


def conv_lstm_units(place: Reproduction, paper: int) -> int:
    """At the paper's scale the paper's 10 or 20."""
    return place.pick(paper // 5, paper // 5, paper)


def training(place: Reproduction, epochs: tuple[float, float, float], records: int = 12, **settings: Any) -> Training:
    """`records`: validations at quick scale; at the paper's there is one after every epoch."""
    length, rows = place.pick(*epochs), place.pick(64, 32, 64)
    return Training(
        epochs=length,
        rows=rows,
        rate=place.pick(0.01, 0.003, 0.001),
        average=place.pick(None, 0.99, 0.999),
        validate_every=place.pick(3, int(length * 55_000 / rows / records), None),
        **settings,
    )


def lstm(place: Reproduction, objective: Objective, name: str, **settings: Any) -> Setting:
    read = task(place, flat=True)
    return Setting(
        f"mnist-lstm-{name}",
        read,
        lambda: Network(cells.LSTM(read.features[0], lstm_units(place)), outputs=10),
        objective,
        training(place, (0.7, 1, 50), **settings),
    )


def lstm_fast(place: Reproduction) -> Setting:
    return lstm(place, AtSpike(THETA, BETA), "fast", select="harmonic_mean")


def lstm_conventional(place: Reproduction) -> Setting:
    return lstm(place, AtEnd(), "conventional", first_spike_threshold=THETA)


def lstm_every_step(place: Reproduction) -> Setting:
    return lstm(place, EveryStep(), "every-step", first_spike_threshold=THETA)


def lstm_until_spike(place: Reproduction) -> Setting:
    return lstm(place, UntilSpike(0.99), "until-spike")


def conv_lstm(
    place: Reproduction, paper: int, beta: Beta, name: str, epochs: tuple[float, float, float], **settings: Any
) -> Setting:
    read = task(place)
    channels, height, width = read.features
    return Setting(
        f"mnist-conv-lstm-{paper}-{name}",
        read,
        lambda: Network(cells.ConvLSTM(channels, conv_lstm_units(place, paper), (height, width)), outputs=10),
        AtSpike(THETA, beta),
        training(place, epochs, records=6, **settings),
    )


def conv_lstm_fast(place: Reproduction, paper: int) -> Setting:
    return conv_lstm(place, paper, BETA, "fast", (0.7, 0.2, 60), select="harmonic_mean")


def conv_lstm_slow(place: Reproduction, paper: int) -> Setting:
    """Shorter: the slow regime is where training begins."""
    return conv_lstm(place, paper, SLOW_BETA, "slow", (0.7, 0.2, 40))


def conv_lstm_switch(place: Reproduction, paper: int = 20) -> Setting:
    beta = Switch((0, FIRST_BETA), (SWITCH_AT, BETA))
    return conv_lstm(place, paper, beta, "switch", (0.7, 0.3, 80))


def share_of_frame(report: Mapping[str, Any], steps: int) -> float:
    """Of the frame's duration, what had passed at the spike, as the paper counts: from 0, silent digits left out.
    1 where none fired."""
    return paper_time(dict(report), steps) / steps if report["fired"] else 1.0


def accuracy(what: str, found: Sequence[Mapping[str, Any]], paper: float | str | None = None, note: str = "") -> Number:
    mean, spread = over_seeds([100 * report["accuracy"] for report in found])
    return Number(what, paper, mean, "%", spread, note)


def time(what: str, found: Sequence[Mapping[str, Any]]) -> Number:
    mean, spread = over_seeds([report["mean_steps"] for report in found])
    return Number(f"{what}: mean steps read", None, mean, "steps", spread, "silent digits in full")


def cost(runs: Mapping[str, Sequence[Trained]]) -> list[Number]:
    """What each training cost."""
    numbers = []
    for name, trained in runs.items():
        share, spread = over_seeds([100 * each.share_read for each in trained])
        numbers.append(Number(f"{name}: steps read in training ÷ steps there were", None, share, "%", spread))
        seconds, spread = over_seeds([each.seconds for each in trained])
        numbers.append(Number(f"{name}: time of training", None, seconds, "s", spread, "validation included"))
    return numbers


def cost_curves(runs: Mapping[str, Sequence[Trained]]) -> dict[str, Any]:
    """The same for each seed."""
    return {
        "share of steps read in training": {name: [each.share_read for each in runs[name]] for name in runs},
        "seconds of training": {name: [each.seconds for each in runs[name]] for name in runs},
    }


def through_training(trained: Trained) -> dict[str, list[float]]:
    """First-spike inference on the validation digits."""
    size, records = trained.setting.task.train.size, trained.records
    return {
        "epochs": [record["examples"] / size for record in records],
        "accuracy": [record["first_spike"]["accuracy"] for record in records],
        "mean_steps": [record["first_spike"]["mean_steps"] for record in records],
    }


def draw_through_training(time_axes: Any, accuracy_axes: Any, histories: Mapping[str, Mapping[str, Any]]) -> None:
    """Mean steps in one panel, accuracy in the other, a line for each training."""
    for (name, history), colour in zip(histories.items(), COLOURS, strict=False):
        line = {"color": colour, "lw": 1.6, "marker": "." if len(history["epochs"]) < 25 else "", "label": name}
        time_axes.plot(history["epochs"], history["mean_steps"], **line)
        accuracy_axes.plot(history["epochs"], [100 * each for each in history["accuracy"]], **line)
    time_axes.set(xlabel="epochs", ylabel="mean steps read", ylim=(0, 10.4), title="first-spike time")
    accuracy_axes.set(xlabel="epochs", ylabel="accuracy (%)", title="first-spike accuracy")
    accuracy_axes.set_ylim(*accuracy_range([history["accuracy"] for history in histories.values()]))
    for axes in (time_axes, accuracy_axes):
        axes.set_xlim(left=0)
        plain(axes)


def accuracy_range(columns: Sequence[Sequence[float]]) -> tuple[float, float]:
    """From somewhat below the accuracy of the worse trainings, once they are past their beginning, to the best."""
    settled = [min(column[len(column) // 4 :]) for column in columns]
    highest = 100 * max(max(column) for column in columns)
    lowest = max(0.0, min(100 * min(settled), highest - 2))
    margin = 0.08 * (highest - lowest)
    return max(0.0, lowest - margin), min(100.4, highest + margin)
