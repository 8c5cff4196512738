"""Seconds per epoch of whole trainings, rank-coded and conventional, in the same run."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from rankcode.bench.cases import CONVENTIONAL, OF_IMAGES, CellName, Shape
from rankcode.cells import GRU, LSTM
from rankcode.experiments.tone_sweeps import ToneSweeps
from rankcode.objectives import AtEnd, AtSpike, Objective
from rankcode.tasks import SpeechCommands, TemporalDigits, TemporalMNIST
from rankcode.training import Training, fit

RANK_CODED = "rank-coded"
OF_TENSORS, OF_ROWS = LOADED = "rank-coded, DataLoader of tensors", "rank-coded, DataLoader of rows"


class _InPyTorch:
    """Whole sequences with PyTorch's own layer on a CPU too, where `rankcode.cells` have a faster one."""

    def run_layers(self: Any, kernel: Any, inputs: Tensor, state: Sequence[Tensor]) -> list[Tensor]:
        weights = [part for layer in range(self.num_layers) for part in self.weights(layer)]
        return self.run_kernel(kernel, inputs, state, weights)


class _LSTM(_InPyTorch, LSTM):
    pass


class _GRU(_InPyTorch, GRU):
    pass


@dataclass(frozen=True)
class Epoch:
    seconds: float  # of training, without validation
    mean_steps: float  # read in training
    accuracy: float  # on validation data


def epochs_task(cell: CellName, data: str | None, batch_size: int) -> Any:
    """Speech Commands in a folder or, for cells of images, temporal MNIST; without a folder, generated sounds of the
    same shape, at least two batches of them, or scikit-learn's digits."""
    if cell in OF_IMAGES:
        return TemporalDigits() if data is None else TemporalMNIST(data)
    return ToneSweeps(rows=max(960, 2 * batch_size)) if data is None else SpeechCommands(data)


def with_sizes_of(task: Any, shape: Shape) -> Shape:
    """The shape, with the inputs, classes and steps that the task has."""
    inputs, steps = math.prod(task.input_shape), getattr(task, "steps", shape.steps)
    return replace(shape, steps=steps, input_size=inputs, num_classes=task.num_classes)


def measure_epochs(
    shape: Shape, task: Any, epochs: int, device: str, progress: bool = True, workers: int | None = None
) -> dict[str, list[Epoch]]:
    """Train with rank coding on the fastest engine, and conventionally with PyTorch's own layer, or a loop over the
    steps for cells that PyTorch has no layer for. β is that of the fast regime. With `workers`, also train with rank
    coding from DataLoaders of the same rows that have so many: one of a TensorDataset, and one of a dataset of rows.
    `shape` has the sizes of the task: see `with_sizes_of`.

    The time of a conventional epoch does not change through training, so this has a quarter of the epochs, but at least
    4 of them.
    """
    settings = Training(
        epochs=epochs, batch_size=shape.batch_size, learning_rate=0.001, schedule="constant", max_grad_norm=0.25,
        device=device, progress=progress,
    )  # fmt: skip
    few = replace(settings, epochs=min(epochs, max(4, epochs // 4)), engine="whole")
    found, beta = {}, 0.1 if shape.cell in OF_IMAGES else 0.2
    runs: list[tuple[str, Any, Objective, Training]] = [
        (RANK_CODED, task, AtSpike(0.95, beta), settings),
        (CONVENTIONAL, task, AtEnd(), few),
    ]
    if workers is not None:
        rows = [part for part in next(task.train.scan(task.train.size, "cpu")) if part is not None]
        for name, dataset in ((OF_TENSORS, TensorDataset(*rows)), (OF_ROWS, list(zip(*rows, strict=True)))):
            loader = _loader(dataset, shape.batch_size, workers, device)
            data = SimpleNamespace(train=loader, validation=task.validation)
            runs.append((name, data, AtSpike(0.95, beta), settings))
    for name, data, objective, training in runs:
        if progress:
            print(f"batch size {shape.batch_size}, {name}", file=sys.stderr)
        torch.manual_seed(0)
        network = shape.network()
        if name == CONVENTIONAL:
            for part in network.cell.modules():
                part.__class__ = {LSTM: _LSTM, GRU: _GRU}.get(type(part), type(part))
        records = fit(network, data, objective, training).records
        found[name] = [
            Epoch(each["training_seconds"], each["training"]["mean_steps"], each["validation"]["accuracy"])
            for each in records
        ]
    return found


def _loader(dataset: Any, batch_size: int, workers: int, device: str) -> DataLoader:
    return DataLoader(
        dataset,
        batch_size,
        shuffle=True,
        num_workers=workers,
        pin_memory=device.startswith("cuda"),
        persistent_workers=workers > 0,
    )


def compiled(epochs: Sequence[Epoch]) -> Sequence[Epoch]:
    """Without the first epoch, in which kernels are compiled."""
    return epochs[1:] or epochs


def conventional_seconds(runs: Mapping[str, Sequence[Epoch]]) -> float:
    """Median seconds of a conventional epoch."""
    return statistics.median(each.seconds for each in compiled(runs[CONVENTIONAL]))


def epochs_table(found: Mapping[int, Mapping[str, Sequence[Epoch]]]) -> str:
    """The measurements by batch size, as text."""
    loaded = any(OF_ROWS in runs for runs in found.values())
    lines = [f"{'batch size':<11} {'conventional':>14} {'rank-coded':>12} {'ratio':>6} {'steps read':>11}"]
    lines[0] += "  DataLoader ÷ arrays: of tensors, of rows" * loaded
    for batch_size, runs in found.items():
        usual, coded = conventional_seconds(runs), compiled(runs[RANK_CODED])
        mean = statistics.fmean(each.seconds for each in coded)
        length = max(each.mean_steps for each in runs[CONVENTIONAL])
        read = statistics.fmean(each.mean_steps for each in coded) / length
        lines.append(f"{batch_size:<11} {usual:12.3f} s {mean:10.3f} s {mean / usual:6.2f} {100 * read:9.0f} %")
        if loaded:
            times = [statistics.fmean(each.seconds for each in compiled(runs[name])) for name in LOADED]
            lines[-1] += f"  {times[0] / mean:31.2f} {times[1] / mean:8.2f}"
    return "\n".join(lines)
