"""The one thread that reads all streams.

The event loop only appends messages to `inbox`. Every TICK_SECONDS the worker takes them out, adds their data to the
streams of a `StreamPool`, advances the pool once for all of them, and returns the answers to the event loop in one
batch. A stream advances by at most ITEMS of its data in a tick, so a client that sends a lot at once waits for itself
and not the others for it.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from rankcode.decision import Decision
from rankcode.prediction import named_answers
from rankcode.serve.admission import Admission
from rankcode.serve.json_logs import log
from rankcode.serve.limits import Limits
from rankcode.serve.metrics import Metrics
from rankcode.serve.served_model import ServedModel
from rankcode.serve.wire_format import Close, records
from rankcode.streaming import StreamPool

if TYPE_CHECKING:
    from rankcode.serve.connection import StreamConnection

TICK_SECONDS = 0.02
MAX_STEPS_PER_TICK = 16  # of one stream, where a step is an item of its data
MAX_SOUND_PER_TICK = 0.1  # seconds of one stream: five times what comes in real time
MAX_TICK_SECONDS = 1.0  # after which new clients are refused until the tick ends
WARM_UP_STREAMS = (1, 8, 64)  # at once
WARM_UP_TICKS = 4  # sound is read from the third on


@dataclass(eq=False, slots=True)
class LiveStream:
    """A stream of a client: its id in the pool, and its data that the pool has not got yet."""

    client: ClientStreams
    number: int
    id: int
    begun: float
    waiting: deque[bytes] = field(default_factory=deque)
    items: int = 0  # that the pool has got
    ended: bool = False  # by the client


class ClientStreams:
    """The streams of one connection. This and `received` belong to the event loop, everything else to the worker."""

    def __init__(self, dtype: str, item_bytes: int, connection: StreamConnection):
        self.dtype, self.item_bytes, self.connection = dtype, item_bytes, connection
        self.received = 0  # bytes of messages
        self.read = 0  # of these, bytes that wait for the pool no more
        self.live: dict[int, LiveStream] = {}  # by number
        self.last = -1  # the highest number so far
        self.admitted = 0  # the most streams that it had at once
        self.attempts = self.attempts_at = 0  # streams begun, or refused, in the tick of this number
        self.closed = False

    @property
    def backlog(self) -> int:
        """Bytes that wait to be read."""
        return self.received - self.read


class Outcome(NamedTuple):
    """Something to tell a client: a message, or that its connection is to be closed."""

    client: ClientStreams
    text: str
    close: Close | None = None


class StreamWorker:
    """Reads all streams in one thread. `deliver` is called in that thread with what the clients are to be told."""

    def __init__(self, model: ServedModel, limits: Limits, metrics: Metrics, deliver: Callable[[list[Outcome]], None]):
        self.model, self.limits, self.metrics, self.deliver = model, limits, metrics, deliver
        rate = model.sample_rate
        self.items_per_tick = MAX_STEPS_PER_TICK if rate is None else max(1, round(MAX_SOUND_PER_TICK * rate))
        self.inbox: deque[tuple[float, ClientStreams, Any]] = deque()
        self.admission = Admission(limits.lag_ms / 1000)
        self.loop_lag = 0.0  # seconds that the event loop, which fills the inbox, was late
        self._pool = self._new_pool()
        self._streams: dict[int, LiveStream] = {}  # by id in the pool
        self._active: dict[int, LiveStream] = {}  # those that have data for the pool, or have ended
        self._outcomes: list[Outcome] = []
        self._ticks = 0
        self._begun: float | None = None  # when the tick began that is being computed
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="streams", daemon=True)

    def start(self) -> None:
        self._warm_up()
        self._thread.start()

    def stop(self) -> None:
        """Stop after the tick that is being computed."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=5)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def live_streams(self) -> int:
        return len(self._streams)

    @property
    def stuck(self) -> bool:
        """Whether a tick takes so long that its lag, which is known at its end, is too large already."""
        begun = self._begun
        return begun is not None and time.monotonic() - begun > MAX_TICK_SECONDS

    # Called by the event loop

    def data(self, client: ClientStreams, message: bytes) -> None:
        client.received += len(message)
        self.inbox.append((time.monotonic(), client, message))

    def finish(self, client: ClientStreams, number: int) -> None:
        self.inbox.append((time.monotonic(), client, number))

    def leave(self, client: ClientStreams) -> None:
        """The connection of the client has ended."""
        self.inbox.append((time.monotonic(), client, None))

    # The thread

    def _run(self) -> None:
        torch.set_num_threads(1)  # of this thread; the event loop needs the others
        due = time.monotonic()
        while not self._stopping.wait(max(0.0, due - time.monotonic())):
            due = max(due + TICK_SECONDS, time.monotonic())
            self._begun = time.monotonic()
            try:
                self._tick()
            except Exception:  # a fault of ours: the streams are lost, the service goes on
                self.metrics.failures.add()
                log("the streams failed", logging.ERROR, exc_info=True)
                for client in {stream.client for stream in self._streams.values()}:
                    client.closed = True
                    client.live.clear()
                    self._outcomes.append(Outcome(client, "internal error", Close.INTERNAL))
                self._streams, self._active, self._pool = {}, {}, self._new_pool()
            self._begun = None
            if self._outcomes:
                outcomes, self._outcomes = self._outcomes, []
                self.deliver(outcomes)

    def _new_pool(self) -> StreamPool:
        return StreamPool(
            self.model.network, self.model.rule, self.limits.max_streams, max_buffered=self.items_per_tick
        )

    def _warm_up(self) -> None:
        """Read some silence: the first passes through a network take long, and would count as overload."""
        for count in WARM_UP_STREAMS:
            streams = [self._pool.open() for _ in range(min(count, self.limits.max_streams))]
            silence = np.zeros((self.items_per_tick, *(self.model.step_shape or ())), np.float32)
            for _ in range(WARM_UP_TICKS):
                for stream in streams:
                    with suppress(RuntimeError, ValueError):  # it has answered, or an image is complete
                        self._pool.push(stream, silence)
                self._pool.tick()
            for stream in streams:
                self._pool.close(stream)

    def _tick(self) -> None:
        self._ticks += 1
        begun = time.monotonic()
        oldest = self.inbox[0][0] if self.inbox else begun
        for _ in range(len(self.inbox)):  # not those that arrive in the meantime
            _, client, message = self.inbox.popleft()
            if client.closed:
                continue
            if isinstance(message, bytes):
                self._add(client, message, begun)
            elif message is None:
                self._drop(client)
            else:
                self._end(client, message)
        self._end_old(begun)
        lag = 0.0
        if self._active:
            for stream in list(self._active.values()):
                self._push(stream)
            self._answer(self._pool.tick())
            now = time.monotonic()
            lag = now - oldest
            self.metrics.tick.add(now - begun)
            self.metrics.lag.add(lag)
        self.admission.add(lag + self.loop_lag)

    def _add(self, client: ClientStreams, message: bytes, now: float) -> None:
        """Hand the data of a message to its streams."""
        kept = 0
        try:
            for number, data in records(message):
                stream = client.live.get(number) or self._begin(client, number, now)
                if stream is None or stream.ended:
                    continue
                if len(data) % client.item_bytes:
                    shape = list(self.model.step_shape or ()) or ""
                    self._fail(stream, f"{len(data):,} bytes are not a whole number of {client.dtype}{shape}")
                elif len(data):
                    stream.waiting.append(data)
                    kept += len(data)
                    self._active[stream.id] = stream
        except ValueError as error:
            self._outcomes.append(Outcome(client, str(error), Close.INVALID))
            self._drop(client)
        client.read += len(message) - kept

    def _begin(self, client: ClientStreams, number: int, now: float) -> LiveStream | None:
        """The stream of this number, if it is a new one and there is room for it."""
        if number <= client.last:
            return None  # it has ended
        client.last = number
        client.attempts = client.attempts + 1 if client.attempts_at == self._ticks else 1
        client.attempts_at = self._ticks
        if client.attempts > self.limits.streams_per_client:  # each costs time, even one that is refused
            raise ValueError(f"a connection may have {self.limits.streams_per_client} streams at once")
        full = len(self._streams) >= self.limits.max_streams
        if full or (self.admission.overloaded and len(client.live) >= client.admitted):
            self.metrics.refused.add(of="stream beyond capacity" if full else "stream in overload")
            self._tell(client, "error", number, error="busy", text="the service is busy: try again later")
            return None
        if len(client.live) >= self.limits.streams_per_client:
            raise ValueError(f"a connection may have {self.limits.streams_per_client} streams at once")
        stream = LiveStream(client, number, self._pool.open(), now)
        client.live[number] = self._streams[stream.id] = stream
        client.admitted = max(client.admitted, len(client.live))
        self.metrics.streams.add()
        return stream

    def _end(self, client: ClientStreams, number: int) -> None:
        """The client has sent all of this stream."""
        if (stream := client.live.get(number)) is not None:
            stream.ended = True
            self._active[stream.id] = stream
        elif number > client.last:
            client.last = number
            self._tell(client, "error", number, error="bad data", text="the stream was finished before any data came")

    def _end_old(self, now: float) -> None:
        """End streams that take too long. They are in the order in which they began."""
        while self._streams:
            stream = next(iter(self._streams.values()))
            if now - stream.begun <= self.limits.stream_seconds:
                break
            self._fail(stream, f"a stream may last {self.limits.stream_seconds:g} s", "too long")

    def _push(self, stream: LiveStream) -> None:
        """Give the pool as much of the data of a stream as it reads in a tick."""
        model, client = self.model, stream.client
        room = self.items_per_tick * client.item_bytes
        parts, size = [], 0
        while stream.waiting and size < room:
            parts.append(stream.waiting.popleft())
            size += len(parts[-1])
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        if size > room:
            stream.waiting.appendleft(data[room:])
            data = data[:room]
        try:
            if data:
                client.read += len(data)
                items = model.items(data, client.dtype)
                self._pool.push(stream.id, items)
                stream.items += len(items)
            if stream.ended and not stream.waiting:
                if stream.items == 0:
                    raise ValueError("the stream was finished before any data came")
                self._pool.finish(stream.id)
        except ValueError as error:
            return self._fail(stream, str(error))
        if not stream.waiting:
            del self._active[stream.id]

    def _answer(self, answers: list[tuple[int, Decision]]) -> None:
        if not answers:
            return
        streams = [self._streams[id] for id, _ in answers]
        decision = Decision(*map(torch.cat, zip(*(each for _, each in answers), strict=True)))
        decision = Decision(*(part.cpu() for part in decision))
        found = named_answers(self.model.network, decision, [stream.items for stream in streams])
        for stream, answer in zip(streams, found, strict=True):
            self._forget(stream)
            self.metrics.decisions.add(of=str(answer.fired).lower())
            self._tell(stream.client, "decision", stream.number, **answer._asdict())

    def _fail(self, stream: LiveStream, text: str, error: str = "bad data") -> None:
        """End a stream without an answer; the other streams of its connection go on."""
        self._pool.close(stream.id)
        self._forget(stream)
        self.metrics.errors.add()
        self._tell(stream.client, "error", stream.number, error=error, text=text)

    def _drop(self, client: ClientStreams) -> None:
        """End all streams of a connection."""
        client.closed = True
        for stream in list(client.live.values()):
            self._pool.close(stream.id)
            self._forget(stream)

    def _forget(self, stream: LiveStream) -> None:
        del self._streams[stream.id], stream.client.live[stream.number]
        self._active.pop(stream.id, None)
        stream.client.read += sum(map(len, stream.waiting))
        stream.waiting.clear()

    def _tell(self, client: ClientStreams, kind: str, stream: int, **content: Any) -> None:
        self._outcomes.append(Outcome(client, json.dumps({"type": kind, "stream": stream, **content})))
