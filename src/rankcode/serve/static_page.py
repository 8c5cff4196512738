"""A small server for the web page, on this computer alone.

All files are read when the server starts, and a request can only name one of them, so no request reaches the file
system. The page itself runs in the browser: nothing is sent back.
"""

from __future__ import annotations

import gzip
import json
import mimetypes
import sys
import webbrowser
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from rankcode.export import export_onnx
from rankcode.saving.run_folder import RunFolder, load

FOLDER = Path(__file__).with_name("page")
LOOPBACK = "127.0.0.1"
HOSTS = {LOOPBACK, "localhost"}  # with any other name in the header, another site's name leads to this computer
KINDS = {".wasm": "application/wasm", ".js": "text/javascript", ".onnx": "application/octet-stream"}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "microphone=(self), camera=(), geolocation=()",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
IDLE_SECONDS = 60  # until a connection that sends nothing is closed


class PageFile(NamedTuple):
    """A file as it is sent."""

    content: bytes
    kind: str
    gzipped: bool = False


def page_files(model: bytes | None = None, name: str = "") -> dict[str, PageFile]:
    """All files by path, and an exported network, if there is one, for the tab of the user's own."""
    files = {}
    for path in sorted(FOLDER.rglob("*")):
        if path.is_file():
            gzipped = path.suffix == ".gz"
            url = "/" + path.relative_to(FOLDER).as_posix().removesuffix(".gz")
            kind = KINDS.get(Path(url).suffix) or mimetypes.guess_type(url)[0] or "application/octet-stream"
            files[url] = PageFile(path.read_bytes(), kind, gzipped)
    if "/index.html" not in files:
        raise FileNotFoundError(f"there is no built page in {FOLDER}: run make page")
    files["/"] = files["/index.html"]
    offer = None
    if model is not None:
        files["/models/own.onnx"] = PageFile(model, KINDS[".onnx"])
        offer = {"name": name, "file": "models/own.onnx"}
    files["/offer.json"] = PageFile(json.dumps(offer).encode(), "application/json")
    return files


class PageServer(ThreadingHTTPServer):
    """Serves these files at 127.0.0.1; port 0 is any free one."""

    daemon_threads = True

    def __init__(self, files: dict[str, PageFile], port: int = 0):
        self.files = files
        try:
            super().__init__((LOOPBACK, port), _Handler)
        except OSError as error:
            raise OSError(f"port {port} cannot be used ({error.strerror}): choose another port") from None

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser may close a connection before it has read everything."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server: PageServer  # type: ignore[assignment]
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "rankcode", ""
    timeout = IDLE_SECONDS

    def do_GET(self) -> None:
        self._answer(with_content=True)

    def do_HEAD(self) -> None:
        self._answer(with_content=False)

    def _answer(self, with_content: bool) -> None:
        if self.headers.get("Host", "").rpartition(":")[0] not in HOSTS:
            return self.send_error(HTTPStatus.MISDIRECTED_REQUEST, "unknown host")
        file = self.server.files.get(self.path.partition("?")[0])
        if file is None:
            return self.send_error(HTTPStatus.NOT_FOUND, "no such file")
        content, gzipped = file.content, file.gzipped
        if gzipped and "gzip" not in self.headers.get("Accept-Encoding", ""):
            content, gzipped = gzip.decompress(content), False
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", file.kind)
        self.send_header("Content-Length", str(len(content)))
        if gzipped:
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        if with_content:
            self.wfile.write(content)

    def end_headers(self) -> None:
        for name, value in HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: the terminal shows the address."""


def open_page(model: str | None = None, port: int = 0, browser: bool = True) -> None:
    """Serve the page until Ctrl-C. `model`, a run, a model file or an exported file, is opened in it."""
    files = page_files() if model is None else page_files(_exported(model), Path(model).absolute().name)
    with PageServer(files, port) as server:
        url = server.url if model is None else f"{server.url}#own"
        print(f"The page is at {url} (Ctrl-C ends it)", flush=True)
        if browser:
            webbrowser.open(url)
        with suppress(KeyboardInterrupt):
            server.serve_forever()


def _exported(model: str) -> bytes:
    """A network as an ONNX file; one that is such a file already is served as it is."""
    if Path(model).suffix.lower() == ".onnx":
        return Path(model).read_bytes()
    network = load(model)
    if Path(model).is_dir():
        RunFolder(model).rule()  # refuses a rule that only Python can use
    print(f"exporting {model} …", flush=True)
    with TemporaryDirectory() as folder:
        return export_onnx(network, Path(folder) / "own.onnx", source=Path(model).name).path.read_bytes()
