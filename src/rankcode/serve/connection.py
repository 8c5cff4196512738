"""A WebSocket connection, as uvicorn's protocol for them.

It stands in the place of uvicorn's own WebSocket protocol, which would pass every message through a queue, a task and
three layers of ASGI: with 25,000 messages per second that is more than a core. Here what comes in is cut into frames. A
whole binary message goes straight to the worker's inbox; every other frame goes to `websockets` (its Sans-I/O layer),
which does the handshake, text, fragments, pings and closing, and judges everything that is wrong.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from typing import TYPE_CHECKING, Any

from websockets.exceptions import InvalidState
from websockets.frames import Frame, Opcode, apply_mask  # type: ignore[reportPrivateImportUsage]
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol

from rankcode.serve.api import SECURITY_HEADERS
from rankcode.serve.json_logs import log
from rankcode.serve.stream_worker import ClientStreams
from rankcode.serve.wire_format import MAX_STREAM, Close

if TYPE_CHECKING:
    from rankcode.serve.service import Service

WHOLE_BINARY_MESSAGE = 0x82  # the first byte of its only frame
MASK_BYTES, NO_MASK = 4, bytes(4)
MAX_UNSENT_BYTES = 1 << 16  # a client that does not read so much is gone
LINGER_SECONDS = 2.0  # in which a refused client can read why, before its connection is reset
QUIET = logging.getLogger("rankcode.serve.websockets")
QUIET.setLevel(logging.CRITICAL)  # it would log the faults of clients as errors


def frame_sizes(data: bytes, at: int) -> tuple[int, int] | None:
    """Bytes of the head and of the payload of the frame that begins at this place; None: its head is not complete."""
    there = len(data) - at
    if there < 2:
        return None
    second = data[at + 1]
    size, head = second & 0x7F, 2
    if size == 126:
        if there < 4:
            return None
        size, head = data[at + 2] << 8 | data[at + 3], 4
    elif size == 127:
        if there < 10:
            return None
        size, head = int.from_bytes(data[at + 2 : at + 10]), 10
    return head + MASK_BYTES * (second >> 7), size


class StreamConnection(asyncio.Protocol):
    """One client. Everything here runs in the event loop, and nothing waits."""

    def __init__(self, service: Service, config: Any, server_state: Any, app_state: Any, _loop: Any = None):
        self.service, self.limits = service, service.limits
        self.loop = asyncio.get_running_loop()
        self.connections = server_state.connections
        self.protocol = ServerProtocol(max_size=self.limits.message_bytes, logger=QUIET)
        self.client: ClientStreams | None = None  # once it has said what it will send
        self.accepted = False
        self.closing = False
        self.code = 1006
        self.begun = self.last_message = time.monotonic()
        self._parts: list[bytes] = []  # of a fragmented message
        self._kind = Opcode.BINARY
        self._unread = b""  # a part of a frame, or more if the client sends too much
        self._allowance = float(self.limits.messages_per_second)  # messages that may come now
        self._refilled = self.begun

    # From the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        transport.set_write_buffer_limits(MAX_UNSENT_BYTES)  # type: ignore[attr-defined]
        self.connections.add(self)

    def data_received(self, data: bytes) -> None:
        if self.closing:
            return
        data = self._unread + data if self._unread else data
        if self in self.service.paused:
            self._unread = data  # with what was on its way when reading was paused
        else:
            self._feed(data)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        """The client does not read."""
        self.service.metrics.refused.add(of="does not read")
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.connections.discard(self)
        self.closing, self._unread = True, b""
        if self.client is not None:
            self.service.worker.leave(self.client)
        if self.accepted:
            self.service.leave(self)

    def shutdown(self) -> None:
        """The server stops."""
        self.close(Close.GOING_AWAY, "the service is stopping: connect again later")

    # What comes in

    def resume(self) -> None:
        """Read on, if the client is within its limits again."""
        if not self.closing and self._within_limits():
            self.service.paused.discard(self)
            self._feed(self._unread)
            if not self.closing and self not in self.service.paused:
                self.transport.resume_reading()

    def _feed(self, data: bytes) -> None:
        """Read the whole frames of the data, as many of them as the limits of the client allow now."""
        at, end = 0, len(data)
        while at < end and not self.closing:
            if not self._within_limits():
                self.service.pause(self)
                break
            if self.protocol.state is not State.OPEN:
                head, size = 0, end - at
            elif (found := frame_sizes(data, at)) is None:
                break
            else:
                head, size = found
                if size > self.limits.message_bytes:
                    head, size = 0, end - at  # is refused as soon as it is announced
            last = at + head + size
            if last > end:
                break
            masked = head and data[at + 1] >> 7
            if masked and data[at] == WHOLE_BINARY_MESSAGE and self.client is not None and not self._parts:
                mask, payload = data[at + head - MASK_BYTES : at + head], data[at + head : last]
                self._allowance -= 1
                self._message(payload if mask == NO_MASK else apply_mask(payload, mask))
            else:
                self._parse(data[at:last])
            at = last
        self._unread = b"" if self.closing else data[at:]

    def _parse(self, data: bytes) -> None:
        """Let the protocol read a request, or a frame."""
        self.protocol.receive_data(data)
        for event in self.protocol.events_received():
            self._allowance -= 1
            if isinstance(event, Frame):
                self._frame(event)
            else:
                self._request(event)
            if self.closing:
                return
        self._flush()
        if self.protocol.state is not State.OPEN and self.protocol.state is not State.CONNECTING:
            self._ended_by_protocol()

    def _within_limits(self) -> bool:
        if self.client is not None and self.client.backlog > 2 * self.limits.message_bytes:
            return False
        if self._allowance <= 0:
            now, rate = time.monotonic(), self.limits.messages_per_second
            self._allowance = min(rate, self._allowance + rate * (now - self._refilled))
            self._refilled = now
        return self._allowance > 0

    def _request(self, event: Any) -> None:
        """The HTTP request that asks for a WebSocket."""
        assert isinstance(event, Request)
        headers: dict[str, str] = {}
        for name, value in event.headers.raw_items():  # one that is sent twice is neither the one nor the other
            headers[name.lower()] = f"{headers[name.lower()]}, {value}" if name.lower() in headers else value
        refusal = self.service.refusal(headers, event.path.partition("?")[0])
        if refusal is not None:
            self.service.metrics.refused.add(of=refusal.reason)
            response = self.protocol.reject(refusal.status, refusal.text + "\n")
            response.headers.update(SECURITY_HEADERS)
            if refusal.status == 503:
                response.headers["Retry-After"] = "1"
        else:
            response = self.protocol.accept(event)
        self.protocol.send_response(response)
        if response.status_code != 101:
            self._finish_closing()
            return
        self.accepted = True
        self.service.enter(self)
        self.send(self.service.hello)

    def _frame(self, frame: Frame) -> None:
        if frame.opcode in (Opcode.BINARY, Opcode.TEXT, Opcode.CONT):
            if frame.opcode is not Opcode.CONT:
                self._kind, self._parts = frame.opcode, []
            self._parts.append(bytes(frame.data))
            if frame.fin:
                message, self._parts = b"".join(self._parts), []
                self._message(message) if self._kind is Opcode.BINARY else self._text(message)

    def _message(self, message: bytes) -> None:
        self.last_message = time.monotonic()
        if self.client is None:
            return self.close(Close.POLICY, "data came before the start message")
        self.service.metrics.messages.add()
        self.service.metrics.received.add(len(message))
        self.service.worker.data(self.client, message)

    def _text(self, message: bytes) -> None:
        self.last_message = time.monotonic()
        try:
            content = json.loads(message)
            kind = content["type"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return self.close(Close.INVALID, 'a text message is a JSON object with a "type"; data is sent as binary')
        if kind == "start":
            self._start(content)
        elif kind == "finish":
            number = content.get("stream")
            if self.client is None:
                self.close(Close.POLICY, "finish came before the start message")
            elif type(number) is int and 0 <= number <= MAX_STREAM:
                self.service.worker.finish(self.client, number)
            else:
                self.close(Close.INVALID, "finish needs the number of a stream")
        else:
            self.close(Close.INVALID, "there is no such type of message: use start or finish")

    def _start(self, content: dict[str, Any]) -> None:
        """The client says what it will send."""
        model = self.service.model
        if self.client is not None:
            return self.close(Close.POLICY, "start was sent twice")
        expected = {
            "version": model.version,
            "sample_rate": model.sample_rate,
            "step_shape": list(model.step_shape or ()),
        }
        for name, value in expected.items():
            if name in content and content[name] != value:
                return self.close(Close.UNSUPPORTED, f"the network has {name} {value}, not {str(content[name])[:40]}")
        dtype = content.get("dtype")
        if not isinstance(dtype, str) or dtype not in model.dtypes:
            return self.close(Close.UNSUPPORTED, f"dtype must be {' or '.join(model.dtypes)}, not {str(dtype)[:40]}")
        self.client = ClientStreams(dtype, model.item_bytes(dtype), self)
        self.send('{"type": "started"}')

    # What goes out

    def send(self, text: str) -> None:
        if not self.closing:
            self.protocol.send_text(text.encode())
            self._flush()

    def close(self, code: Close, text: str) -> None:
        """Tell the client why, and end the connection."""
        if self.closing:
            return
        if self.protocol.state is State.OPEN:
            content = {"type": "error", "error": code.name.lower(), "code": int(code), "text": text}
            self.protocol.send_text(json.dumps(content).encode())
            self.protocol.fail(code, text.encode()[:120].decode(errors="ignore"))
            self.code = int(code)
        log("refused a client", code=self.code, reason=text)
        self._finish_closing()

    def _ended_by_protocol(self) -> None:
        """The client has closed the connection, or sent what is not WebSocket."""
        sent, received = self.protocol.close_sent, self.protocol.close_rcvd
        self.code = received.code if received is not None else sent.code if sent is not None else 1006
        if received is None and sent is not None:
            log("refused a client", code=sent.code, reason=sent.reason)
        self._finish_closing()

    def _finish_closing(self) -> None:
        """Send what is left, then read and discard for a moment: a connection that is closed with data unread is
        reset, and the client would not learn why."""
        self.closing, self._unread = True, b""
        self.service.paused.discard(self)
        if self.transport.is_closing():
            return
        self._flush()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.transport.resume_reading()
        self.loop.call_later(LINGER_SECONDS, self.transport.abort)

    def _flush(self) -> None:
        try:
            data = b"".join(self.protocol.data_to_send())
        except InvalidState:
            return
        if data and not self.transport.is_closing():
            self.transport.write(data)
