"""Records of finished runs, reduced to what the figures read, so that the published runs stay small."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rankcode.saving.files import write_whole
from rankcode.saving.run_folder import RunFolder

# Fields of a report that figures read. The one that selects the best model is kept as well.
KEPT_FIELDS = {"accuracy", "mean_steps", "fired", "milliseconds"}


def thin(folder: RunFolder, select: str, histograms: bool) -> None:
    """Keep in metrics.jsonl what figures read, to six decimals. The first record keeps the rows of each class as well.
    Where both reports are the same, as in training that ends at the spike, only `first_spike` is kept."""
    chosen = KEPT_FIELDS | {select}
    records = []
    for record in folder.records():
        read = {name: record[name] for name in ("examples", "seconds", "training_seconds")}
        read["training"] = {"mean_steps": record["training"]["mean_steps"]}
        reports = {part: _chosen(record[part], chosen) for part in ("validation", "first_spike")}
        if reports["validation"] == reports["first_spike"]:
            del reports["validation"]
        more = {"steps_histogram"} if histograms else set()
        more |= set() if records else {"classes"}
        records.append(_rounded(read | reports | {"first_spike": _chosen(record["first_spike"], chosen | more)}))
    lines = (json.dumps(each, separators=(",", ":")).encode() + b"\n" for each in records)
    write_whole(folder.path / "metrics.jsonl", b"".join(lines))


def _chosen(report: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in report.items() if name in names}


def _rounded(part: Any) -> Any:
    if isinstance(part, dict):
        return {name: _rounded(value) for name, value in part.items()}
    return round(part, 6) if isinstance(part, float) else part
