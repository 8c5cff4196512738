"""The compiled steps of recurrence.c, loaded with ctypes. `pip install` compiles them if there is a C compiler."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from ctypes import POINTER, c_int64, c_void_p
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np
import torch

MAX_SLOTS = 64  # as in job.h
MIN_PAUSE, MAX_PAUSE = 8, 512  # calls


def _fields(kind: Any, names: str) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


class Job(ctypes.Structure):
    """The struct Job of job.h, which says what each field is."""

    _fields_ = [
        *_fields(
            c_int64,
            "lanes gru inputs units padded classes padded_classes inner padded_inner activation one_output rows steps",
        ),
        *_fields(c_void_p, "weight_ih weight_hh bias_ih bias_hh inner_weight inner_bias last_weight last_bias packed"),
        *_fields(c_void_p, "x ends table first_hidden first_cell answered fired logits last_cell features"),
        *_fields(c_int64, "every_step row_stride step_stride"),
        *_fields(c_int64, "next stride slots ahead"),
        *_fields(c_void_p, "work"),
        *_fields(c_int64, "live swapped"),
        *_fields(c_int64 * MAX_SLOTS, "row step entry projected position buffer"),
        *_fields(c_void_p, "chunks"),
        *_fields(c_int64, "shift width entries capacity full"),
        *_fields(c_void_p, "place previous last_entry gradient of_last_cell of_first_hidden of_first_cell"),
        *_fields(c_void_p, "of_weight_ih of_weight_hh of_bias_ih of_bias_hh sums team"),
        *_fields(c_int64, "team_size number"),
    ]

    def copy(self) -> Job:
        return type(self).from_buffer_copy(self)


NEW = Job()  # to be copied
NEW.buffer[:] = range(MAX_SLOTS)


@lru_cache(maxsize=1)
def functions() -> Any:
    """The functions of recurrence.c, which release Python's lock; None if they were not compiled, or not from this
    version of the source."""
    spec = find_spec("rankcode.compiled._recurrence")
    if spec is None or spec.origin is None:
        return None
    try:
        loaded = ctypes.CDLL(spec.origin)
        if loaded.job_size() != ctypes.sizeof(Job):
            return None
    except (OSError, AttributeError):
        return None
    for name, arguments, result in (
        ("most_lanes", (), c_int64),
        ("packed_size", (POINTER(Job), c_int64), c_int64),
        ("begin", (c_void_p, c_int64, c_void_p), c_int64),
        ("go_on", (c_void_p, c_int64, c_void_p), c_int64),
        ("go_back", (c_void_p, c_int64, c_void_p), c_int64),
    ):
        function = getattr(loaded, name)
        function.argtypes, function.restype = arguments, result
    return loaded


class _Crowding:
    """Whether several threads would be slower than one: if another program needs their cores, they wait for each other.
    One thread then works alone for some calls, for more of them the more often it happens."""

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


_CROWDING = _Crowding()


def in_threads(function: Any, team: np.ndarray, size: int) -> None:
    """Call `begin`, `go_on` or `go_back`, of at most `size` multiplications, with the addresses of jobs: with a thread
    for each or, if threads have taken longer than all their work, one for all. The results are the same."""
    parallel = openmp() if len(team) > 1 else None
    if parallel is None or _CROWDING.is_expected(size):
        function(team.ctypes.data, len(team), None)
        return
    begin = perf_counter_ns()
    spent = function(team.ctypes.data, len(team), parallel)
    _CROWDING.note(size, late=0 < spent < perf_counter_ns() - begin)


@lru_cache(maxsize=1)
def openmp() -> c_void_p | None:
    """GOMP_parallel of the OpenMP library that comes with PyTorch, which GNU's, Intel's and LLVM's have; None if there
    is none."""
    folder = Path(torch.__file__).parent
    for path in [*folder.glob("lib/lib*omp*"), *folder.parent.glob("torch.libs/lib*omp*")]:
        with suppress(OSError, AttributeError):
            return ctypes.cast(ctypes.CDLL(str(path)).GOMP_parallel, c_void_p)
    return None
