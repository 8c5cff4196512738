"""The raw data of live rows, as a network reads it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from rankcode.front_ends import InputStreams, NumberStreams
from rankcode.network import Network


class LiveInputs:
    """The input streams of a network's front end, or of numbers if it has none, and its inputs from them."""

    def __init__(self, network: Network, rows: int, sample_rate: int | None):
        front_end: Any = network.front_end
        expected = getattr(front_end, "sample_rate", None)
        if sample_rate is not None and sample_rate != expected:
            raise ValueError(
                "the network does not read sound: leave out sample_rate"
                if expected is None
                else f"the network reads sound at {expected:,} Hz, not at {sample_rate:,} Hz: resample it first"
            )
        if front_end is None:
            streams = NumberStreams(rows, _step_shape(network.cell), any_layout=_flattens(network.cell))
        elif hasattr(front_end, "stream"):
            streams = front_end.stream(rows)
        else:
            raise ValueError(
                f"{type(front_end).__name__} has no method stream(rows), so its networks cannot be streamed"
            )
        self.streams: InputStreams = streams
        like = next((part for part in network.parameters() if part.is_floating_point()), torch.empty(0))
        self.dtype, self.device = like.dtype, like.device

    def take(self, rows: np.ndarray, steps: int = 1) -> Tensor:
        """The next steps of these rows, [rows, steps, features…], in the network's precision."""
        return self.streams.take(rows, steps).to(self.device, self.dtype)


def _step_shape(cell: Any) -> tuple[int, ...] | None:
    """The shape of a step, if the cell says it."""
    size = getattr(cell, "input_size", None)
    shape = getattr(cell, "input_shape", (size,) if isinstance(size, int) else None)
    return None if shape is None else tuple(shape)


def _flattens(cell: Any) -> bool:
    return getattr(cell, "flattens_inputs", False)
