"""What turns raw data into the inputs of a network. It is part of the network and is saved with it.

A front end is called with what a data set stores, [rows, …], and the lengths of the rows, on any device, and
gives (inputs [rows, steps, features…], lengths). It is a frozen dataclass of plain numbers.
"""

from __future__ import annotations

from typing import Any

from rankcode.front_ends.audio import Audio, LogMel
from rankcode.front_ends.latency_code import LatencyCode, latency_code
from rankcode.front_ends.standardise import Standardise

FRONT_ENDS = {kind.__name__: kind for kind in (Audio, LatencyCode, Standardise)}
FrontEnd = Audio | LatencyCode | Standardise


def front_end_of(source: Any) -> FrontEnd | None:
    """The front end that rows of data bring with them."""
    encode = getattr(source, "encode", None)
    return encode if type(encode) in FRONT_ENDS.values() else None


__all__ = ["FRONT_ENDS", "Audio", "FrontEnd", "LatencyCode", "LogMel", "Standardise", "front_end_of", "latency_code"]
