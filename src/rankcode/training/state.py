"""What a training run holds between two batches; all of it goes into a checkpoint."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass, fields
from pathlib import Path
from reprlib import repr as shortened
from typing import Any

import torch
from torch import Tensor, nn

from rankcode.decision import Decision
from rankcode.network import Network
from rankcode.saving.description import ContentError, content_of, damaged, read_settings
from rankcode.saving.model_file import different_weights
from rankcode.training.config import Training
from rankcode.training.distributed import Processes
from rankcode.training.records import Record, merit


@dataclass(frozen=True)
class Standing:
    """The plain part of a checkpoint."""

    batch: int
    examples: int
    seconds: float
    training_seconds: float
    records: tuple[Record, ...]
    best: Record | None


class TrainingState:
    def __init__(self, network: Network, config: Training, group: Processes, device: torch.device):
        self.network, self.config, self.group = network, config, group
        kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[config.optimizer]
        self.learning_rate = config.learning_rate
        settings: dict[str, Any] = {"lr": config.learning_rate}
        if device.type == "cuda":  # one launch for all weights, which a CUDA graph can capture
            settings = {"lr": torch.tensor(config.learning_rate, device=device), "fused": True, "capturable": True}
        self.optimizer = kind(network.parameters(), weight_decay=config.weight_decay, **settings)
        self.scaler = torch.amp.GradScaler(device.type, enabled=config.precision == "float16")
        self.average = None if config.ema_decay is None else copy.deepcopy(network)
        self.batch = 0  # batches done
        self.examples = 0  # rows in them, up to the last record
        self.sums = torch.zeros(4, dtype=torch.float64, device=device)  # since then: rows, loss, right answers, steps
        self.records: list[dict[str, Any]] = []
        self.best: dict[str, Any] | None = None
        self.best_weights = self.weights()
        self._seconds, self._begun = 0.0, time.monotonic()
        self._validated = self._begun  # when the last record was complete
        self.optimizer.zero_grad()  # what a loop of the caller's own may have left

    @property
    def model(self) -> Network:
        """The network that is validated and saved: the averaged one where there is one."""
        return self.network if self.average is None else self.average

    @property
    def kept_record(self) -> dict[str, Any]:
        """The record of the weights that the network ends with."""
        return self.best if self.best is not None and self.config.finish_with == "best" else self.records[-1]

    @property
    def seconds(self) -> float:
        """Spent on this run, the parts before a resume included."""
        return round(self._seconds + time.monotonic() - self._begun, 3)

    @property
    def training_seconds(self) -> float:
        """Spent since the last record was complete: on training alone."""
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

    def update(self, loss: Tensor) -> None:
        """One step of the optimiser, and of the average."""
        self.scaler.scale(loss).backward()
        if self.config.max_grad_norm is not None:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.network.parameters(), self.config.max_grad_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        if self.average is not None and self.config.ema_decay is not None:
            share = 1.0 if self.batch == 0 else 1 - self.config.ema_decay
            _move_to(self.average, self.network, share)

    def count(self, labels: Tensor, loss: Tensor, decision: Decision) -> None:
        """Add a batch to the sums of the record to come."""
        right, steps = (decision.label == labels).sum(), decision.steps.sum()
        rows = torch.full_like(right, len(labels))
        self.sums += torch.stack([column.double() for column in (rows, loss.detach() * rows, right, steps)])

    def collect(self) -> None:
        """Move the sums of all processes to the first."""
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
        """Add a record to the history; whether its model is the best so far, which is then kept."""
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

    def restore(self, checkpoint: dict[str, Any], file: Path) -> None:
        """Continue from the checkpoint that was read from a file."""
        with content_of(file):
            self._check(checkpoint)
            try:
                self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": checkpoint["optimizer"]})
                self.scaler.load_state_dict(checkpoint["scaler"])
            except (AttributeError, LookupError, TypeError, ValueError, RuntimeError):
                raise damaged("the state of the optimizer or of the gradient scaler cannot be used") from None
        self.batch, self.examples = checkpoint["batch"], checkpoint["examples"]
        self.sums.copy_(checkpoint["sums"] if self.group.first else torch.zeros_like(self.sums))
        self._seconds = checkpoint["seconds"]
        self._validated = time.monotonic() - checkpoint["training_seconds"]
        self.network.load_state_dict(checkpoint["network"])
        if self.average is not None:
            self.average.load_state_dict(checkpoint["average"])
        self.records, self.best = checkpoint["records"], checkpoint["best"]
        self.best_weights = checkpoint["best_weights"]

    def _check(self, checkpoint: dict[str, Any]) -> None:
        """Whether every entry is of the right kind, and the weights are those of the network."""
        names = [field.name for field in fields(Standing)]
        read_settings({name: checkpoint[name] for name in names if name in checkpoint}, Standing, "its content")
        if min(checkpoint["batch"], checkpoint["examples"]) < 0:
            raise damaged("batch and examples must be at least 0")
        sums = checkpoint.get("sums")
        if not (isinstance(sums, Tensor) and sums.shape == self.sums.shape and sums.dtype == self.sums.dtype):
            raise damaged(f"sums must be {len(self.sums)} numbers")
        averages = {} if self.average is None else {"average": self.average}
        for name, module in {"network": self.network, "best_weights": self.model, **averages}.items():
            if misfit := different_weights(module.state_dict(), checkpoint.get(name)):
                raise ContentError(f"does not fit the network: {misfit} ({name})")
        weights: dict[Any, Tensor] = dict(enumerate(self.network.parameters()))
        moments = checkpoint.get("optimizer")
        for number, entry in moments.items() if isinstance(moments, dict) else [(None, None)]:
            wanted = {"exp_avg": weights.get(number), "exp_avg_sq": weights.get(number)}
            found = {name: entry.get(name) for name in wanted} if isinstance(entry, dict) else {}
            if number not in weights or different_weights(wanted, found):
                raise damaged(f"the optimizer has other weights than the network (number {shortened(number)})")


@torch.no_grad()
def _move_to(average: nn.Module, network: nn.Module, share: float) -> None:
    """Move the average by a share of the way to the network."""
    pairs = zip((*average.parameters(), *average.buffers()), (*network.parameters(), *network.buffers()), strict=True)
    for own, other in pairs:
        if own.is_floating_point():
            own.lerp_(other, share)
        else:  # a count, such as a normalisation's of batches
            own.copy_(other)
