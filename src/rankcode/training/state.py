"""The state of a training run between two batches; all of it is saved in a checkpoint."""

from __future__ import annotations

import copy
import time
from typing import Any

import torch
from torch import Tensor, nn

from rankcode.data.sources import BadData
from rankcode.decision import Decision
from rankcode.engines.cpu_settings import single_thread_if
from rankcode.network import Network
from rankcode.saving.model_file import different_weights
from rankcode.training.config import Training
from rankcode.training.distributed import Processes
from rankcode.training.records import merit

MIN_PARALLEL_WEIGHTS = 2**20  # fewer are updated in a third of a millisecond


class TrainingState:
    def __init__(self, network: Network, config: Training, group: Processes, device: torch.device):
        self.network, self.config, self.group = network, config, group
        kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[config.optimizer]
        self.learning_rate = config.learning_rate
        settings: dict[str, Any] = {"lr": config.learning_rate}
        if device.type == "cuda":  # so that a CUDA graph can capture it
            settings = {"lr": torch.tensor(config.learning_rate, device=device), "capturable": True}
        self.optimizer = kind(network.parameters(), weight_decay=config.weight_decay, fused=True, **settings)
        weights = sum(part.numel() for part in network.parameters())
        self.is_small = device.type == "cpu" and weights < MIN_PARALLEL_WEIGHTS
        self.scaler = torch.amp.GradScaler(device.type, enabled=config.precision == "float16")
        self.average = None if config.ema_decay is None else copy.deepcopy(network)
        self.batch = 0  # batches done
        # The steps at which the rows of the last batch answered, on a single CPU: its engine chooses blocks by them.
        # They change the order of sums, so a run that is resumed must know them.
        self.answered: Tensor | None = None
        self.examples = 0  # rows in them, up to the last record
        self.sums = torch.zeros(4, dtype=torch.float64, device=device)  # since then: rows, loss, right answers, steps
        self.records: list[dict[str, Any]] = []
        self.best: dict[str, Any] | None = None
        self.best_weights = self.weights()
        self._seconds, self._begun = 0.0, time.monotonic()
        self._validated = self._begun  # when the last record was complete
        self.optimizer.zero_grad()  # gradients that are left from before

    @property
    def model(self) -> Network:
        """The network that is validated and saved: with averaged weights, if weights are averaged."""
        return self.network if self.average is None else self.average

    @property
    def kept_record(self) -> dict[str, Any]:
        """The record of the weights that the network has after training."""
        return self.best if self.best is not None and self.config.finish_with == "best" else self.records[-1]

    @property
    def seconds(self) -> float:
        """Time spent on this run, including the time before it was resumed."""
        return round(self._seconds + time.monotonic() - self._begun, 3)

    @property
    def training_seconds(self) -> float:
        """Time spent since the last record was complete: on training, without validation."""
        return round(time.monotonic() - self._validated, 3)

    def weights(self) -> dict[str, Tensor]:
        """A copy of the model's weights."""
        return copy.deepcopy(self.model.state_dict())

    def set_learning_rate(self, value: float) -> None:
        self.learning_rate = value
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(value)
            else:
                group["lr"] = value

    def backward(self, loss: Tensor) -> None:
        """The gradients of a batch."""
        self.scaler.scale(loss).backward()

    def step(self) -> None:
        """One step of the optimizer, and of the average, with the gradients of a batch."""
        if self.config.max_grad_norm is not None:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.network.parameters(), self.config.max_grad_norm)
        with single_thread_if(self.is_small):
            self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        if self.average is not None and self.config.ema_decay is not None:
            share = 1.0 if self.batch == 0 else 1 - self.config.ema_decay
            _move_to(self.average, self.network, share)

    def count(self, labels: Tensor, loss: Tensor, decision: Decision) -> None:
        """Add a batch to the sums for the next record."""
        right, steps = (decision.label == labels).sum(), decision.steps.sum()
        rows = torch.full_like(right, len(labels))
        self.sums += torch.stack([column.double() for column in (rows, loss.detach() * rows, right, steps)])

    def collect(self) -> None:
        """Add the sums of all processes in the first."""
        self.group.total(self.sums)
        if not self.group.first:
            self.sums.zero_()

    def means(self) -> dict[str, float]:
        rows, loss, right, steps = self.sums.tolist()
        return {"loss": loss / rows, "accuracy": right / rows, "mean_steps": steps / rows}

    def summary(self) -> str:
        """The means of the batches since the last record, as text."""
        means = self.means()
        accuracy, steps = 100 * means["accuracy"], means["mean_steps"]
        return f"loss {means['loss']:.4f}  accuracy {accuracy:.2f} %  steps read {steps:.2f}"

    def add(self, record: dict[str, Any]) -> bool:
        """Add a record to the history. Whether its model is the best so far; its weights are then kept."""
        self.records.append(record)
        self._validated = time.monotonic()
        self.examples = record["examples"]
        self.sums.zero_()
        if "validation" in record:
            if self.best is not None and merit(record, self.config) < merit(self.best, self.config):
                return False
            self.best = record
        self.best_weights = self.weights()
        return True

    def checkpoint(self) -> dict[str, Any]:
        return {
            "batch": self.batch,
            "answered": self.answered,
            "examples": self.examples,
            "sums": self.sums,
            "seconds": self.seconds,
            "training_seconds": self.training_seconds,
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict()["state"],
            "scaler": self.scaler.state_dict(),
            "average": None if self.average is None else self.average.state_dict(),
            "records": self.records,
            "best": self.best,
            "best_weights": self.best_weights,
        }

    def restore(self, checkpoint: dict[str, Any]) -> None:
        """Continue from a checkpoint of the run folder."""
        if misfit := different_weights(self.network.state_dict(), checkpoint["network"]):
            raise BadData(f"{self.config.folder}/checkpoint.pt does not fit the network: {misfit}")
        self.network.load_state_dict(checkpoint["network"])
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": checkpoint["optimizer"]})
        self.scaler.load_state_dict(checkpoint["scaler"])
        if self.average is not None:
            self.average.load_state_dict(checkpoint["average"])
        self.batch, self.examples = checkpoint["batch"], checkpoint["examples"]
        self.answered = checkpoint["answered"]
        self.sums.copy_(checkpoint["sums"] if self.group.first else torch.zeros_like(self.sums))
        self._seconds = checkpoint["seconds"]
        self._validated = time.monotonic() - checkpoint["training_seconds"]
        self.records, self.best = checkpoint["records"], checkpoint["best"]
        self.best_weights = checkpoint["best_weights"]


@torch.no_grad()
def _move_to(average: nn.Module, network: nn.Module, share: float) -> None:
    """Move averaged weights towards the network's by a share of the difference."""
    pairs = zip((*average.parameters(), *average.buffers()), (*network.parameters(), *network.buffers()), strict=True)
    for own, other in pairs:
        if own.is_floating_point():
            own.lerp_(other, share)
        else:  # a count, such as the number of batches in a normalisation layer
            own.copy_(other)
