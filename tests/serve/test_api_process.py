"""The service as a process: signals, a restart under load, a model file that is replaced, memory."""

import signal
import socket
import struct
import threading
import time
from contextlib import suppress

import numpy as np
import pytest
from running_service import (
    BINARY,
    TEXT,
    BusyError,
    Bystanders,
    Raw,
    expected_answers,
    request,
    same,
    small_network,
    sounds,
)

import rankcode as rc
from rankcode.cli.main import main
from rankcode.serve.client import Client, ServiceError
from server_process import served

LIMITS = ("--max-streams", "200")


@pytest.fixture
def folder(tmp_path):
    """Two models, and an empty folder in which the server runs."""
    other = small_network()
    other.label_names = ("one", "two", "three")
    rc.save(small_network(), tmp_path / "model.safetensors")
    rc.save(other, tmp_path / "other.safetensors")
    (tmp_path / "here").mkdir()
    return tmp_path


def test_a_server_that_is_killed_or_stopped_is_one_clear_error_and_can_be_restarted(folder):
    recordings, errors = list(sounds(4)), []
    (expected,) = expected_answers(small_network(), recordings[:1])
    model, other = folder / "model.safetensors", (folder / "other.safetensors").read_bytes()

    def play(number):
        with Client(server.url, "int16") as client:
            try:
                while True:
                    client.classify(recordings[number])
            except ServiceError as error:
                errors.append(str(error))

    with served(folder / "here", model, *LIMITS) as server:
        with Client(server.url, "int16") as client:
            version = client.model["version"]
            model.write_bytes(b"no model")  # in place: a file that was mapped into memory would change too
            assert same(client.classify(recordings[0]), expected)
        model.write_bytes(other)  # it is served after a restart
        with Client(server.url, "int16") as client:
            assert client.model["version"] == version and same(client.classify(recordings[0]), expected)
        threads = [threading.Thread(target=play, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(0.5)
        server.stop(signal.SIGKILL)
        for thread in threads:
            thread.join(15)
        assert errors == 4 * ["the connection to the service was lost"]
        with pytest.raises(ServiceError, match="there is no service at"):
            Client(server.url)
    with served(folder / "here", model, *LIMITS, port=server.port) as server:
        with Client(server.url, "int16") as client:
            assert client.model["version"] != version and client.model["labels"] == ["one", "two", "three"]
            assert client.classify(recordings[0]).label in ("one", "two", "three")
            client.push(recordings[0][:400])
            status = server.stop(signal.SIGTERM)
            with pytest.raises(ServiceError, match="stopping: connect again later") as stopped:
                while True:
                    client.push(recordings[0][:400])
            assert stopped.value.code == 1001
        assert status == 0
        assert [each["event"] for each in server.events()][-2:] == ["client left", "stopped"]
    assert list((folder / "here").iterdir()) == []  # nothing was written


def every_fault(port, turn):
    """One fault of each kind, as fast as they can be made."""
    quiet = np.zeros(400, np.int16)
    client = Raw(port)
    client.data(0, quiet)
    client.vanish()
    for send in (
        lambda c: c.frame(TEXT, b"garbage"),
        lambda c: c.frame(BINARY, b"\xff" * 100),
        lambda c: c.frame(BINARY, bytes(10), declared=1 << 30),
        lambda c: c.frame(BINARY, struct.pack("<II", 0, 641) + bytes(641)),
        lambda c: [c.data(stream, bytes(60_000)) for stream in range(4)],
    ):
        client = Raw(port)
        send(client)
        client.vanish() if turn % 2 else client.socket.close()
    request(port, "/v1/classify?format=wav", bytes(20_000))


def test_memory_stays_flat_while_clients_do_everything_wrong(folder):
    with served(folder / "here", folder / "model.safetensors", *LIMITS) as server:
        network, sizes = small_network(), []
        with Bystanders(server.url, network):
            end, turn = time.monotonic() + 3, 0
            while time.monotonic() < end:
                with suppress(BusyError):  # on a busy machine
                    every_fault(server.port, turn)
                turn += 1
                sizes.append(server.rss())
        assert turn > 10
        assert max(sizes) - sizes[len(sizes) // 3] < 20e6, sizes
        assert server.stop() == 0 and list((folder / "here").iterdir()) == []
        assert all(each["level"] == "info" for each in server.events())  # no fault of the server itself


def says(arguments, text, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["serve", *arguments])
    assert stop.value.code in (1, 2) and text in capsys.readouterr().err


def test_mistakes_on_the_command_line(folder, capsys, monkeypatch):
    model = str(folder / "model.safetensors")
    (folder / "token").write_text("short\n")
    says([model, "--api", "--token-file", str(folder / "token")], "at least 16 characters", capsys)
    monkeypatch.setenv("RANKCODE_TOKEN", "also short")
    says([model, "--api"], "RANKCODE_TOKEN", capsys)
    monkeypatch.delenv("RANKCODE_TOKEN")
    says([model, "--api", "--max-streams", "-1"], "--max-streams must be greater than 0", capsys)
    says([model, "--api", "--idle-seconds", "0"], "--idle-seconds must be greater than 0", capsys)
    says([str(folder / "nothing"), "--api"], "there is no model file", capsys)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        says([model, "--api", "--port", port, "--max-streams", "5"], f"cannot listen on 127.0.0.1, port {port}", capsys)
