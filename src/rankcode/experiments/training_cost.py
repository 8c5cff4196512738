"""What a training cost, from the records of its run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


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
