"""The records of a finished run: reduced to the fields that figures read, and the share of steps read in training."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from rankcode.saving.files import write_whole
from rankcode.saving.run_folder import RunFolder

# Fields of a report that figures read. The one that selects the best model is kept as well.
KEPT_FIELDS = {"accuracy", "mean_steps", "fired", "milliseconds"}


def share_read(records: Iterable[Mapping[str, Any]], mean_length: float) -> float:
    """Steps read in training ÷ steps in the training data, over all examples trained on.

    At best, training costs this share of conventional training. A record holds the mean over the examples since the
    record before it, so each is weighted by the number of those.
    """
    read = examples = 0.0
    for record in records:
        read += record["training"]["mean_steps"] * (record["examples"] - examples)
        examples = record["examples"]
    return read / (mean_length * examples)


def thin(folder: RunFolder, select: str, histograms: bool) -> None:
    """Keep in metrics.jsonl what figures read, to six decimals. The first record keeps the rows of each class as well.
    Where both reports are the same, as in training that ends at the spike, only `first_spike` is kept."""
    chosen = KEPT_FIELDS | {select}
    lines = []
    for record in folder.records():
        kept = {name: record[name] for name in ("examples", "seconds", "training_seconds")}
        kept["training"] = {"mean_steps": record["training"]["mean_steps"]}
        validation, spike = (
            {name: record[part][name] for name in record[part] if name in chosen}
            for part in ("validation", "first_spike")
        )
        if validation != spike:
            kept["validation"] = validation
        more = {"steps_histogram": histograms, "classes": not lines}
        report = record["first_spike"]
        kept["first_spike"] = spike | {name: report[name] for name in more if more[name] and name in report}
        lines.append(json.dumps(_rounded(kept), separators=(",", ":")).encode() + b"\n")
    write_whole(folder.path / "metrics.jsonl", b"".join(lines))


def _rounded(part: Any) -> Any:
    if isinstance(part, dict):
        return {name: _rounded(value) for name, value in part.items()}
    return round(part, 6) if isinstance(part, float) else part
