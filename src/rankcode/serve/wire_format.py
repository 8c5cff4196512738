"""What client and service say to each other over a WebSocket. docs/serving.md describes it for other languages.

The service begins with a `hello`: what the network reads, and the limits. The client answers with a `start` that says
what it will send. From then on binary messages hold data, and text messages are JSON. A binary message is one or more
records: the number of a stream and the bytes of its data, as two unsigned 32-bit integers, then the data. All numbers
are little-endian. A number above all earlier ones of the connection begins a stream; data for a stream that has ended
is ignored, so a client need not know yet that it has ended.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum

VERSION = 1
PATH = "/v1/stream"
RECORD = struct.Struct("<II")  # stream, bytes of data
MAX_STREAM = 2**32 - 1


class Close(IntEnum):
    """Why the service closes a connection (RFC 6455, section 7.4)."""

    GOING_AWAY = 1001  # the service stops
    UNSUPPORTED = 1003  # the client sends what this network does not read
    INVALID = 1007  # a message that cannot be read
    POLICY = 1008  # idle for too long, or does not read what the service sends
    TOO_BIG = 1009
    INTERNAL = 1011
    TRY_LATER = 1013  # the service has no room now


def record(stream: int, data: bytes) -> bytes:
    """One record of a binary message."""
    return RECORD.pack(stream, len(data)) + data


def records(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Stream and data of each record; ValueError if the message is not made of whole records."""
    at, end = 0, len(message)
    while at < end:
        if end - at < RECORD.size:
            raise ValueError(
                f"a binary message ends with {end - at} bytes that are no record: a record begins with 8 bytes"
            )
        stream, size = RECORD.unpack_from(message, at)
        at += RECORD.size
        if size > end - at:
            raise ValueError(f"a record of a binary message announces {size:,} bytes of data, and {end - at:,} follow")
        yield stream, message[at : at + size]
        at += size
