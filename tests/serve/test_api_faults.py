"""Each fault of a client alone: it is refused with a clear reason, and the other clients do not notice."""

import json
import os
import struct
import time

import numpy as np
import pytest
from running_service import (
    BINARY,
    TEXT,
    Bystanders,
    Raw,
    expected_answers,
    metrics,
    running,
    same,
    small_network,
    sounds,
    wait_until,
)

QUIET = np.zeros(400, np.int16)


@pytest.fixture(scope="module")
def server():
    with running(message_bytes=1 << 16, streams_per_client=8, messages_per_second=500) as found:
        yield found


@pytest.fixture(scope="module")
def bystanders(server):
    with Bystanders(server.url, small_network()) as found:
        yield found


@pytest.fixture(autouse=True)
def others_do_not_notice(request):
    """Beside every test of this file that uses the common server, honest clients use it."""
    others = request.getfixturevalue("bystanders") if "server" in request.fixturenames else None
    yield
    if others is not None:
        others.are_served()


def rss():
    """Resident memory of this process, with the server in it, in bytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def started(client, **content):
    client.text(type="start", **content)


REFUSED = {  # what a client sends after the hello: the close code, a part of the reason
    "text that is not JSON": (lambda c: c.frame(TEXT, b"yes please"), 1007, "JSON"),
    "JSON that is not an object": (lambda c: c.frame(TEXT, b"[1, 2]"), 1007, "JSON"),
    "deeply nested JSON": (lambda c: c.frame(TEXT, b"[" * 50_000), 1007, "JSON"),
    "text that is not UTF-8": (lambda c: c.frame(TEXT, b'{"type": "\xff\xfe"}'), 1007, ""),
    "an unknown type": (lambda c: c.text(type="shout"), 1007, "type of message"),
    "data before start": (lambda c: c.data(0, QUIET), 1008, "before the start"),
    "finish before start": (lambda c: c.text(type="finish", stream=0), 1008, "before the start"),
    "another sample rate": (lambda c: started(c, dtype="int16", sample_rate=16_000), 1003, "sample_rate 4000"),
    "another step shape": (lambda c: started(c, dtype="int16", step_shape=[3]), 1003, "step_shape"),
    "another model": (lambda c: started(c, dtype="int16", version="0123456789abcdef"), 1003, "version"),
    "another dtype": (lambda c: started(c, dtype="float64"), 1003, "int16 or float32"),
    "a dtype that is a list": (lambda c: started(c, dtype=["int16"]), 1003, "dtype"),
    "an unmasked frame": (lambda c: c.frame(TEXT, b"{}", masked=False), 1002, "mask"),
    "a reserved opcode": (lambda c: c.frame(5, b""), 1002, "opcode"),
    "a continuation of nothing": (lambda c: c.frame(0, b"abc"), 1002, "continuation"),
    "bytes that are no frames": (lambda c: c.socket.sendall(b"\xff" * 1100), 1002, "opcode"),
    "a frame that announces a gigabyte": (lambda c: c.frame(BINARY, b"abc", declared=1 << 30), 1009, ""),
}
REFUSED_LATER = {  # the same after a start message
    "start twice": (lambda c: started(c, dtype="int16"), 1008, "twice"),
    "random bytes": (lambda c: c.frame(BINARY, b"\xff" * 100), 1007, "announces 4,294,967,295"),
    "less than a record": (lambda c: c.frame(BINARY, b"abc"), 1007, "3 bytes"),
    "half of a record": (lambda c: c.frame(BINARY, struct.pack("<II", 0, 640) + bytes(320)), 1007, "320 follow"),
    "samples as text": (lambda c: c.frame(TEXT, b"0.1 0.2 0.3"), 1007, "binary"),
    "finish of no stream": (lambda c: c.text(type="finish"), 1007, "number of a stream"),
    "finish of a negative stream": (lambda c: c.text(type="finish", stream=-1), 1007, "number of a stream"),
    "too many streams": (lambda c: [c.data(number, QUIET) for number in range(9)], 1007, "8 streams at once"),
    "thousands of streams in one message": (
        lambda c: c.frame(BINARY, b"".join(struct.pack("<IIb", number, 1, 0) for number in range(7000))),
        1007,
        "8 streams at once",
    ),
    "a message in parts that is too large": (
        lambda c: [c.frame(BINARY if part == 0 else 0, bytes(30_000), fin=False) for part in range(3)],
        1009,
        "",
    ),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_refused(server, fault):
    send, code, reason = REFUSED[fault]
    check_refused(Raw(server.port, start=False), send, code, reason)


@pytest.mark.parametrize("fault", REFUSED_LATER)
def test_refused_after_the_start(server, fault):
    send, code, reason = REFUSED_LATER[fault]
    check_refused(Raw(server.port), send, code, reason)


def check_refused(client, send, code, reason):
    send(client)
    found = client.closed()
    assert found is not None and found[0] == code and reason in found[1], found
    client.socket.close()


BAD_DATA = {
    "an odd number of bytes": ("int16", bytes(641), "641 bytes"),
    "NaN": ("float32", np.full(100, np.nan, "<f4").tobytes(), "NaN"),
    "infinity": ("float32", np.full(100, np.inf, "<f4").tobytes(), "infinity"),
    "integers sent as floats": ("float32", np.full(200, 20_000, "<i2").tobytes(), "−1…1"),
    "samples that are too large": ("float32", np.full(100, 900, "<f4").tobytes(), "−1…1"),
}


@pytest.mark.parametrize("fault", BAD_DATA)
def test_bad_data_ends_its_own_stream_alone(server, fault):
    dtype, content, reason = BAD_DATA[fault]
    recording = next(iter(sounds(1, seed=3)))
    good = recording if dtype == "int16" else (recording / 32768).astype("<f4")
    client = Raw(server.port, start=False)
    started(client, dtype=dtype)
    assert client.message() == {"type": "started"}
    client.data(0, good[:1000])
    client.data(1, content)
    error = client.message()
    assert (error["type"], error["stream"], error["error"]) == ("error", 1, "bad data") and reason in error["text"]
    client.data(0, good[1000:])
    client.text(type="finish", stream=0)
    answer = client.message()
    (expected,) = expected_answers(small_network(), [recording])
    assert answer["stream"] == 0 and same(tuple(answer.values())[2:], expected)
    client.socket.close()


def test_clients_that_vanish(server):
    for _ in range(30):
        client = Raw(server.port)
        client.data(0, QUIET)
        client.frame(BINARY, bytes(100), declared=1000)  # in the middle of a frame
        client.vanish()
    wait_until(lambda: metrics(server.port)["rankcode_clients"] <= 3)
    wait_until(lambda: metrics(server.port)["rankcode_streams"] <= 3)


def test_clients_that_flood_are_slowed_and_take_no_memory(server):
    """A client that sends as much as it can is read at the speed at which streams are read."""
    client = Raw(server.port)
    message = b"".join(struct.pack("<II", stream, 8000) + bytes(8000) for stream in range(8))
    client.socket.settimeout(0.2)
    before, sent, end = rss(), 0, time.monotonic() + 2
    while time.monotonic() < end:
        try:
            client.frame(BINARY, message)
            sent += len(message)
        except TimeoutError:
            break  # TCP has stopped it
    else:
        pytest.fail(f"{sent:,} bytes were accepted")
    assert metrics(server.port)["rankcode_paused_clients"] >= 1
    assert sent < 50e6 and rss() - before < 50e6
    client.vanish()


def test_clients_that_send_many_tiny_messages_are_slowed(server):
    client = Raw(server.port)
    frame = struct.pack(">BB4x", 0x82, 0x80 | 10) + struct.pack("<IIh", 0, 2, 0)
    before = metrics(server.port)["rankcode_messages_total"]
    client.socket.settimeout(0.2)
    begun = time.monotonic()
    while time.monotonic() < begun + 1.5:
        try:
            client.socket.sendall(1000 * frame)
        except TimeoutError:
            break
    taken = metrics(server.port)["rankcode_messages_total"] - before
    seconds = time.monotonic() - begun
    assert taken < 500 * (seconds + 1) + 1000 + 3 * 500 * seconds  # its allowance, a chunk, and the bystanders
    client.vanish()


def test_a_client_that_does_not_read_is_dropped():
    network = small_network()
    with running(network, messages_per_second=10**6) as server, Bystanders(server.url, network):
        client = Raw(server.port)
        client.socket.settimeout(0.5)
        pings = 200 * (struct.pack(">BB4x", 0x89, 0x80 | 120) + bytes(120))
        with pytest.raises((ConnectionError, TimeoutError)):
            for _ in range(2000):
                client.socket.sendall(pings)  # each is answered
        client.socket.close()
        wait_until(lambda: metrics(server.port)["rankcode_clients"] <= 3)
        assert metrics(server.port)['rankcode_refused_total{reason="does not read"}'] == 1


def test_clients_that_stall_are_closed():
    network = small_network()
    with running(network, idle_seconds=0.8) as server, Bystanders(server.url, network):
        silent = Raw(server.port, start=False)
        half = Raw(server.port)
        half.data(0, QUIET)
        half.frame(BINARY, bytes(100), declared=1000)
        for client in (silent, half):
            code, reason = client.closed()
            assert code == 1008 and "0.8 s" in reason
            client.socket.close()
        wait_until(lambda: metrics(server.port)["rankcode_streams"] <= 3)


def test_a_stream_without_end_is_ended():
    with running(stream_seconds=0.5) as server:
        client = Raw(server.port)
        begun = time.monotonic()
        while time.monotonic() < begun + 0.7:
            client.data(0, np.zeros(80, np.int16))
            time.sleep(0.02)
        error = client.message()
        assert error["error"] == "too long" and error["stream"] == 0
        client.socket.close()


def test_more_clients_than_allowed_are_refused():
    with running(max_clients=2) as server:
        clients = [Raw(server.port) for _ in range(2)]
        assert Raw(server.port, start=False).status == 503
        clients[0].socket.close()
        wait_until(lambda: metrics(server.port)["rankcode_clients"] == 1)
        assert Raw(server.port).status == 101


def test_an_error_of_the_service_ends_the_streams_and_not_the_service():
    class Broken:
        fail = False

        def initial_state(self, batch_size):
            return network_rule.initial_state(batch_size)

        def __call__(self, *arguments):
            if self.fail:
                raise OSError("the disk is gone")
            return network_rule(*arguments)

    network = small_network()
    recording = next(iter(sounds(1, seed=3)))
    (expected,) = expected_answers(network, [recording])
    network_rule, network.rule = network.rule, Broken()
    with running(network) as server:
        network.rule.fail = True
        client = Raw(server.port)
        client.data(0, recording)
        code, reason = client.closed()
        assert code == 1011 and reason == "internal error"  # without details
        assert metrics(server.port)["rankcode_failures_total"] == 1
        network.rule.fail = False
        client = Raw(server.port)
        client.data(0, recording)
        client.text(type="finish", stream=0)
        assert same(tuple(client.message().values())[2:], expected)


def test_errors_are_messages_too(server):
    client = Raw(server.port, start=False)
    client.text(type="shout")
    error = client.message()
    assert error["type"] == "error" and error["code"] == 1007 and json.dumps(error["text"])
