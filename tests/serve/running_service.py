"""A real server on a free port of this machine, honest clients of it, and sockets for clients that are not."""

import base64
import json
import os
import socket
import struct
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager

import numpy as np
import pytest

pytest.importorskip("fastapi")

import rankcode as rc
from live_networks import sound_network
from rankcode.serve.access import Access
from rankcode.serve.client import Client
from rankcode.serve.limits import Limits
from rankcode.serve.served_model import ServedModel
from rankcode.serve.server import make_server
from rankcode.serve.service import Service

BINARY, TEXT, CLOSE = 2, 1, 8
RULE = rc.Threshold(0.6)


def small_network():
    """Sound at 4 kHz; some of `sounds` fire early, some late, some never."""
    network = sound_network()
    network.label_names, network.rule = ("low", "middle", "high"), RULE
    return network


def sounds(count, seed=0, rate=4000):
    """Recordings of half a second: tones of different pitch and loudness in noise, samples of 16 bits."""
    generator, seconds = np.random.default_rng(seed), np.arange(rate // 2) / rate
    for _ in range(count):
        tone = generator.uniform(0.001, 0.9) * np.sin(2 * np.pi * generator.uniform(50, 1900) * seconds)
        tone *= seconds > generator.uniform(0, 0.4)
        noise = 10 ** generator.uniform(-4, -1) * generator.standard_normal(len(seconds))
        yield np.clip(32767 * (tone + noise), -32768, 32767).astype(np.int16)


def expected_answers(network, recordings):
    return [rc.predict(network, each / np.float32(32768))[0] for each in recordings]


def same(found, expected):
    return found[:1] + found[2:4] == expected[:1] + expected[2:4] and abs(found[1] - expected[1]) < 1e-5


class Running:
    """A service in a thread of this process."""

    def __init__(self, service, port):
        self.service, self.port = service, port
        self.url = f"http://127.0.0.1:{port}"

    def metrics(self):
        return metrics(self.port)


@contextmanager
def running(network=None, access=None, **limits):
    """A service of this network, until the block ends. A busy machine does not make it refuse clients."""
    limits = {"lag_ms": 5000.0, **limits}
    service = Service(ServedModel(network or small_network(), "test"), Limits(**limits), access or Access())
    found, ready = [], threading.Event()

    def started(port):
        found.append(port)
        ready.set()

    server = make_server(service, port=0, started=started)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    assert ready.wait(20), "the server did not start"
    try:
        yield Running(service, found[0])
    finally:
        server.should_exit = True
        thread.join(15)
        assert not thread.is_alive(), "the server did not stop"


def request(port, path, body=None, **headers):
    """(status, headers, text) of an HTTP request."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    call = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, sent)
    try:
        with urllib.request.urlopen(call, timeout=20) as response:
            return response.status, response.headers, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read().decode()


def metrics(port):
    """Every number of /metrics by its name."""
    lines = request(port, "/metrics")[2].splitlines()
    return {name: float(value) for name, _, value in (each.rpartition(" ") for each in lines if each[0] != "#")}


def wait_until(condition, seconds=5.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


class BusyError(Exception):
    """The server has no room, or is overloaded."""


class Raw:
    """A WebSocket client that can do everything wrong."""

    def __init__(self, port, start=True, **headers):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        head = {"Host": f"127.0.0.1:{port}", "Upgrade": "websocket", "Connection": "Upgrade"}
        head |= {"Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(), "Sec-WebSocket-Version": "13"}
        head |= {name.replace("_", "-"): value for name, value in headers.items()}
        lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
        self.socket.sendall(f"GET {self.path} HTTP/1.1\r\n{lines}\r\n".encode())
        self.buffer = b""
        while b"\r\n\r\n" not in self.buffer:
            part = self.socket.recv(4096)
            assert part, "closed without a response"
            self.buffer += part
        response, _, self.buffer = self.buffer.partition(b"\r\n\r\n")
        self.status = int(response.split()[1])
        if self.status == 503 and start:
            raise BusyError
        if self.status == 101:
            self.hello = self.message()
            if start:
                self.text(type="start", dtype="int16")
                assert self.message() == {"type": "started"}

    path = "/v1/stream"

    def frame(self, opcode, payload, fin=True, declared=None, masked=True):
        """A frame, whose header may announce more than there is."""
        size = len(payload) if declared is None else declared
        flag = 0x80 if masked else 0
        if size < 126:
            head = struct.pack(">BB", 0x80 * fin | opcode, flag | size)
        elif size < 1 << 16:
            head = struct.pack(">BBH", 0x80 * fin | opcode, flag | 126, size)
        else:
            head = struct.pack(">BBQ", 0x80 * fin | opcode, flag | 127, size)
        self.socket.sendall(head + bytes(4 * masked) + payload)  # the mask 0

    def text(self, **content):
        self.frame(TEXT, json.dumps(content).encode())

    def data(self, stream, samples):
        content = samples if isinstance(samples, bytes) else samples.tobytes()
        self.frame(BINARY, struct.pack("<II", stream, len(content)) + content)

    def event(self):
        """The next frame from the server: its opcode and payload; None at the end."""
        while True:
            if len(self.buffer) >= 2:
                size, at = self.buffer[1], 2
                if size == 126:
                    size, at = struct.unpack_from(">H", self.buffer + bytes(2), 2)[0], 4
                if len(self.buffer) >= at + size:
                    opcode, payload = self.buffer[0] & 15, self.buffer[at : at + size]
                    self.buffer = self.buffer[at + size :]
                    return opcode, payload
            try:
                part = self.socket.recv(1 << 16)
            except ConnectionResetError:
                part = b""
            if not part:
                return None
            self.buffer += part

    def message(self):
        opcode, payload = self.event()
        assert opcode == TEXT, (opcode, payload)
        return json.loads(payload)

    def closed(self):
        """The close code and the reason, after any messages."""
        while (event := self.event()) is not None:
            if event[0] == CLOSE:
                return struct.unpack(">H", event[1][:2])[0], event[1][2:].decode()
        return None

    def vanish(self):
        """End the connection with a reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


class Bystanders:
    """Honest clients that send recordings in packets while something else happens to the server. When the block ends,
    all of their answers must have been right, and in time."""

    def __init__(self, url, network, clients=3, slowest=10.0):
        self.url, self.slowest = url, slowest
        self.recordings = list(sounds(6, seed=9))
        self.expected = expected_answers(network, self.recordings)
        self.ending, self.wrong, self.waits = threading.Event(), [], []
        self.threads = [threading.Thread(target=self._run, args=(number,)) for number in range(clients)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.are_served(1)  # during or after what happened
        self.ending.set()
        for thread in self.threads:
            thread.join(20)
        if kind is None:
            self.check()

    def check(self):
        assert self.wrong == [] and self.waits and max(self.waits) < self.slowest, (self.wrong, self.waits)

    def are_served(self, answers=3):
        """Wait until so many more answers have come, and check them all."""
        before = len(self.waits)
        wait_until(lambda: len(self.waits) >= before + answers or self.wrong, 20)
        self.check()

    def _run(self, number):
        try:
            with Client(self.url, "int16") as client:
                while not self.ending.is_set():
                    number = (number + 1) % len(self.recordings)
                    recording, answer = self.recordings[number], None
                    for begin in range(0, len(recording), 80):  # 20 ms
                        sent = time.monotonic()
                        if (answer := client.push(recording[begin : begin + 80])) is not None:
                            break
                        time.sleep(0.002)
                    answer = client.finish() if answer is None else answer
                    self.waits.append(time.monotonic() - sent)
                    if not same(answer, self.expected[number]):
                        self.wrong.append((answer, self.expected[number]))
        except Exception as error:  # reported by the test
            self.wrong.append(error)
