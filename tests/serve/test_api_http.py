"""The HTTP side: whole files, health, metrics, and who may use the service."""

import http.client
import io
import json
import re
import socket
import tempfile
import time
from functools import partial

import numpy as np
import pytest
from running_service import Bystanders, Raw, expected_answers, request, running, same, small_network, sounds, wait_until

import rankcode as rc
from live_networks import series_network
from rankcode.prediction import Prediction
from rankcode.serve.access import Access
from rankcode.serve.client import Client, ServiceError
from wav_files import wav_bytes

TOKEN = "a secret that is long enough"
wav = partial(wav_bytes, rate=4000)


@pytest.fixture(scope="module")
def server():
    with running(upload_bytes=200_000, upload_seconds=2) as found:
        yield found


def answers(text):
    return [Prediction(**each) for each in json.loads(text)]


def test_a_recording_gets_the_answer_of_predict(server):
    recordings = list(sounds(10))
    for recording, expected in zip(recordings, expected_answers(small_network(), recordings), strict=True):
        status, headers, text = request(server.port, "/v1/classify?format=wav", wav(recording))
        (found,) = answers(text)
        assert status == 200 and same(found, expected) and headers["content-type"] == "application/json"
        assert found.milliseconds == expected.milliseconds


def test_the_rows_of_a_file_of_series():
    network = series_network(2)
    rows = np.random.default_rng(0).normal(size=(5, 20, 2))
    lines = [f"{row},{step},{a},{b}" for row in range(5) for step, (a, b) in enumerate(rows[row].tolist())]
    content = "\n".join(["series,time,a,b", *lines]).encode() + b"\n"
    file = io.BytesIO()
    np.save(file, rows)
    with running(network) as server:
        status, _, text = request(server.port, "/v1/classify?format=npy", file.getvalue())
        assert status == 200 and all(same(*each) for each in zip(answers(text), rc.predict(network, rows), strict=True))
        for kind in ("npz", "parquet"):  # could hold any number of zeros
            assert request(server.port, f"/v1/classify?format={kind}", content)[0] == 415


BAD_FILES = {
    "nothing": (b"", 422, "the file is empty"),
    "garbage": (b"\x00\x01" * 500, 422, "the file is not sound"),
    "cut short": (wav(np.zeros(4000, np.int16))[:-100], 422, "the file is cut short"),
    "too long": (wav(np.zeros(4000, np.int16), rate=1000), 422, "longer than 2 s"),
    "too large": (bytes(300_000), 413, "200,000 bytes"),
}


@pytest.mark.parametrize("fault", BAD_FILES)
def test_a_bad_file_is_refused_without_a_path(server, fault):
    content, status, reason = BAD_FILES[fault]
    found, _, text = request(server.port, "/v1/classify?format=wav", content)
    detail = json.loads(text)["detail"]
    assert found == status and reason in detail, (found, detail)
    assert "upload" not in detail and tempfile.gettempdir() not in detail and "skip_bad" not in detail


