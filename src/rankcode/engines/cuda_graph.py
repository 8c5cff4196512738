"""Work on a GPU that is launched as a whole, as a CUDA graph, rather than kernel by kernel.

A training step of a small network is about a hundred kernels, most of them of a few microseconds: a host takes longer
to launch them than the GPU to run them.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Hashable
from functools import cache
from typing import Any

import torch
from torch import Tensor

WARM = 3  # runs before one is recorded: kernels are compiled and libraries get their memory in the first ones
MOST = 8  # recordings, each of which keeps memory for its tensors; what comes in more shapes than that runs as it is

Recording = tuple[torch.cuda.CUDAGraph, list[Tensor | None]]  # and where it expects its tensors


class Recorded:
    """`work(*tensors)` gives nothing and keeps what it finds in tensors of its own. It is run as it is until tensors of
    the same shapes have come a few times, then recorded, and from there on what was recorded runs on their values. It
    must not wait for the GPU, and all else that it depends on must be in `key`. Where it cannot be recorded it goes on
    as it is, after `undo` has taken back what a recording that broke off may have left. What is recorded with the same
    `pool` of memory may only run one after the other."""

    def __init__(self, work: Callable[..., None], undo: Callable[[], None] = lambda: None, pool: Any = None):
        self.work, self.undo, self.pool = work, undo, pool
        self.seen: Counter[Hashable] = Counter()
        self.graphs: dict[Hashable, Recording] = {}
        self.refused = False

    def __call__(self, key: Hashable, *tensors: Tensor | None) -> None:
        key = (key, *(None if part is None else (part.shape, part.dtype) for part in tensors))
        if key not in self.graphs:
            self.seen[key] += 1
            if self.seen[key] <= WARM or self.refused or len(self.graphs) == MOST:
                return self.work(*tensors)
            try:
                self.graphs[key] = self._record(tensors)
            except RuntimeError as error:
                self.refused = True
                self.undo()
                reason = str(error).splitlines()[0]
                warnings.warn(f"launched kernel by kernel, for it could not be recorded: {reason}", stacklevel=2)
                return self.work(*tensors)
        graph, places = self.graphs[key]
        for place, part in zip(places, tensors, strict=True):
            if place is not None and part is not None:
                place.copy_(part)
        return graph.replay()

    def close(self) -> None:
        """Give the memory back."""
        self.graphs.clear()
        self.work = self.undo = lambda *_: None  # which may refer to this

    def _record(self, tensors: tuple[Tensor | None, ...]) -> Recording:
        places = [None if part is None else part.clone() for part in tensors]
        graph, stream = torch.cuda.CUDAGraph(), _stream(torch.cuda.current_device())
        # A recording that fails leaves its own stream in place.
        with torch.cuda.stream(torch.cuda.current_stream()), torch.cuda.graph(graph, self.pool, stream):
            self.work(*places)
        self.pool = graph.pool()
        return graph, places


@cache
def _stream(device: int) -> torch.cuda.Stream:
    """Where recordings are made: within a pool, memory is used again on the stream that it was first used on."""
    return torch.cuda.Stream(device)
