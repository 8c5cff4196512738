"""Work on a GPU that is launched as a whole, as a CUDA graph, rather than kernel by kernel.

A training step of a small network is about a hundred kernels, most of them of a few microseconds: a host takes longer
to launch them than the GPU to run them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

WARM = 3  # runs before one is recorded: kernels are compiled and libraries get their memory in the first ones
MOST = 8  # recordings, each of which keeps memory for its tensors; what comes in more shapes than that runs as it is


class Captured:
    """`work(*tensors)` gives nothing and keeps what it finds in tensors of its own. It is run as it is until tensors of
    the same shapes have come a few times, then recorded, and from there on what was recorded runs on their values. It
    must not wait for the GPU, and all else that it depends on must be in `key`. What is recorded with the same `pool`
    of memory may only run one after the other."""

    def __init__(self, work: Callable[..., None], pool: Any = None):
        self.work, self.pool = work, pool
        self.seen: Counter[Hashable] = Counter()
        self.recorded: dict[Hashable, tuple[torch.cuda.CUDAGraph, list[Tensor | None]]] = {}

    def __call__(self, key: Hashable, *tensors: Tensor | None) -> None:
        key = (key, *(None if part is None else (part.shape, part.dtype) for part in tensors))
        if key not in self.recorded:
            self.seen[key] += 1
            if self.seen[key] <= WARM or len(self.recorded) == MOST:
                return self.work(*tensors)
            self.recorded[key] = self._record(tensors)
        graph, places = self.recorded[key]
        for place, part in zip(places, tensors, strict=True):
            if place is not None and part is not None:
                place.copy_(part)
        return graph.replay()

    def _record(self, tensors: tuple[Tensor | None, ...]) -> tuple[torch.cuda.CUDAGraph, list[Tensor | None]]:
        places = [None if part is None else part.clone() for part in tensors]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            self.work(*places)
        self.pool = graph.pool()
        return graph, places
