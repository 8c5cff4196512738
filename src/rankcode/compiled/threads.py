"""Jobs in PyTorch's own threads, or in one where several would be slower."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from ctypes import c_void_p
from functools import lru_cache
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import torch

MIN_PAUSE, MAX_PAUSE = 8, 512  # calls in which one thread works alone


class _Oversubscription:
    """Whether there are more threads than free cores. If another program needs a core, threads that wait for each other
    are slower than one; then one works alone for some calls, and for more calls the more often that happens."""

    def __init__(self) -> None:
        self.size = self.pause = self.left = 0  # `size`: multiplications of a call that was late

    def is_expected(self, size: int) -> bool:
        if self.left == 0 or size > self.size:
            return False
        self.left -= 1
        return True

    def note(self, size: int, late: bool) -> None:
        if late:
            self.size, self.pause = size, min(max(4 * self.pause, MIN_PAUSE), MAX_PAUSE)
            self.left = self.pause
        elif size <= self.size:
            self.pause //= 2


_OVERSUBSCRIPTION = _Oversubscription()


def in_threads(function: Any, team: ctypes.Array[c_void_p], size: int) -> None:
    """Call `begin`, `go_on` or `go_back`, of at most `size` multiplications, with the addresses of jobs: with a thread
    for each or, if threads have taken longer than all their work, one for all. The results are the same."""
    parallel = openmp() if len(team) > 1 else None
    if parallel is None or _OVERSUBSCRIPTION.is_expected(size):
        function(team, len(team), None)
        return
    begin = perf_counter_ns()
    spent = function(team, len(team), parallel)
    _OVERSUBSCRIPTION.note(size, late=0 < spent < perf_counter_ns() - begin)


@lru_cache(maxsize=1)
def openmp() -> c_void_p | None:
    """GOMP_parallel of the OpenMP library that comes with PyTorch, which GNU's, Intel's and LLVM's have; None if there
    is none."""
    folder = Path(torch.__file__).parent
    for path in [*folder.glob("lib/lib*omp*"), *folder.parent.glob("torch.libs/lib*omp*")]:
        with suppress(OSError, AttributeError):
            return ctypes.cast(ctypes.CDLL(str(path)).GOMP_parallel, c_void_p)
    return None
