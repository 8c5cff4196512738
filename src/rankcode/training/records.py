"""The history of a run: what a record of it holds, how good its model is, and whether the network learns at all."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rankcode.data.sources import Source
from rankcode.metrics import Report, cost, evaluate
from rankcode.rules import Never, Rule
from rankcode.training.config import Training

if TYPE_CHECKING:
    from rankcode.training.state import TrainingState


@dataclass(frozen=True)
class Means:
    """Over the batches since the last record."""

    loss: float
    accuracy: float
    mean_steps: float


@dataclass(frozen=True)
class Record:
    """What a record holds, which is kept as JSON: a dictionary of these."""

    batch: int
    examples: int
    seconds: float  # since the run began
    training_seconds: float  # since the last record was complete
    learning_rate: float
    training: Means
    validation: Report | None = None  # with the objective's rule; None without validation data
    first_spike: Report | None = None  # with first-spike inference: the same if the objective ends at the spike


@dataclass(frozen=True)
class History:
    """What training went through: a record for each validation, as dictionaries (see `Record`), and the best of them.

    Without validation data records have no `validation` and no `first_spike`, and `best` is None. `problem` says in a
    sentence what is wrong with the model that was kept, and what to try, if it never fires or is no better than always
    answering with the most common class.
    """

    records: list[dict[str, Any]]
    best: dict[str, Any] | None
    problem: str | None = None


def make_record(state: TrainingState, held_out: Source | None, rule: Rule, spike_rule: Rule) -> dict[str, Any]:
    """One line of the history: training since the last one, and validation now."""
    means = state.means()
    if not math.isfinite(means["loss"]):
        raise ValueError(f"the loss is no longer a number at batch {state.batch}: lower learning_rate or max_grad_norm")
    record: dict[str, Any] = {
        "batch": state.batch,
        "examples": state.examples + int(state.sums[0]),
        "seconds": state.seconds,
        "training_seconds": state.training_seconds,
        "learning_rate": state.learning_rate,
        "training": means,
    }
    if held_out is not None:
        engine = state.config.engine
        report = evaluate(state.model, held_out, rule, engine=engine)
        spikes = report if spike_rule is rule else evaluate(state.model, held_out, spike_rule, engine=engine)
        record |= {"validation": report.as_dict(), "first_spike": spikes.as_dict()}
    return json.loads(json.dumps(record))  # exactly what metrics.jsonl gives back


# `Training.select` → the larger, the better. A report, and the weight of earliness.
MERITS: dict[str, Callable[[dict[str, Any], float], float]] = {
    "accuracy": lambda report, alpha: report["accuracy"],
    "first_spike_accuracy": lambda report, alpha: report["accuracy"],
    "loss": lambda report, alpha: -report["loss"],
    "harmonic_mean": lambda report, alpha: report["harmonic_mean"],
    "cost": lambda report, alpha: -cost(report["accuracy"], report["earliness"], alpha),
}


def merit(record: dict[str, Any], config: Training) -> tuple[float, float]:
    """How good the model of a record is: the larger, the better. Fewer steps break ties."""
    report = record["first_spike" if config.select == "first_spike_accuracy" else "validation"]
    return MERITS[config.select](report, config.select_alpha), -report["mean_steps"]


def problem_of(record: dict[str, Any], rule: Rule, source: Source) -> str | None:
    """What is wrong with the model of a record, and what to try; None if it has learned something."""
    report = record.get("validation")
    if report is not None and report["fired"] == 0 and not isinstance(rule, Never):
        return "no row of the validation data fires: train for longer, or lower the objective's threshold or beta"
    shares = {}
    if isinstance(labels := getattr(source, "labels", None), Tensor):
        shares["training"] = torch.bincount(labels).max().item() / len(labels)
    if report is not None:
        shares["validation"] = max(each["rows"] for each in report["classes"]) / report["rows"]
    for part, share in shares.items():
        if (accuracy := record[part]["accuracy"]) <= share:
            return (
                f"the network answers {100 * accuracy:.1f} % of the {part} data correctly, no more than the "
                f"{100 * share:.1f} % of its most common class: train for longer, or try another learning_rate, "
                "another objective or a smaller network"
            )
    return None
