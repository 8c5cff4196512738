"""The service: a network, its worker, the clients, and the limits that hold for them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rankcode.serve.access import Access, Refusal
from rankcode.serve.json_logs import log
from rankcode.serve.limits import Limits
from rankcode.serve.metrics import Metrics
from rankcode.serve.served_model import ServedModel
from rankcode.serve.stream_worker import TICK_SECONDS, Outcome, StreamWorker
from rankcode.serve.wire_format import PATH, VERSION, Close

if TYPE_CHECKING:
    from rankcode.serve.connection import StreamConnection

SWEEP_SECONDS = 0.5  # between two looks for idle connections
GATHER_SECONDS = 0.004  # in which messages gather before they are read
MANY_MESSAGES = 4000  # per second, from which on they do


class Service:
    """All that the parts of the server share. Belongs to the event loop."""

    def __init__(self, model: ServedModel, limits: Limits | None = None, access: Access | None = None):
        self.model, self.limits, self.access = model, limits or Limits(), access or Access()
        self.metrics = Metrics()
        self.worker = StreamWorker(model, self.limits, self.metrics, self._from_worker)
        self.clients: set[StreamConnection] = set()
        self.paused: set[StreamConnection] = set()  # those that sent too much, and are not read from
        self.uploads = 0  # files that are read or wait to be read
        self.stopping = False
        self.hello = json.dumps({"type": "hello", **self.description()})
        self._tasks: list[asyncio.Task[None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    def description(self) -> dict[str, Any]:
        """What a client has to know before it sends anything."""
        shown = ("streams_per_client", "message_bytes", "messages_per_second", "idle_seconds", "stream_seconds")
        limits = {name: getattr(self.limits, name) for name in (*shown, "upload_bytes")}
        return {"protocol": VERSION, "model": self.model.description(), "limits": limits}

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.worker.start()
        always = self._resume_paused(), self._gather(), self._close_idle()
        self._tasks = [asyncio.create_task(each) for each in always]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.to_thread(self.worker.stop)

    @property
    def not_ready(self) -> str:
        """Why new clients are refused now; empty if they are not."""
        if self.stopping:
            return "stopping"
        if not self.worker.alive:
            return "the streams are not read"
        if self.worker.admission.overloaded or self.worker.stuck:
            return "overload"
        return "capacity" if self.worker.live_streams >= self.limits.max_streams else ""

    def refusal(self, headers: Mapping[str, str], path: str) -> Refusal | None:
        """Why a new connection is refused; None: it is not."""
        if path != PATH:
            return Refusal(404, "path", f"streams are at {PATH}")
        if (refused := self.access.refusal(headers)) is not None:
            return refused
        busy = self.not_ready or ("clients" if len(self.clients) >= self.limits.max_clients else "")
        return Refusal(503, busy, "the service is busy: try again later") if busy else None

    # Connections

    def enter(self, connection: StreamConnection) -> None:
        self.clients.add(connection)
        self.metrics.clients.add()

    def leave(self, connection: StreamConnection) -> None:
        self.clients.discard(connection)
        self.paused.discard(connection)
        self.metrics.closed.add(of=str(connection.code))
        log("client left", code=connection.code, seconds=round(time.monotonic() - connection.begun, 3))

    def pause(self, connection: StreamConnection) -> None:
        """Stop reading from a client that sends too much; TCP then stops it."""
        if connection not in self.paused:
            self.paused.add(connection)
            connection.transport.pause_reading()
            self.metrics.slowed.add()

    def _from_worker(self, outcomes: list[Outcome]) -> None:
        """Called by the worker's thread."""
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._deliver, outcomes)
        except RuntimeError:  # the loop has been closed
            log("answers were lost as the server has stopped", count=len(outcomes))

    def _deliver(self, outcomes: list[Outcome]) -> None:
        for client, text, close in outcomes:  # a connection that has ended ignores them
            if close is None:
                client.connection.send(text)
            else:
                client.connection.close(close, text)

    async def _resume_paused(self) -> None:
        """Read on from clients that are within their limits again, and see how late the event loop is."""
        while True:
            due = time.monotonic() + TICK_SECONDS
            await asyncio.sleep(TICK_SECONDS)
            self.worker.loop_lag = time.monotonic() - due
            for connection in list(self.paused):
                connection.resume()

    async def _gather(self) -> None:
        """While many messages come, read those of a few milliseconds together: to wake up for each takes longer than
        to read it, and every time the worker's thread may have to wait for Python's lock."""
        before, begun, many = 0.0, time.monotonic(), False
        while True:
            await asyncio.sleep(0 if many else TICK_SECONDS)  # 0: read what is there
            count, now = self.metrics.messages.values[""], time.monotonic()
            many = count - before > MANY_MESSAGES * (now - begun)
            before, begun = count, now
            if many:
                time.sleep(GATHER_SECONDS)

    async def _close_idle(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            oldest = time.monotonic() - self.limits.idle_seconds
            for connection in [each for each in self.clients if each.last_message < oldest]:
                connection.close(Close.POLICY, f"no message came for {self.limits.idle_seconds:g} s")
