"""The server of the page: only its own files, only for this computer, with headers that keep others out."""

import gzip
import http.client
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

import rankcode as rc
from rankcode.cli.main import main
from rankcode.serve.build_page import outdated
from rankcode.serve.static_page import FOLDER, PageServer, page_files
from serving_thread import serving

LIMIT = 12e6  # bytes of the built page: it is in every wheel and every clone


@pytest.fixture(scope="module")
def server():
    with serving(PageServer(page_files())) as server:
        yield server


def answer(server, path="/", method="GET", **headers):
    connection = http.client.HTTPConnection(*server.server_address, timeout=10)
    connection.putrequest(method, path, skip_host="Host" in headers, skip_accept_encoding=True)
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response, content


def test_the_built_page_is_as_new_as_its_source():
    assert outdated() == [], "the page was built from other sources: run make page, and commit the result"


def test_the_built_page_is_small_and_names_its_licences():
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) < LIMIT
    notice = (FOLDER / "NOTICE.txt").read_text()
    assert "onnxruntime" in notice and "Permission is hereby granted" in notice


def test_every_file_has_its_type_and_the_headers(server):
    kinds = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".wasm": "application/wasm"}
    kinds |= {".svg": "image/svg+xml", ".json": "application/json", ".onnx": "application/octet-stream"}
    seen = set()
    for path in server.files:
        response, content = answer(server, path)
        suffix = Path(path).suffix or ".html"
        seen.add(suffix)
        assert response.status == 200 and content
        assert response.headers["Content-Type"] == kinds.get(suffix, "text/plain"), path
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        policy = response.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "http" not in policy and "unsafe-inline" not in policy
    assert seen >= set(kinds)


def test_webassembly_is_sent_compressed_to_those_who_can_read_it(server):
    (path,) = (path for path in server.files if path.endswith(".wasm"))
    packed, plain = answer(server, path, Accept_Encoding="gzip, br"), answer(server, path)
    assert packed[0].headers["Content-Encoding"] == "gzip" and plain[0].headers["Content-Encoding"] is None
    assert gzip.decompress(packed[1]) == plain[1] and plain[1][:4] == b"\0asm" and len(packed[1]) < 0.3 * len(plain[1])


PATHS = """/../pyproject.toml /..%2fbuild_page.py /%2e%2e/__init__.py //etc/passwd /models/../index.html /models
/models/ /index.html/ /models/own.onnx index.html /page.md"""


@pytest.mark.parametrize("path", [*PATHS.split(), "/" + "a" * 60_000], ids=lambda path: path[:30])
def test_no_other_path_reaches_a_file(server, path):
    response, content = answer(server, path)
    assert response.status == 404 and b"rankcode" not in content.lower()
    assert response.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("host", ["example.org", "example.org:80", "127.0.0.1.example.org:80", "", "[::1]:80"])
def test_another_name_for_this_computer_is_refused(server, host):
    assert answer(server, Host=host)[0].status == 421
    assert answer(server, Host=f"localhost:{server.server_port}")[0].status == 200


def test_only_reading_is_possible(server):
    assert answer(server, method="HEAD")[1] == b""
    assert {answer(server, method=method)[0].status for method in ("POST", "PUT", "DELETE", "OPTIONS")} == {501}
    assert server.server_address[0] == "127.0.0.1"


def test_a_connection_that_is_closed_early_prints_nothing(server, capfd):
    (path,) = (path for path in server.files if path.endswith(".wasm"))
    for _ in range(3):
        with socket.create_connection(server.server_address) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost:1\r\n\r\n".encode())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close with a reset
    assert answer(server)[0].status == 200 and server.url
    time.sleep(0.2)  # until the other threads have found out
    assert capfd.readouterr().err == ""


def test_a_port_that_is_taken(server):
    with pytest.raises(OSError, match=rf"port {server.server_port} cannot be used .*: choose another port"):
        PageServer({}, server.server_port)


def test_a_network_to_open():
    with serving(PageServer(page_files(b"bytes", "run"))) as server:
        assert json.loads(answer(server, "/offer.json")[1]) == {"name": "run", "file": "models/own.onnx"}
        assert answer(server, "/models/own.onnx")[1] == b"bytes"


def test_the_command(tmp_path):
    """It exports a model, prints the address, and ends with Ctrl-C."""
    pytest.importorskip("onnxruntime")
    rc.save(rc.Network(rc.cells.GRU(2, 3), 4), tmp_path / "model.safetensors")
    command = [sys.executable, "-m", "rankcode", "serve", "model.safetensors", "--no-browser"]
    environment = {**os.environ, "PYTHONPATH": str(Path(rc.__file__).parents[1])}
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout.readline() == "exporting model.safetensors …\n"
        address = process.stdout.readline().split()[4]
        assert address.startswith("http://127.0.0.1:") and address.endswith("/#own")
        connection = http.client.HTTPConnection(address.split("/")[2], timeout=10)
        connection.request("GET", "/models/own.onnx")
        assert b'{"rankcode": {' in connection.getresponse().read()
        connection.close()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--port 70000", "port must be within 0…65535, not 70000"),
        ("missing.onnx --no-browser", "missing.onnx: No such"),
    ],
)
def test_wrong_arguments(arguments, said, capsys):
    with pytest.raises(SystemExit):
        main(["serve", *arguments.split()])
    assert said in capsys.readouterr().err
