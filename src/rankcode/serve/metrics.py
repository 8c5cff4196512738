"""Counts and times of the service in the text format of Prometheus (version 0.0.4)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate

SECONDS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0)


class Counter:
    """A number that only grows, for each value of its label. Each is changed by one thread only."""

    def __init__(self, name: str, text: str, label: str = ""):
        self.name, self.text, self.label = name, text, label
        self.values: dict[str, float] = {} if label else {"": 0}

    def add(self, value: float = 1, of: str = "") -> None:
        self.values[of] = self.values.get(of, 0) + value

    def lines(self) -> Iterable[str]:
        yield from (f"# HELP {self.name} {self.text}", f"# TYPE {self.name} counter")
        for of, value in dict(self.values).items():
            yield f'{self.name}{{{self.label}="{of}"}} {value}' if self.label else f"{self.name} {value}"


class Histogram:
    """Times in seconds, counted by size."""

    def __init__(self, name: str, text: str):
        self.name, self.text = name, text
        self.counts, self.total = [0] * (len(SECONDS) + 1), 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(SECONDS, seconds)] += 1
        self.total += seconds

    def lines(self) -> Iterable[str]:
        yield from (f"# HELP {self.name} {self.text}", f"# TYPE {self.name} histogram")
        counts = [*accumulate(self.counts)]
        for limit, count in zip([*map(str, SECONDS), "+Inf"], counts, strict=True):
            yield f'{self.name}_bucket{{le="{limit}"}} {count}'
        yield from (f"{self.name}_sum {self.total}", f"{self.name}_count {counts[-1]}")


class Metrics:
    """What the service counts."""

    def __init__(self) -> None:
        self.clients = Counter("rankcode_clients_total", "WebSocket connections that were accepted.")
        self.refused = Counter("rankcode_refused_total", "Connections, streams and requests refused.", "reason")
        self.closed = Counter("rankcode_closed_total", "WebSocket connections that ended.", "code")
        self.received = Counter("rankcode_received_bytes_total", "Bytes of WebSocket messages.")
        self.messages = Counter("rankcode_messages_total", "WebSocket messages received.")
        self.slowed = Counter("rankcode_slowed_total", "Times a client was not read from because it sent too much.")
        self.streams = Counter("rankcode_streams_total", "Streams that were started.")
        self.decisions = Counter("rankcode_decisions_total", "Decisions of streams.", "fired")
        self.errors = Counter("rankcode_stream_errors_total", "Streams that ended with an error.")
        self.files = Counter("rankcode_files_total", "Files that were classified, by HTTP status.", "status")
        self.failures = Counter("rankcode_failures_total", "Errors of the service itself.")
        self.tick = Histogram("rankcode_tick_seconds", "Time to read all that has come, of all streams.")
        self.lag = Histogram("rankcode_lag_seconds", "Time from the arrival of the oldest message until it was read.")

    def text(self, gauges: dict[str, tuple[str, float]]) -> str:
        """All of them; `gauges` are numbers of this moment, each with its description."""
        lines = [line for each in vars(self).values() for line in each.lines()]
        for name, (text, value) in gauges.items():
            lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge", f"{name} {value}"]
        return "\n".join(lines) + "\n"
