"""`rankcode train` and `rankcode resume`."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from dataclasses import dataclass, field, fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from rankcode.cli.left_out import say_left_out
from rankcode.cli.names import ObjectiveName, named_objective, named_task, read_beta
from rankcode.network import Network
from rankcode.objectives import Objective
from rankcode.rules import Never, Threshold
from rankcode.saving.run_folder import RunFolder, free_folder
from rankcode.tasks import TASKS
from rankcode.training.loop import Training, fit
from rankcode.training.standard_network import HIDDEN_SIZES, CellName, standard_network


@dataclass(frozen=True)
class Train:
    """Train a network on a task, or on data of your own, and keep the run in a folder.

    Tasks: spotting, two-sequence, temporal-digits, temporal-mnist, speech-commands.
    """

    task: str
    """What to learn: a task by name, or the path of your own data."""
    data: str | None = None
    """Where the data of temporal-mnist or speech-commands is. Default: where rankcode data puts it."""
    augment: bool = False
    """Alter the training data: recordings shifted, louder or softer, noisy, with parts masked; digits of temporal-mnist
    turned, stretched and moved."""
    skip_bad: bool = False
    """Leave out files and rows that cannot be used, and say which."""
    objective: ObjectiveName = "at-spike"
    """at-spike is rank coding, at-end is conventional training."""
    threshold: float | None = None
    """θ at which an output fires. Default: 0.95, and a membrane of 1 for spiking cells."""
    beta: str = "0"
    """Weight of the entropy that is rewarded: a number, or a schedule such as 0:0.4,0.5:0.165 (0.4 at first,
    0.165 from half of the training on)."""
    cell: CellName = "lstm"
    """Recurrent cell."""
    hidden_size: int | None = None
    """Units in the cell. Default: 125 for lstm and gru, 256 for lif, 8 maps for conv-lstm, 16 for conv-lif."""
    num_layers: int = 1
    """Layers of an LSTM or GRU."""
    readout_layer_size: int | None = None
    """Units of a hidden layer (ReLU) between an LSTM or GRU and the outputs. Default: no such layer."""
    kernel_size: int | None = None
    """Width of the convolutions of a conv-lstm or conv-lif, an odd number. Default: 3."""
    decay: float | None = None
    """What a spiking cell's membrane keeps from step to step. Default: 0.9; the paper has 0.2."""
    training: Training = field(default_factory=Training)

    def run(self) -> None:
        task = named_task(self.task, data=self.data, augment=self.augment or None, skip_bad=self.skip_bad or None)
        if self.cell in ("lstm", "gru", "lif") and any(field.name == "flat" for field in fields(task)):
            task = replace(task, flat=True)
        threshold = self.threshold
        if threshold is None:
            threshold = 1.0 if self.cell in ("lif", "conv-lif") else 0.95
        objective = named_objective(self.objective, Threshold(threshold), read_beta(self.beta))
        config = self.training
        if config.folder is None:
            name = self.task if self.task in TASKS else Path(self.task).resolve().stem
            config = replace(config, folder=str(free_folder(Path("runs") / f"{name}-{self.objective}")))
        torch.manual_seed(config.seed)
        hidden_size = HIDDEN_SIZES[self.cell] if self.hidden_size is None else self.hidden_size
        network = standard_network(
            task, self.cell, hidden_size, self.num_layers, self.decay, self.readout_layer_size, self.kernel_size
        )
        _fit(network, task, objective, config)


@dataclass(frozen=True)
class Resume:
    """Go on with a run that was cut off, from its latest checkpoint."""

    run_folder: str
    """Folder of the run."""
    data: str | None = None
    """Where the data of the run's task is, if it is no longer where training found it."""
    device: str = "auto"
    """cpu, cuda, cuda:N; auto takes a GPU where there is one."""

    def run(self) -> None:
        folder = RunFolder(self.run_folder)
        logged = any(folder.path.glob("events.out.tfevents*")) and find_spec("tensorboard") is not None
        training = Training.of_run(folder, device=self.device, tensorboard=logged)
        data = None if self.data is None else str(Path(self.data).resolve())
        task, network, objective = folder.task(data), folder.network(), folder.objective()
        if self.data is not None:
            _ = task.train  # what is not there, or is not what was trained on, is not written down
            if int(os.environ.get("RANK", "0")) == 0:  # under torchrun the first process writes
                with closing(folder):
                    folder.move_data(self.data)
        _fit(network, task, objective, training)


def _fit(network: Network, task: Any, objective: Objective, config: Training) -> None:
    if hasattr(task, "summary"):
        print(task.summary(), file=sys.stderr)
    say_left_out(getattr(task, "left_out", ()))
    try:
        history = fit(network, task, objective, config)
    except KeyboardInterrupt:
        begun = config.folder is not None and (Path(config.folder) / "checkpoint.pt").exists()
        raise ValueError(f"stopped{f'; go on with: rankcode resume {config.folder}' if begun else ''}") from None
    if int(os.environ.get("RANK", "0")) > 0:  # under torchrun the first process speaks
        return
    if history.best is not None:
        best = history.best["first_spike" if config.select == "first_spike_accuracy" else "validation"]
        print(
            f"best model, by {config.select} on validation data: accuracy {100 * best['accuracy']:.2f} %, "
            f"mean steps {best['mean_steps']:.2f}"
        )
        if best["fired"] == 0 and not isinstance(objective.rule, Never):
            print("it never fired on validation data: train for longer, or lower the threshold or beta")
    print(f"kept in {config.folder}; next: rankcode evaluate {config.folder}")
