"""Pictures of runs. Needs matplotlib: `pip install 'rankcode[plots]'`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402


def plot_training(records: list[dict[str, Any]], path: Path) -> None:
    """Accuracy and steps read over training."""
    figure, (upper, lower) = plt.subplots(2, 1, sharex=True, figsize=(8, 6), layout="constrained")
    for part, label in (("training", "training"), ("validation", "validation"), ("first_spike", "first spike")):
        chosen = [record for record in records if part in record]
        if part == "first_spike" and all(record["validation"] == record[part] for record in chosen):
            continue
        examples = [record["examples"] for record in chosen]
        upper.plot(examples, [100 * record[part]["accuracy"] for record in chosen], label=label)
        lower.plot(examples, [record[part]["mean_steps"] for record in chosen], label=label)
    upper.set_ylabel("accuracy (%)")
    lower.set_ylabel("mean steps read")
    lower.set_xlabel("training examples")
    upper.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)
