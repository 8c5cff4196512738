"""Live sound clients against a running `rankcode serve --api`, in real time.

Each stream plays recordings of a second, one after the other, in packets of 20 ms. A packet is sent when its last
sample would have been recorded. A recording ends with its decision, and the next one begins with the following packet,
so the number of live streams is constant. Every decision is compared with the one that `predict` gives for the
recording. A decision's latency is counted from the recording of the last sample that it depends on, so it includes the
time until that sample's packet was due. The server and the load run on the same machine, in a process each.

The load writes WebSocket frames itself, to sockets that never block, and masks the packets beforehand: with a client
object for each of 500 streams, the load would need more time than the server.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rankcode.data.sound_files import sound_blocks, sound_files
from rankcode.network import Network
from rankcode.prediction import Prediction, predict
from rankcode.serve.wire_format import PATH, RECORD

LIMIT_MS = 100.0  # within which 99 % of the decisions should come
PACKET_SECONDS = 0.02
PHASES = 10  # packets of different connections are sent at this many different times
WARM_UP_SECONDS = 2.0
RECOVERY_SECONDS = 1.0  # after which the server has forgotten that it was busy
CLIPS = 64  # different recordings
TOLERANCE = 1e-4  # of probabilities, between a stream and the whole recording
MASK = 0xA5A5A5A5  # of all frames; with four equal bytes a masked packet can stand anywhere in a message
MASKED = bytes(byte ^ 0xA5 for byte in range(256))


@dataclass(frozen=True)
class Served:
    """So many streams of clients for some seconds."""

    streams: int
    connections: int
    seconds: float
    decisions: int
    different: int  # decisions that are not those of the whole recordings
    refused: int  # streams that the service had no room for
    failed: int  # streams that ended in any other way
    p50: float  # milliseconds from the sound to the decision, median
    p99: float
    longest: float
    capacity: int  # streams that the server takes at once
    server_cores: float | None  # processor time of the server, in cores
    load_cores: float  # and of the load

    @property
    def holds(self) -> bool:
        return self.p99 <= LIMIT_MS and not (self.different or self.refused or self.failed)


class Clip(NamedTuple):
    """A recording as packets, masked, and the answer to it."""

    packets: list[bytes]
    expected: Prediction


def make_clips(network: Network, folder: str | None = None) -> list[Clip]:
    """Recordings of a folder of sound files, or generated ones: tones that rise or fall, in noise."""
    front_end: Any = network.front_end
    rate = front_end.sample_rate
    generator, sounds = np.random.default_rng(0), []
    if folder is not None:
        names = list(sound_files(folder))
        for name in generator.permutation(names)[:CLIPS]:
            sounds.append(np.concatenate(list(sound_blocks(Path(folder, name), rate)))[:rate])
    while folder is None and len(sounds) < CLIPS:
        seconds = np.arange(rate) / rate
        pitch = generator.uniform(200, 1500) * 2 ** (generator.uniform(-2, 2) * seconds)
        tone = np.sin(2 * np.pi * np.cumsum(pitch) / rate) * generator.uniform(0.01, 0.3)
        sounds.append(tone + 0.01 * generator.standard_normal(rate))
    size, clips = round(PACKET_SECONDS * rate), []
    for sound in sounds:
        samples = np.clip(np.round(32767 * sound), -32768, 32767).astype("<i2")
        packets = [samples[at : at + size].tobytes().translate(MASKED) for at in range(0, len(samples), size)]
        clips.append(Clip(packets, predict(network, samples / np.float32(32768))[0]))
    return clips


@contextmanager
def running_server(model: str, *options: str) -> Iterator[tuple[int, int, int]]:
    """A server with this model in a process of its own: its port, its process, and how many streams it takes."""
    command = [sys.executable, "-m", "rankcode", "serve", model, "--api", "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            line = ""
            for line in process.stderr:
                if line.startswith("{") and '"event": "started"' in line:
                    break
            else:
                raise RuntimeError(f"the server did not start: {line.removeprefix('rankcode: ').strip()}")
            # Read to the end: a full pipe would stop the server.
            started, reader = json.loads(line), threading.Thread(target=process.stderr.read, daemon=True)
            reader.start()
            try:
                yield started["port"], process.pid, started["streams"]
            finally:
                process.terminate()
                reader.join()
        finally:
            process.terminate()


class _Playing:
    """A stream that plays a recording."""

    __slots__ = ("clip", "next", "number", "started")

    def __init__(self, number: int, clip: Clip, started: float):
        self.number, self.clip, self.started, self.next = number, clip, started, 0


class _Connection:
    """A connection of the load with some streams, whose packets go out together in one message."""

    def __init__(self, port: int, streams: int, delay: float):
        self.streams, self.delay = streams, delay  # seconds after which its streams begin
        self.playing: dict[int, _Playing] = {}
        self.number = 0  # of the next stream
        self.unsent, self.incoming = b"", b""
        self.error = ""
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        request = f"GET {PATH} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        self.socket.sendall(
            f"{request}Sec-WebSocket-Key: {16 * 'A'}AAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        while b"\r\n\r\n" not in self.incoming and (part := self.socket.recv(4096)):
            self.incoming += part
        head, _, self.incoming = self.incoming.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 101"):
            self.error = head.partition(b"\r\n")[0].decode(errors="replace")
        self.socket.setblocking(False)
        self.send_text(b'{"type": "start", "dtype": "int16"}')

    def send_text(self, message: bytes) -> None:
        self.send(message.translate(MASKED), 0x81)

    def send(self, masked: bytes, kind: int = 0x82) -> None:
        """A frame with a message that is masked already."""
        size = len(masked)
        if size < 126:
            head = struct.pack(">BBI", kind, 0x80 | size, MASK)
        elif size < 1 << 16:
            head = struct.pack(">BBHI", kind, 0xFE, size, MASK)
        else:
            head = struct.pack(">BBQI", kind, 0xFF, size, MASK)
        self.flush(head + masked)

    def flush(self, more: bytes = b"") -> None:
        data = self.unsent + more if self.unsent else more
        try:
            sent = self.socket.send(data) if data else 0
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self.error, data, sent = str(error), b"", 0
        self.unsent = data[sent:]

    def play(self, clips: Sequence[Clip], now: float, may_begin: bool) -> None:
        """Send the packets that are due, of all streams in one message."""
        while may_begin and len(self.playing) < self.streams:
            clip = clips[(7 * self.number + self.streams) % len(clips)]
            self.playing[self.number] = _Playing(self.number, clip, now - PACKET_SECONDS)
            self.number += 1
        parts, ended = [], []
        for stream in self.playing.values():
            if stream.next < len(stream.clip.packets):
                packet = stream.clip.packets[stream.next]
                parts += (RECORD.pack(stream.number ^ MASK, len(packet) ^ MASK), packet)
            elif stream.next == len(stream.clip.packets):
                ended.append(stream.number)
            stream.next += 1
        if parts:
            self.send(b"".join(parts))
        for number in ended:
            self.send_text(b'{"type": "finish", "stream": %d}' % number)

    def messages(self) -> Iterator[dict[str, Any]]:
        """What the service has sent."""
        try:
            part = self.socket.recv(1 << 16)
            self.error = self.error if part else self.error or "closed"
            self.incoming += part
        except BlockingIOError:
            return
        except OSError as error:
            self.error = str(error)
        while len(self.incoming) >= 2:
            kind, size, at = self.incoming[0] & 15, self.incoming[1], 2
            if size == 126 and len(self.incoming) >= 4:
                (size,), at = struct.unpack_from(">H", self.incoming, 2), 4
            if len(self.incoming) < at + size or (size == 126 and at == 2):
                return
            content, self.incoming = self.incoming[at : at + size], self.incoming[at + size :]
            if kind == 1:
                yield json.loads(content)
            elif kind == 8:
                self.error = content[2:].decode(errors="replace") or "closed"


class _Results:
    def __init__(self) -> None:
        self.latencies: list[float] = []
        self.different = self.refused = self.failed = 0

    def take(self, connection: _Connection, message: dict[str, Any], now: float, measured_from: float) -> None:
        stream = connection.playing.pop(message.get("stream", -1), None)
        if stream is None:
            return
        if message["type"] == "error":
            self.refused += message["error"] == "busy"
            self.failed += message["error"] != "busy"
            connection.streams -= 1  # a client that is refused goes away
            return
        expected = stream.clip.expected
        heard = message["milliseconds"] / 1000 if message["fired"] else PACKET_SECONDS * len(stream.clip.packets)
        if now < measured_from:
            return
        answer = message["label"], message["steps"], message["fired"]
        same = answer == (expected.label, expected.steps, expected.fired)
        self.different += not (same and abs(message["probability"] - expected.probability) < TOLERANCE)
        self.latencies.append(1000 * (now - stream.started - heard))


def measure_serving(
    server: tuple[int, int, int], clips: Sequence[Clip], streams: int, per_connection: int, seconds: float
) -> Served:
    """Play this many streams to the server of `running_server`, after a warm-up."""
    port, process, capacity = server
    sizes = [min(per_connection, streams - first) for first in range(0, streams, per_connection)]
    connections, results = [], _Results()
    with selectors.DefaultSelector() as selector:
        for place, size in enumerate(sizes):
            connection = _Connection(port, size, delay=place / len(sizes))
            if connection.error:
                results.refused += size
                connection.socket.close()
                continue
            connections.append(connection)
            selector.register(connection.socket, selectors.EVENT_READ, connection)
        begun = time.perf_counter()
        measured_from = begun + WARM_UP_SECONDS
        own, before, turn = time.process_time(), _cpu_seconds(process), 0
        while (now := time.perf_counter()) < measured_from + seconds:
            due = begun + turn * PACKET_SECONDS / PHASES
            if now < due:
                time.sleep(due - now)
            for connection in connections[turn % PHASES :: PHASES]:
                connection.play(clips, due, due >= begun + connection.delay)
            turn += 1
            for key, _ in selector.select(0):
                connection, now = key.data, time.perf_counter()
                for message in connection.messages():
                    results.take(connection, message, now, measured_from)
                if connection.error:
                    results.failed += len(connection.playing)
                    selector.unregister(connection.socket)
                    connections.remove(connection)
                    connection.socket.close()
        elapsed = time.perf_counter() - begun
        after = _cpu_seconds(process)
        server_cores = None if before is None or after is None else (after - before) / elapsed
        load_cores = (time.process_time() - own) / elapsed
        for connection in connections:
            connection.socket.close()
    time.sleep(RECOVERY_SECONDS)
    centiles = [float("inf")] * 99
    if len(results.latencies) > 1:
        centiles = statistics.quantiles(results.latencies, n=100, method="inclusive")
    return Served(
        streams,
        len(sizes),
        seconds,
        len(results.latencies),
        results.different,
        results.refused,
        results.failed,
        centiles[49],
        centiles[98],
        max(results.latencies, default=float("inf")),
        capacity,
        server_cores,
        load_cores,
    )


def _cpu_seconds(process: int) -> float | None:
    """Processor time of another process, where the system shows it."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def serving_table(found: Iterable[Served]) -> str:
    """The measurements as text, and the largest number of streams that holds the limit."""
    found = list(found)
    lines = [
        f"{'streams':>8} {'connections':>12} {'decisions':>10} {'different':>10} {'refused':>8} {'p50 ms':>8} "
        f"{'p99 ms':>8} {'longest':>8} {'server':>7} {'load':>6}"
    ]
    for each in found:
        cores = "" if each.server_cores is None else f"{each.server_cores:.2f}"
        lines.append(
            f"{each.streams:>8,} {each.connections:>12,} {each.decisions:>10,} {each.different:>10,} "
            f"{each.refused:>8,} {each.p50:>8.1f} {each.p99:>8.1f} {each.longest:>8.1f} {cores:>7} "
            f"{each.load_cores:>6.2f}"
        )
    largest = max((each.streams for each in found if each.holds), default=0)
    return "\n".join([*lines, f"99 % of the decisions within {LIMIT_MS:g} ms: up to {largest:,} streams"])
