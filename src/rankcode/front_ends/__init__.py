"""Front ends turn raw data into the inputs of a network. Those in this package are frozen dataclasses of numbers."""

from __future__ import annotations

from typing import Any

from rankcode.front_ends.audio import Audio, LogMel
from rankcode.front_ends.input_streams import InputStreams, NumberStreams
from rankcode.front_ends.latency_code import LatencyCode, latency_code
from rankcode.front_ends.protocol import FrontEnd, StoredRow
from rankcode.front_ends.standardise import Standardise

FRONT_ENDS = {kind.__name__: kind for kind in (Audio, LatencyCode, Standardise)}


def front_end_of(source: Any) -> FrontEnd | None:
    """The front end that a source of rows applies to them."""
    encode = getattr(source, "encode", None)
    return encode if isinstance(encode, FrontEnd) else None


__all__ = [
    "FRONT_ENDS",
    "Audio",
    "FrontEnd",
    "InputStreams",
    "LatencyCode",
    "LogMel",
    "NumberStreams",
    "Standardise",
    "StoredRow",
    "front_end_of",
    "latency_code",
]
