"""The compiled steps of recurrence.c, loaded with ctypes. `pip install` compiles them if there is a C compiler."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_int64, c_void_p
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

MAX_SLOTS = 64  # as in job.h


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
        *_fields(
            c_void_p,
            "x ends table first_hidden first_cell answered label fired logits probabilities last_cell features",
        ),
        *_fields(c_int64, "every_step row_stride step_stride"),
        *_fields(c_int64, "next stride slots ahead"),
        *_fields(c_void_p, "work"),
        *_fields(c_int64, "live swapped"),
        *_fields(c_int64 * MAX_SLOTS, "row step entry projected position buffer"),
        *_fields(c_void_p, "chunks"),
        *_fields(c_int64, "shift width offset entries capacity full"),
        *_fields(c_void_p, "place previous last_entry gradient of_last_cell of_first_hidden of_first_cell"),
        *_fields(c_void_p, "of_weight_ih of_weight_hh of_bias_ih of_bias_hh sums team"),
        *_fields(c_int64, "team_size number together"),
        *_fields(c_void_p, "crew upper lower"),
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
