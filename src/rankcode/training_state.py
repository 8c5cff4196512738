"""What a training run holds between two batches; all of it goes into a checkpoint."""

from __future__ import annotations

import copy
import time
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from rankcode.decision import Decision
from rankcode.network import Network

if TYPE_CHECKING:
    from rankcode.training import Training


class TrainingState:
    def __init__(self, network: Network, config: Training, device: torch.device):
        self.network, self.device = network, device
        kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[config.optimizer]
        self.optimizer = kind(network.parameters(), lr=config.rate, weight_decay=config.weight_decay)
        self.scaler = torch.amp.GradScaler(device.type, enabled=config.precision == "float16")
        self.average: AveragedModel | None = None
        if config.average is not None:
            average = get_ema_multi_avg_fn(config.average)
            self.average = AveragedModel(network, multi_avg_fn=average, use_buffers=True)
        self.batch = self.examples = 0
        self.sums = torch.zeros(4, dtype=torch.float64, device=device)  # rows, loss, right answers, steps read
        self.records: list[dict[str, Any]] = []
        self.best: dict[str, Any] | None = None
        self.best_weights: dict[str, Tensor] | None = None
        self._seconds, self._begun = 0.0, time.monotonic()

    @property
    def model(self) -> nn.Module:
        """The network that is validated and saved: the averaged one where there is one."""
        return self.network if self.average is None else self.average.module

    @property
    def seconds(self) -> float:
        """Spent on this run, the parts before a resume included."""
        return round(self._seconds + time.monotonic() - self._begun, 3)

    def set_rate(self, rate: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def update(self, clip: float | None) -> None:
        """One step of the optimiser, from the gradients there are."""
        if clip is not None:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.network.parameters(), clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        if self.average is not None:
            self.average.update_parameters(self.network)
        self.batch += 1

    def count(self, labels: Tensor, loss: Tensor, decision: Decision) -> None:
        rows, right = len(labels), (decision.label == labels).sum()
        self.sums += torch.stack([torch.full_like(right, rows), loss.detach() * rows, right, decision.steps.sum()])

    def summary(self) -> str:
        rows, loss, right, steps = self.sums.tolist()
        return f"loss {loss / rows:.4f}  accuracy {100 * right / rows:.2f} %  steps read {steps / rows:.2f}"

    def add(self, record: dict[str, Any], select: str) -> bool:
        """Add a record to the history; whether its model is the best so far, which is then kept."""
        self.records.append(record)
        if "validation" not in record or (self.best is not None and _merit(record, select) <= _merit(self.best, select)):
            return False
        self.best, self.best_weights = record, copy.deepcopy(self.model.state_dict())
        return True

    def checkpoint(self) -> dict[str, Any]:
        return {
            "batch": self.batch,
            "examples": self.examples,
            "seconds": self.seconds,
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "average": None if self.average is None else self.average.state_dict(),
            "random": torch.get_rng_state(),
            "random_gpu": torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None,
            "best": self.best,
            "best_weights": self.best_weights,
        }

    def restore(self, checkpoint: dict[str, Any], records: list[dict[str, Any]]) -> None:
        self.batch, self.examples = checkpoint["batch"], checkpoint["examples"]
        self._seconds = checkpoint["seconds"]
        self.network.load_state_dict(checkpoint["network"])
        self.optimizer.load_state_dict(checkpoint["optimizer"])
        self.scaler.load_state_dict(checkpoint["scaler"])
        if self.average is not None:
            self.average.load_state_dict(checkpoint["average"])
        torch.set_rng_state(checkpoint["random"])
        if checkpoint["random_gpu"] is not None and self.device.type == "cuda":
            torch.cuda.set_rng_state(checkpoint["random_gpu"], self.device)
        self.records, self.best, self.best_weights = records, checkpoint["best"], checkpoint["best_weights"]


def _merit(record: dict[str, Any], select: str) -> tuple[float, float]:
    report = record["validation"]
    sign = 1 if select in ("accuracy", "harmonic_mean") else -1
    return sign * report[select], -report["mean_steps"]