@pytest.mark.parametrize("name", ["../../etc/passwd", "wav/../../x", "exe", "", "wav%00", "/etc/passwd", "WAV.py"])
def test_nothing_of_a_request_becomes_a_path(server, name, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    status, _, text = request(server.port, f"/v1/classify?format={name}", wav(next(iter(sounds(1)))))
    assert status == 415 and "reads wav, flac" in text and list(tmp_path.iterdir()) == []


def test_uploads_are_written_to_a_folder_that_is_removed(server, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    seen = []

    def look(*_):
        seen.extend(path.name for path in tmp_path.rglob("*") if path.is_file())
        return []

    monkeypatch.setattr("rankcode.serve.api.predict", look)
    assert request(server.port, "/v1/classify?format=wav", wav(next(iter(sounds(1)))))[0] == 200
    assert seen == ["upload.wav"] and list(tmp_path.iterdir()) == []


def test_a_gigabyte_is_refused_before_it_is_read(server):
    with Bystanders(server.url, small_network()):
        declared = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        declared.putrequest("POST", "/v1/classify?format=wav")
        declared.putheader("Content-Length", str(1 << 30))
        declared.endheaders()
        assert declared.getresponse().status == 413
        chunked = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        sent = []

        def parts():
            for _ in range(1 << 10):
                sent.append(1 << 20)
                yield bytes(1 << 20)

        try:
            chunked.request("POST", "/v1/classify?format=wav", parts(), encode_chunked=True)
            assert chunked.getresponse().status == 413
        except ConnectionError:  # the server has closed it while it was sending
            pass
        assert sum(sent) < 1 << 28


def test_more_files_than_allowed_at_once_are_refused(monkeypatch):
    recording = wav(next(iter(sounds(1))))
    with running(uploads=1) as server:
        slow = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        slow.putrequest("POST", "/v1/classify?format=wav")
        slow.putheader("Content-Length", str(len(recording)))
        slow.endheaders()
        wait_until(lambda: server.service.uploads == 1)
        status, headers, text = request(server.port, "/v1/classify?format=wav", recording)
        assert status == 503 and headers["retry-after"] == "1" and "try again later" in text
        slow.send(recording)
        assert slow.getresponse().status == 200
        assert request(server.port, "/v1/classify?format=wav", recording)[0] == 200


def test_health_and_metrics(server):
    assert request(server.port, "/health/live")[0] == 200
    assert json.loads(request(server.port, "/health/ready")[2]) == {"status": "ready"}
    before = server.metrics()
    with Client(server.url, "int16") as client:
        client.classify(next(iter(sounds(1))))
        assert server.metrics()["rankcode_clients"] == before["rankcode_clients"] + 1
    _, headers, text = request(server.port, "/metrics")
    assert headers["content-type"].startswith("text/plain; version=0.0.4")
    for line in text.splitlines():
        assert re.fullmatch(r'(# (HELP|TYPE) rankcode_\w+ .+)|(rankcode_\w+(\{\w+="[^"]*"\})? [0-9.e+-]+)', line), line
    after = server.metrics()
    assert after["rankcode_streams_total"] == before["rankcode_streams_total"] + 1
    assert after["rankcode_received_bytes_total"] >= before["rankcode_received_bytes_total"] + 4000
    decisions = [sum(value for name, value in each.items() if "decisions" in name) for each in (before, after)]
    assert decisions[1] == decisions[0] + 1
    assert after["rankcode_tick_seconds_count"] == after['rankcode_tick_seconds_bucket{le="+Inf"}'] > 0


def test_a_server_that_is_full_is_live_and_not_ready():
    with running(max_streams=1) as server, Client(server.url, "int16") as client:
        client.push(np.zeros(400, np.int16))
        wait_until(lambda: server.metrics()["rankcode_streams"] == 1)
        status, _, text = request(server.port, "/health/ready")
        assert status == 503 and json.loads(text)["reason"] == "capacity"
        assert request(server.port, "/health/live")[0] == 200


def test_a_server_whose_streams_are_not_read_is_not_live():
    with running() as server:
        server.service.worker.stop()
        assert request(server.port, "/health/live")[0] == request(server.port, "/health/ready")[0] == 503
        assert Raw(server.port, start=False).status == 503


def test_every_response_has_the_security_headers(server):
    for path in ("/health/live", "/openapi.json", "/v1/classify?format=wav", "/docs", "/nothing", "/metrics"):
        _, headers, _ = request(server.port, path)
        assert headers["x-content-type-options"] == "nosniff", path
        assert headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'", path
        assert "server" not in headers, path


def test_openapi_describes_every_path_and_nothing_is_loaded_from_elsewhere(server):
    content = json.loads(request(server.port, "/openapi.json")[2])
    assert set(content["paths"]) == {"/health/live", "/health/ready", "/metrics", "/v1/model", "/v1/classify"}
    for path in ("/docs", "/redoc"):
        assert request(server.port, path)[0] == 404


def test_the_model_is_described_as_in_the_hello(server):
    described = json.loads(request(server.port, "/v1/model")[2])
    with Client(server.url) as client:
        assert described["model"] == client.model and described["limits"] == client.limits


@pytest.fixture(scope="module")
def guarded():
    access = Access(frozenset({"speech.example.org"}), frozenset({"https://friend.example"}), TOKEN)
    with running(access=access) as found:
        yield found


def test_a_token_is_needed_where_there_is_one(guarded):
    port = guarded.port
    for sent in (
        {},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": "é"},
    ):
        for path in ("/v1/model", "/metrics", "/openapi.json", "/nothing"):
            status, headers, text = request(port, path, **sent)
            assert status == 401 and headers["www-authenticate"] == "Bearer" and TOKEN not in text
        assert Raw(port, **sent).status == 401
    right = {"Authorization": f"Bearer {TOKEN}"}
    assert request(port, "/v1/model", **right)[0] == 200 and request(port, "/health/ready")[0] == 200
    with pytest.raises(ServiceError, match="valid token") as refused:
        Client(guarded.url)
    assert refused.value.code == 401
    with Client(guarded.url, token=TOKEN) as client:
        assert client.model["name"] == "test"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Origin": "http://127.0.0.1:{port}"}, 200),  # a page of the service
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),  # another port is another origin
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1:{port}.evil.example"}, 403),
        ({"Origin": "file://"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Host": "localhost:{port}"}, 200),
        ({"Host": "[::1]:{port}"}, 200),
        ({"Host": "evil.example:{port}", "Origin": "http://evil.example:{port}"}, 421),  # DNS rebinding
        ({"Host": "localhost.evil.example"}, 421),
        ({"Host": ""}, 421),
        ({"Host": "[::"}, 421),
    ],
)
def test_pages_of_other_origins_and_other_names_are_refused(server, headers, status):
    sent = {name: value.format(port=server.port) for name, value in headers.items()}
    assert request(server.port, "/v1/model", **sent)[0] == status
    assert Raw(server.port, **sent).status == (101 if status == 200 else status)


def test_origins_and_names_that_were_allowed(guarded):
    right = {"Authorization": f"Bearer {TOKEN}"}
    friend = {**right, "Origin": "https://friend.example", "Host": "speech.example.org"}
    status, headers, _ = request(guarded.port, "/v1/model", **friend)
    assert status == 200 and headers["access-control-allow-origin"] == "https://friend.example"
    assert Raw(guarded.port, **friend).status == 101
    preflight = http.client.HTTPConnection("127.0.0.1", guarded.port, timeout=10)
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    preflight.request("OPTIONS", "/v1/classify", headers={"Origin": "https://friend.example", **asked})
    response = preflight.getresponse()
    assert response.status == 200 and response.read() is not None
    preflight.request("OPTIONS", "/v1/classify", headers={"Origin": "https://evil.example", **asked})
    assert preflight.getresponse().status == 403


def test_a_header_that_is_sent_twice_is_refused(server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        head = "GET /v1/stream HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        origins = "Origin: http://localhost\r\nOrigin: http://evil.example\r\n"
        key = "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        connection.sendall((head + origins + key).encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 403")


@pytest.mark.parametrize("path", ["/", "/v1/other", "/v1/stream/../model"])
def test_there_is_one_place_for_streams(server, path, monkeypatch):
    monkeypatch.setattr(Raw, "path", path)
    assert Raw(server.port).status == 404


def test_http_that_never_comes_is_closed(server, monkeypatch):
    monkeypatch.setattr("rankcode.serve.server.REQUEST_SECONDS", 0.3)
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(b"GET /v1/model HTTP/1.1\r\nHost: ")
        begun = time.monotonic()
        assert connection.recv(100) == b"" and time.monotonic() - begun < 5
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(bytes(range(256)) + b"\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 400")
