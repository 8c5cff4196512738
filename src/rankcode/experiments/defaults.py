"""The study behind the defaults: settings compared by the area under the speed–accuracy curve (docs/choosing.md).

Only the training file of a set is read. Each seed splits its rows into 56 % to train on, 14 % to select weights on and
30 % to measure on.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import torch

from rankcode.data.downloads import data_folder
from rankcode.data.series_files import Options, read_series
from rankcode.experiments.reproduction import Reproduction
from rankcode.metrics import evaluate, tradeoff
from rankcode.objectives import AtSpike, Objective, UntilSpike
from rankcode.saving.files import write_whole
from rankcode.tasks import OwnData
from rankcode.training.config import Training
from rankcode.training.loop import fit
from rankcode.training.recipes import PAPER
from rankcode.training.standard_network import CellName, standard_network

MEASURES = ("area", "accuracy", "earliness", "fired", "cost")
SETS = (
    "ItalyPowerDemand", "ECG200", "JapaneseVowels", "SyntheticControl", "TwoLeadECG", "MoteStrain", "BasicMotions",
    "Plane", "GunPoint", "UMD", "ArrowHead", "Trace", "UWaveGestureLibrary",
)  # fmt: skip


class Choice(NamedTuple):
    """Settings to compare; the default for fewer than 1,000 rows."""

    cell: CellName = "gru"
    hidden_size: int = 64
    num_layers: int = 1
    objective: Objective = UntilSpike(0.95)
    training: Training = Training()


CHOICES = {
    "the default": Choice(),
    "the paper's recipe": Choice("lstm", 125, objective=AtSpike(0.95), training=PAPER),
    "no noise": Choice(training=Training(input_noise=0.0)),
    "noise 0.1": Choice(training=Training(input_noise=0.1)),
    "noise 0.3": Choice(training=Training(input_noise=0.3)),
    "learning rate 0.02": Choice(training=Training(learning_rate=0.02)),
    "learning rate 0.005": Choice(training=Training(learning_rate=0.005)),
    "two layers": Choice(num_layers=2),
    "batch size 16": Choice(training=Training(batch_size=16)),
    "LSTM": Choice("lstm"),
}


def measure(file: Path, choice: Choice, seed: int, device: str = "auto", progress: bool = False) -> dict[str, float]:
    """Train with a choice on a file of series, and measure on the rows that were set aside."""
    series = read_series(file, Options(), alone=True)["train"]
    task = OwnData.of(series.rows(), series.labels, validation_share=0.2, test_share=0.3, split_seed=seed)
    torch.manual_seed(seed)
    network = standard_network(task, choice.cell, choice.hidden_size, choice.num_layers)
    training = replace(choice.training, seed=seed, device=device, progress=progress)
    fit(network, task, choice.objective, training)
    report, area = evaluate(network, task), tradeoff(network, task).area
    cost = 1 - report.accuracy + 0.5 * report.earliness
    return dict(zip(MEASURES, (area, report.accuracy, report.earliness, report.fired, cost), strict=True))


def compare(place: Reproduction, output: Path) -> str:
    """Measure the choices of a scale, keep each measurement in `output`, and return the table. Existing measurements
    are not repeated."""
    folder = Path(place.data_of("ucr") or data_folder() / "ucr")
    names = tuple(CHOICES)[: place.pick(1, 3, len(CHOICES))]
    kept = json.loads(output.read_text()) if output.exists() else {}
    for seed in range(place.pick(1, 1, 5)):
        for name in SETS[: place.pick(1, 3, len(SETS))]:
            files = sorted(folder.glob(f"{name}/{name}_TRAIN.*"))
            if not files:
                raise ValueError(f"{folder} holds no training file of {name}: give data=, a folder with ucr in it")
            for choice in names:
                if (key := f"{choice} | {name} | seed {seed}") not in kept:
                    kept[key] = measure(files[0], CHOICES[choice], seed, place.device, place.progress)
                    output.parent.mkdir(parents=True, exist_ok=True)
                    write_whole(output, json.dumps(kept, indent=1, ensure_ascii=False).encode())
    return table(kept, names)


def table(kept: Mapping[str, Mapping[str, float]], choices: Iterable[str]) -> str:
    """Means over sets and seeds, as Markdown."""
    lines = [f"| | {' | '.join(MEASURES)} (α = 0.5) |", "|---" * (1 + len(MEASURES)) + "|"]
    for choice in choices:
        found: Sequence[Mapping[str, float]] = [kept[key] for key in kept if key.startswith(f"{choice} | ")]
        lines.append(f"| {choice} | {' | '.join(f'{fmean(each[name] for each in found):.3f}' for name in MEASURES)} |")
    return "\n".join(lines)
