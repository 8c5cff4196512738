"""All faults together for ten minutes, with a restart and a replaced model file in between (RANKCODE_SOAK_SECONDS)."""

import http.client
import os
import signal
import struct
import threading
import time
from collections import Counter

import numpy as np
import pytest
from running_service import BINARY, TEXT, BusyError, Raw, expected_answers, request, same, small_network, sounds

import rankcode as rc
from rankcode.serve.client import Client, ServiceError
from server_process import ServerProcess

SECONDS = float(os.environ.get("RANKCODE_SOAK_SECONDS", "600"))
RESTARTS = 3  # the server is killed at the end of each part but the last
HONEST = 8
MAX_GROWTH = 30e6  # bytes of resident memory, after the first quarter of a part
QUIET = np.zeros(400, np.int16)


def vanish(port):
    client = Raw(port)
    client.data(0, QUIET)
    client.frame(BINARY, bytes(100), declared=1000)
    client.vanish()


def stall(port):
    client = Raw(port)
    client.data(0, QUIET)
    client.frame(BINARY, bytes(100), declared=1000)
    assert client.closed()[0] == 1008
    client.socket.close()


def flood(port):
    client = Raw(port)
    client.socket.settimeout(0.5)
    message = b"".join(struct.pack("<II", stream, 8000) + bytes(8000) for stream in range(8))
    try:
        while True:
            client.frame(BINARY, message)
    except OSError:
        client.vanish()


def flood_of_tiny_messages(port):
    client = Raw(port)
    client.socket.settimeout(0.5)
    frame = struct.pack(">BB4x", 0x82, 0x80 | 10) + struct.pack("<IIh", 0, 2, 0)
    try:
        while True:
            client.socket.sendall(1000 * frame)
    except OSError:
        client.vanish()


def refused(send, code):
    def fault(port):
        client = Raw(port)
        send(client)
        assert client.closed()[0] == code
        client.socket.close()

    return fault


def not_started(port):
    client = Raw(port, start=False)
    if client.status == 503:
        raise BusyError
    return client


def another_model(port):
    client = not_started(port)
    client.text(type="start", dtype="float64", step_shape=[420])
    assert client.closed()[0] == 1003
    client.socket.close()


def nan(port):
    client = not_started(port)
    client.text(type="start", dtype="float32")
    client.message()
    client.data(0, np.full(100, np.nan, "<f4"))
    error = client.message()["error"]
    client.socket.close()
    if error == "busy":
        raise BusyError
    assert error == "bad data"


def upload_of_a_gigabyte(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("POST", "/v1/classify?format=wav", (bytes(1 << 20) for _ in range(1024)))
        assert connection.getresponse().status in (413, 503)
    except (BrokenPipeError, ConnectionResetError):
        pass
    connection.close()


def bad_upload(port):
    assert request(port, "/v1/classify?format=flac", b"fLaC" + os.urandom(20_000))[0] in (422, 503)


FAULTS = {
    "vanish": vanish,
    "stall": stall,
    "flood": flood,
    "flood of tiny messages": flood_of_tiny_messages,
    "garbage": refused(lambda c: c.frame(BINARY, b"\xff" * 100), 1007),
    "half a record": refused(lambda c: c.frame(BINARY, struct.pack("<II", 0, 640) + bytes(320)), 1007),
    "text": refused(lambda c: c.frame(TEXT, b"0.1 0.2"), 1007),
    "a gigabyte announced": refused(lambda c: c.frame(BINARY, bytes(100), declared=1 << 30), 1009),
    "another model": another_model,
    "nan": nan,
    "upload of a gigabyte": upload_of_a_gigabyte,
    "bad upload": bad_upload,
}


class Soak:
    def __init__(self, folder):
        self.folder, self.server = folder, None
        self.part, self.ending = 0, threading.Event()
        self.recordings = list(sounds(20, seed=5))
        self.expected = expected_answers(small_network(), self.recordings)
        self.waits, self.problems, self.faults, self.lost = [], [], Counter(), Counter()

    def honest(self, number):
        """Real-time streams. A killed server is one error in each part."""
        while not self.ending.is_set():
            part = self.part
            try:
                with Client(self.server.url, "int16", timeout=20) as client:
                    while not self.ending.is_set():
                        number = (number + 1) % len(self.recordings)
                        self.play(client, number)
            except ServiceError as error:
                expected = "try again later" in str(error) or "there is no service" in str(error)
                if not expected and self.part == part and not self.server.killed:
                    self.problems.append(f"honest: {error}")
                self.lost[str(error)[:40]] += 1
                time.sleep(0.3)

    def play(self, client, number):
        recording, due = self.recordings[number], time.monotonic()
        for begin in range(0, len(recording), 80):
            due += 0.02
            time.sleep(max(0.0, due - time.monotonic()))
            sent = time.monotonic()
            if (answer := client.push(recording[begin : begin + 80])) is not None:
                break
        else:
            answer = client.finish()
        self.waits.append(time.monotonic() - sent)
        if not same(answer, self.expected[number]):
            self.problems.append(f"{answer} instead of {self.expected[number]}")

    def faulty(self, name):
        while not self.ending.is_set():
            part = self.part
            try:
                FAULTS[name](self.server.port)
                self.faults[name] += 1
            except BusyError:
                self.faults["refused as busy"] += 1
            except Exception as error:
                if self.part == part and not self.server.killed:
                    self.problems.append(f"{name}: {error!r}")
            time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 300)
def test_all_faults_together(tmp_path):
    model, here = tmp_path / "model.safetensors", tmp_path / "here"
    here.mkdir()
    rc.save(small_network(), model)
    content = model.read_bytes()
    soak, port, sizes = Soak(tmp_path), 0, []
    threads = [threading.Thread(target=soak.honest, args=(number,)) for number in range(HONEST)]
    threads += [threading.Thread(target=soak.faulty, args=(name,)) for name in FAULTS]
    for part in range(RESTARTS + 1):
        server = ServerProcess(here, model, "--max-streams", "200", "--idle-seconds", "8", port=port)
        server.killed = False
        soak.server, soak.part, port = server, part, server.port
        if part == 0:
            for thread in threads:
                thread.start()
        grown, end = [], time.monotonic() + SECONDS / (RESTARTS + 1)
        while time.monotonic() < end:
            model.write_bytes(content[: len(content) // 2])  # is not read again while the server runs
            time.sleep(0.5)
            grown.append(server.rss())
            assert server.process.poll() is None, server.lines[-5:]
        model.write_bytes(content)
        sizes.append((grown[len(grown) // 4], max(grown)))
        if part == RESTARTS:
            soak.ending.set()
            for thread in threads:
                thread.join(30)
        server.killed = True
        assert server.stop(signal.SIGTERM if part == RESTARTS else signal.SIGKILL) == (0 if part == RESTARTS else -9)
        errors = [each for each in server.events() if each["level"] not in ("info", "warning")]
        assert errors == []
    waits = sorted(soak.waits)
    late = waits[int(0.99 * len(waits))]
    print(f"{len(waits):,} answers, 99 % within {1000 * late:.0f} ms; memory {sizes}; {soak.faults}; {soak.lost}")
    assert soak.problems == [], (len(soak.problems), Counter(each[:60] for each in soak.problems))
    assert len(waits) > SECONDS * HONEST / 5
    assert min(soak.faults[name] for name in FAULTS) > 3
    assert all(most - early < MAX_GROWTH for early, most in sizes), sizes
    assert list(here.iterdir()) == []
