"""What a network says about held-out rows, in a file: rules can be fitted to it again, without the data."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from rankcode.saving.files import write_whole
from rankcode.stopping.traces import Traces


def write_traces(path: Path, traces: Traces) -> None:
    """Only for networks whose activations are their probabilities."""
    tensors = {
        "probabilities": traces.probabilities.float().contiguous(),
        "steps": torch.tensor(traces.steps),
        "lengths": traces.lengths.contiguous(),
        "labels": traces.labels.contiguous(),
        "weights": traces.weights.contiguous(),
    }
    write_whole(path, save(tensors))


def read_traces(path: Path) -> Traces:
    try:
        found = load(path.read_bytes())
        probabilities = found["probabilities"].double()
        rows, steps = probabilities.shape[:2]
        columns = [found[name] for name in ("lengths", "labels", "weights")]
        if len(found["steps"]) != steps or any(column.shape != (rows,) for column in columns):
            raise ValueError("its parts do not fit together")
    except (SafetensorError, KeyError, ValueError) as error:
        raise ValueError(f"{path} is damaged: {error}; train again") from None
    return Traces(probabilities, probabilities, tuple(found["steps"].tolist()), *columns)
