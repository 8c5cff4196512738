"""held_out.pt: the outputs of a network for held-out rows. Rules can be fitted to them again, without the data.

It is written like a checkpoint, with a checksum.
"""

from __future__ import annotations

from pathlib import Path

from rankcode.saving.checkpoint import read_checkpoint, write_checkpoint
from rankcode.stopping.traces import Traces


def write_traces(file: Path, traces: Traces) -> None:
    """Only for networks whose activations are their probabilities."""
    content = {name: value for name, value in vars(traces).items() if name != "activations"}
    write_checkpoint(file, content | {"probabilities": traces.probabilities.float()})


def read_traces(file: Path) -> Traces:
    content = read_checkpoint(file)
    probabilities = content.pop("probabilities").double()
    return Traces(activations=probabilities, probabilities=probabilities, **content)
