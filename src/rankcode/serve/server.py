"""Runs the service with uvicorn, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import ctypes
import gc
import logging
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from rankcode.serve.api import http_app
from rankcode.serve.connection import StreamConnection
from rankcode.serve.json_logs import log, log_json
from rankcode.serve.service import Service

REQUEST_SECONDS = 10.0  # in which a new connection has to send the head of a request
SHUTDOWN_SECONDS = 5  # in which requests may end after a signal
FILES_BESIDES_CLIENTS = 200  # descriptors for HTTP, the model and the libraries
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
KEPT_BYTES = 1 << 28  # of freed memory: see `_keep_freed_memory`
SWITCH_SECONDS = 0.001  # that a thread waits for Python's lock: the default, 5 ms, adds up to late answers


class TimedHttpProtocol(HttpToolsProtocol):
    """uvicorn's HTTP, which by itself waits for a request without end."""

    def connection_made(self, transport: Any) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.loop.call_later(REQUEST_SECONDS, self._close_if_silent)

    def _close_if_silent(self) -> None:
        if self.cycle is None and self in self.connections:
            self.transport.close()


class SignalledServer(uvicorn.Server):
    """uvicorn's server, which returns after a signal instead of dying of it."""

    def __init__(self, config: uvicorn.Config, service: Service, started: Callable[[int], None] | None):
        super().__init__(config)
        self.service, self.on_start = service, started

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        with super().capture_signals():
            yield
            self._captured_signals.clear()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        port = (sockets or self.servers[0].sockets)[0].getsockname()[1]
        model = self.service.model
        log("started", port=port, model=model.name, version=model.version, streams=self.service.limits.max_streams)
        if self.on_start is not None:
            self.on_start(port)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.service.stopping = True
        log("stopping", clients=len(self.service.clients), streams=self.service.worker.live_streams)
        await super().shutdown(sockets)
        log("stopped")


def make_server(
    service: Service,
    host: str = "127.0.0.1",
    port: int = 8000,
    started: Callable[[int], None] | None = None,
) -> SignalledServer:
    """The server, which `run()` starts. `started` is called with the port when it listens."""
    config = uvicorn.Config(
        http_app(service),
        host=host,
        port=port,
        http=TimedHttpProtocol,
        ws=partial(StreamConnection, service),  # type: ignore[arg-type]
        loop="auto",  # uvloop where there is one
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=service.limits.max_clients + 100,  # HTTP connections beyond these get 503
        timeout_keep_alive=5,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    return SignalledServer(config, service, started)


def serve(service: Service, host: str, port: int, started: Callable[[int], None] | None = None) -> None:
    """Listen until a signal comes."""
    _check_free(host, port)
    log_json()
    _allow_open_files(service.limits.max_clients + FILES_BESIDES_CLIENTS)
    _keep_freed_memory()
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.collect()
    gc.freeze()  # what was loaded stays: looking through it again and again would stop all streams for 50 ms
    try:
        make_server(service, host, port, started).run()
    finally:
        gc.unfreeze()


def _keep_freed_memory() -> None:
    """Let the C library keep what a tick frees for the next one. By default it may return it to the system:
    up to 2,000 page faults in a tick of 500 streams, which took a fifth of its processor time."""
    with suppress(AttributeError, OSError):  # another C library than glibc
        mallopt = ctypes.CDLL(None).mallopt
        for option in (M_TRIM_THRESHOLD, M_MMAP_THRESHOLD):
            mallopt(option, KEPT_BYTES)


def _check_free(host: str, port: int) -> None:
    """Raise if the address cannot be listened on, with one line instead of uvicorn's log."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((host, port))
        except OSError as error:
            raise OSError(f"cannot listen on {host}, port {port}: {error.strerror or error}") from None


def _allow_open_files(wanted: int) -> None:
    """Raise the limit on open files, if the system allows it: each client needs one."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        possible = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (possible, hard))
        if possible < wanted:
            log("too few open files are allowed for all clients", logging.WARNING, allowed=possible, wanted=wanted)
