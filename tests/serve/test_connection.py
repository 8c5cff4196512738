"""What comes in at a connection, cut anywhere: the messages are those that were sent, in their order."""

import asyncio
import itertools
import json
import struct
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from running_service import small_network
from websockets.frames import Frame, Opcode

from rankcode.serve.access import Access
from rankcode.serve.connection import StreamConnection, frame_sizes
from rankcode.serve.limits import Limits
from rankcode.serve.served_model import ServedModel
from rankcode.serve.service import Service

KEY = "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
REQUEST = f"GET /v1/stream HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n{KEY}".encode()
START = Frame(Opcode.TEXT, b'{"type": "start", "dtype": "int16"}').serialize(mask=True)
MODEL = ServedModel(small_network(), "test")


class Transport:
    """Keeps what is written."""

    def __init__(self):
        self.written, self.paused, self.ended = b"", False, False

    def write(self, data):
        self.written += data

    def write_eof(self):
        self.ended = True

    def can_write_eof(self):
        return True

    def is_closing(self):
        return False

    def pause_reading(self):
        self.paused = True

    def resume_reading(self):
        self.paused = False

    def set_write_buffer_limits(self, high):
        assert high > 0

    def abort(self):
        self.ended = True


async def received(chunks, **limits):
    """The messages that reach the worker, the connection and its transport."""
    service = Service(MODEL, Limits(**limits), Access())
    service.worker._thread = SimpleNamespace(is_alive=lambda: True)  # nothing is read: the messages stay
    connection = StreamConnection(service, None, SimpleNamespace(connections=set()), None)
    transport = Transport()
    connection.connection_made(transport)
    connection.data_received(REQUEST)
    assert transport.written.startswith(b"HTTP/1.1 101")
    for chunk in chunks:
        connection.data_received(chunk)
    return [message for _, _, message in service.worker.inbox], connection, transport


@st.composite
def messages(draw):
    """Frames as they are sent, and what should arrive."""
    sent, arrives = [], []
    for _ in range(draw(st.integers(1, 6))):
        content = draw(st.binary(max_size=300))
        kind = draw(st.sampled_from(["binary", "fragments", "finish", "ping"]))
        if kind == "binary":
            sent.append(Frame(Opcode.BINARY, content))
        elif kind == "fragments":
            cut = draw(st.integers(0, len(content)))
            between = [Frame(Opcode.PING, b"?")] if draw(st.booleans()) else []
            first, last = Frame(Opcode.BINARY, content[:cut], fin=False), Frame(Opcode.CONT, content[cut:])
            sent += [first, *between, last]
        elif kind == "finish":
            sent.append(Frame(Opcode.TEXT, json.dumps({"type": "finish", "stream": len(content)}).encode()))
        else:
            sent.append(Frame(Opcode.PING, content[:100]))
        arrives += [] if kind == "ping" else [len(content) if kind == "finish" else content]
    data = START + b"".join(frame.serialize(mask=True) for frame in sent)
    ends = sorted(draw(st.lists(st.integers(0, len(data)), max_size=12)))
    chunks = [data[begin:end] for begin, end in itertools.pairwise([0, *ends, len(data)]) if end > begin]
    return chunks, arrives


def test_a_refused_connection_has_the_security_headers():
    async def refused():
        service = Service(MODEL, Limits(), Access())
        connection = StreamConnection(service, None, SimpleNamespace(connections=set()), None)
        transport = Transport()
        connection.connection_made(transport)
        connection.data_received(REQUEST.replace(b"localhost", b"other.example"))
        return transport.written.lower()

    head = asyncio.run(refused())
    assert head.startswith(b"http/1.1 421")
    assert b"x-content-type-options: nosniff" in head and b"content-security-policy: default-src 'none'" in head


@settings(max_examples=150, deadline=None)
@given(messages())
def test_messages_arrive_whole_and_in_order_however_they_are_cut(case):
    chunks, arrives = case
    found, connection, transport = asyncio.run(received(chunks))
    assert found == arrives and not connection.closing and not transport.ended


@settings(max_examples=100, deadline=None)
@given(st.binary(min_size=1, max_size=200), st.integers(1, 50))
def test_any_bytes_are_refused_or_waited_for(content, size):
    """No bytes raise an error, and no more of them are kept than of the largest message."""
    chunks = [content[begin : begin + size] for begin in range(0, len(content), size)]
    _, connection, _ = asyncio.run(received([START, *chunks]))
    assert connection.closing or len(connection._unread) <= len(content)


def test_an_unmasked_message_is_refused():
    for payload in (b"abc", bytes(300), bytes(70_000)):
        found, connection, _ = asyncio.run(received([START, Frame(Opcode.BINARY, payload).serialize(mask=False)]))
        assert found == [] and connection.closing and connection.code == 1002


def test_a_message_between_the_fragments_of_another_is_refused():
    frames = [Frame(Opcode.BINARY, b"a", fin=False), Frame(Opcode.BINARY, b"b")]
    found, connection, _ = asyncio.run(received([START, *(each.serialize(mask=True) for each in frames)]))
    assert found == [] and connection.closing and connection.code == 1002


def test_a_message_that_is_too_large_is_refused_at_its_head():
    head = struct.pack(">BBQ", 0x82, 0xFF, 5000)
    found, connection, _ = asyncio.run(received([START, head[:5], head[5:], bytes(4)], message_bytes=4096))
    assert found == [] and connection.closing and connection.code == 1009


def test_a_client_beyond_its_limits_is_read_later():
    frame = Frame(Opcode.BINARY, bytes(2000)).serialize(mask=True)

    async def play():
        found, connection, transport = await received([START, 10 * frame], message_bytes=4096)
        assert len(found) == 5 and transport.paused  # the first that makes more than two of the largest messages wait
        connection.client.read = connection.client.received
        connection.resume()
        assert len(connection.service.worker.inbox) == 10 and not transport.paused
        found, connection, transport = await received([START, 10 * frame], messages_per_second=4)
        assert len(found) == 3 and transport.paused  # the start message was one
        connection._refilled -= 0.5
        connection.resume()
        assert len(connection.service.worker.inbox) == 5 and transport.paused

    asyncio.run(play())


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536])
def test_the_sizes_of_a_frame(size, masked):
    data = Frame(Opcode.BINARY, bytes(size)).serialize(mask=masked)
    head, payload = frame_sizes(b"xx" + data, 2)
    assert payload == size and head + payload == len(data)
    unmasked = head - 4 * masked
    assert [frame_sizes(data[:end], 0) for end in range(unmasked)] == unmasked * [None]
