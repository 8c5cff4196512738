"""The raw data of live rows, as a network reads it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rankcode.checks import step_shape
from rankcode.front_ends import InputStreams, NumberStreams
from rankcode.network import Network

MAX_AT_ONCE = 2**16  # raw values of a chunk that are buffered at once: a chunk of any size needs bounded memory
ONLY_ROW = np.zeros(1, np.int64)


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
            any_layout = getattr(network.cell, "flattens_inputs", False)
            streams = NumberStreams(rows, step_shape(network.cell), any_layout=any_layout)
        elif hasattr(front_end, "stream"):
            streams = front_end.stream(rows)
        else:
            raise ValueError(
                f"{type(front_end).__name__} has no method stream(rows), so its networks cannot be streamed"
            )
        self.streams: InputStreams = streams
        like = next((part for part in network.parameters() if part.is_floating_point()), torch.empty(0))
        self.dtype, self.device = like.dtype, like.device

    def pushed(self, inputs: Any) -> Iterator[int]:
        """Push a chunk of any size to the only row, in parts: how many steps are complete after each of them."""
        items = self.streams.check(0, inputs)
        at_once = max(1, MAX_AT_ONCE * len(items) // max(1, items.size))
        for begin in range(0, len(items), at_once):
            self.streams.push(0, items[begin : begin + at_once])
            yield int(self.streams.waiting()[0])

    def take(self, rows: np.ndarray, steps: int = 1) -> Tensor:
        """The next steps of these rows, [rows, steps, features…], in the network's precision."""
        return self.streams.take(rows, steps).to(self.device, self.dtype)
