"""The history of a run: what a record of it holds, how good its model is, and whether the network learns at all."""

from __future__ import annotations

import json
import math
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


MARGIN = 0.1  # runs that learn are this much better than the most common class by half of their training
MIN_FIRED = 0.05  # share of validation rows: below it almost every row is read to its end


@dataclass(frozen=True)
class History:
    """What training went through.

    `records` has a dictionary for each validation, as metrics.jsonl has it: batch and examples so far, seconds since
    the run began, training_seconds since the last record, learning_rate, training (means of loss, accuracy and steps
    since the last record), validation (a `Report` with the objective's rule) and first_spike (a `Report` with
    first-spike inference). `best` is the best of them. Without validation data records lack the reports, and `best` is
    None. `problem` says in a sentence what is wrong with the model that was kept, if anything is, and what to try.
    """

    records: list[dict[str, Any]]
    best: dict[str, Any] | None
    problem: str | None = None


def make_record(state: TrainingState, held_out: Source | None, rule: Rule, spike_rule: Rule) -> dict[str, Any]:
    """One line of the history: training since the last one, and validation now."""
    means = state.means()
    if not math.isfinite(means["loss"]):
        raise FloatingPointError(
            f"the loss is no longer a number at batch {state.batch}: lower learning_rate or max_grad_norm"
        )
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
        record |= {"validation": _recorded(report), "first_spike": _recorded(spikes)}
    return json.loads(json.dumps(record))  # exactly what metrics.jsonl gives back


def _recorded(report: Report) -> dict[str, Any]:
    """A report without its confusion matrix, which grows with the square of the classes."""
    return {name: value for name, value in report.as_dict().items() if name != "confusion"}


def merit(record: dict[str, Any], config: Training) -> tuple[float, float]:
    """How good the model of a record is: the larger, the better. Fewer steps break ties."""
    report = record["first_spike" if config.select == "first_spike_accuracy" else "validation"]
    if config.select == "cost":
        value = -cost(report["accuracy"], report["earliness"], config.select_alpha)
    elif config.select == "loss":
        value = -report["loss"]
    else:
        value = report["harmonic_mean" if config.select == "harmonic_mean" else "accuracy"]
    return value, -report["mean_steps"]


def problem_of(record: dict[str, Any], rule: Rule, source: Source) -> str | None:
    """What is wrong with a trained model, and what to try; None if it has learned something."""
    report = record.get("validation")
    if report is not None and report["fired"] < MIN_FIRED and not isinstance(rule, Never):
        fired = f"only {100 * report['fired']:.1f} % of the" if report["fired"] else "none of the"
        return f"{fired} validation rows fire: train for longer, or lower the objective's threshold or beta"
    return near_majority(record, source, margin=0.0)


def near_majority(record: dict[str, Any], source: Source, margin: float = MARGIN) -> str | None:
    """What to try if the accuracy, on validation data if there is any, is little above that of the majority class."""
    part, share = "training", 0.0
    if "validation" in record:
        report = record["validation"]
        part, share = "validation", max(each["rows"] for each in report["classes"]) / report["rows"]
    elif isinstance(labels := getattr(source, "labels", None), Tensor):
        share = torch.bincount(labels).max().item() / len(labels)
    accuracy = record[part]["accuracy"]
    if not share or accuracy > share + min(margin, (1 - share) / 2):
        return None
    return (
        f"the network answers {100 * accuracy:.1f} % of the {part} data correctly, and {100 * share:.1f} % are of the "
        "most common class: train for longer, or try another learning_rate, another objective or a smaller network"
    )
