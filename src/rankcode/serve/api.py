"""The HTTP side of the service, with FastAPI: what is served, whole files, health and metrics."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from fastapi import FastAPI, HTTPException, Query, Request
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel
from starlette.datastructures import Headers

from rankcode.data.sound_files import sound_blocks
from rankcode.data.sources import BadData
from rankcode.prediction import Prediction, predict
from rankcode.serve.json_logs import log
from rankcode.serve.service import Service

UPLOAD_SECONDS = 30.0  # in which a file has to arrive
PUBLIC = ("/health/live", "/health/ready")  # need no token
COMPRESSED = (".npz", ".parquet")  # a small file of these can hold tables of any size
SECURITY_HEADERS = {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
}


class Answer(BaseModel):
    """What the network says about a recording, or about a row of a file of series."""

    label: str
    probability: float
    steps: int
    fired: bool
    milliseconds: float | None
    probabilities: dict[str, float]


class Description(BaseModel):
    """The network that is served, and the limits."""

    protocol: int
    model: dict[str, Any]
    limits: dict[str, Any]


def http_app(service: Service) -> Any:
    """The application that uvicorn runs."""

    @asynccontextmanager
    async def running(_: FastAPI) -> AsyncIterator[None]:
        await service.start()
        with ThreadPoolExecutor(1, "files", initializer=torch.set_num_threads, initargs=(1,)) as files:
            app.state.files = files
            yield
            service.stopping = True
        await service.stop()

    text = f"Serves the network {service.model.name}. Streams are at the WebSocket /v1/stream: see docs/serving.md."
    app = FastAPI(title="rankcode", version="1", description=text, docs_url=None, redoc_url=None, lifespan=running)
    front_end = service.model.network.front_end
    formats = () if front_end is None else [each for each in front_end.file_suffixes if each not in COMPRESSED]

    @app.get("/health/live")
    async def live() -> JSONResponse:
        """200 as long as the streams are read; 503: the service has to be restarted."""
        alive = service.worker.alive
        return JSONResponse({"status": "live" if alive else "dead"}, 200 if alive else 503)

    @app.get("/health/ready")
    async def ready() -> JSONResponse:
        """200 if new clients are accepted, 503 and the reason if not."""
        reason = service.not_ready
        content = {"status": "not ready", "reason": reason} if reason else {"status": "ready"}
        return JSONResponse(content, 503 if reason else 200)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> PlainTextResponse:
        """Counts and times, in the text format of Prometheus."""
        worker, admission = service.worker, service.worker.admission
        gauges = {
            "rankcode_clients": ("WebSocket connections now.", len(service.clients)),
            "rankcode_streams": ("Streams now.", worker.live_streams),
            "rankcode_streams_limit": ("Streams that are possible at once.", service.limits.max_streams),
            "rankcode_paused_clients": ("Clients that are not read from, as they sent too much.", len(service.paused)),
            "rankcode_recent_lag_seconds": ("Lag of the last second, without its two latest ticks.", admission.lag),
            "rankcode_overloaded": ("1 while new streams are refused because of the lag.", int(admission.overloaded)),
        }
        return PlainTextResponse(service.metrics.text(gauges), media_type="text/plain; version=0.0.4")

    @app.get("/v1/model")
    async def model() -> Description:
        """The network that is served, as the WebSocket's hello describes it."""
        return Description(**service.description())

    @app.post("/v1/classify", openapi_extra={"requestBody": {"content": {"application/octet-stream": {}}}})
    async def classify(
        request: Request, format: Annotated[str, Query(description="Such as wav or csv.")]
    ) -> list[Answer]:
        """The answers to a file, which is the body of the request: one for a recording, one for each row of series."""
        if f".{format.lower()}" not in formats:
            known = ", ".join(each[1:] for each in formats) or "no files: use the WebSocket"
            raise HTTPException(415, f"format: the network reads {known}")
        if service.uploads >= service.limits.uploads or service.not_ready:
            service.metrics.refused.add(of="uploads")
            raise HTTPException(503, "the service is busy: try again later", {"retry-after": "1"})
        service.uploads += 1
        try:
            content = await _body(request, service.limits.upload_bytes)
            loop = asyncio.get_running_loop()
            found = await loop.run_in_executor(app.state.files, _classified, service, content, format.lower())
        except (ValueError, FileNotFoundError) as error:
            raise HTTPException(422, _without_path(error)) from None
        except ImportError as error:  # of a package that reads the format
            raise HTTPException(501, _without_path(error)) from None
        finally:
            service.uploads -= 1
        return [Answer(**each._asdict()) for each in found]

    return Guarded(service, app)


async def _body(request: Request, limit: int) -> bytes:
    """The body of a request, as long as it is within the limits."""
    too_large = HTTPException(413, f"a file may have {limit:,} bytes")
    declared = request.headers.get("content-length", "0")
    if not declared.isdecimal() or int(declared) > limit:
        raise too_large
    content = bytearray()
    try:
        async with asyncio.timeout(UPLOAD_SECONDS):
            async for part in request.stream():
                content += part
                if len(content) > limit:
                    raise too_large
    except TimeoutError:
        raise HTTPException(408, f"a file has to arrive within {UPLOAD_SECONDS:g} s") from None
    return bytes(content)


UPLOAD = "upload"  # the name of an uploaded file: nothing in a request has a say in it


def _classified(service: Service, content: bytes, suffix: str) -> list[Prediction]:
    """Read the content by the readers of files, which need a file: one in a folder that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="rankcode-") as folder:
        path = Path(folder, f"{UPLOAD}.{suffix}")
        path.write_bytes(content)
        model = service.model
        data = path if model.sample_rate is None else _waveform(path, model.sample_rate, service.limits.upload_seconds)
        return predict(model.network, data, model.rule)


def _waveform(path: Path, rate: int, seconds: float) -> np.ndarray:
    """A recording of bounded length: a small compressed file can hold hours."""
    blocks, samples = [], 0
    for block in sound_blocks(path, rate):
        blocks.append(block)
        samples += len(block)
        if samples > seconds * rate:
            raise BadData(f"{path} is longer than {seconds:g} s")
    return np.concatenate(blocks)


def _without_path(error: Exception) -> str:
    """A message about the upload without the name that it had here."""
    words = str(error).replace("; skip_bad=True leaves it out", "").split(" ")
    return " ".join("the file" if Path(word.rstrip(":,")).stem == UPLOAD else word for word in words)


class Guarded:
    """Checks who calls before anything else sees the request, and adds headers to every response (pure ASGI)."""

    def __init__(self, service: Service, app: FastAPI):
        self.service = service
        origins = sorted(service.access.origins)
        methods = ("GET", "POST")
        self.app: Any = CORSMiddleware(app, origins, methods, ["authorization", "content-type"]) if origins else app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        status = 500

        async def send_with_headers(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                given = {name for name, _ in message.get("headers", ())}
                more = [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]
                if status >= 400:
                    more.append((b"connection", b"close"))  # else the rest of a refused upload would be read
                headers = [*message.get("headers", ()), *(each for each in more if each[0] not in given)]
                message = {**message, "headers": headers}
            await send(message)

        path, headers = scope["path"], Headers(scope=scope)
        preflight = scope["method"] == "OPTIONS" and headers.get("origin") in self.service.access.origins
        refused = self.service.access.refusal(headers, public=preflight or path in PUBLIC)
        try:
            if refused is None:
                await self.app(scope, receive, send_with_headers)
            else:
                self.service.metrics.refused.add(of=refused.reason)
                more = {"www-authenticate": "Bearer"} if refused.status == 401 else {}
                await JSONResponse({"detail": refused.text}, refused.status, more)(scope, receive, send_with_headers)
        except Exception:
            self.service.metrics.failures.add()
            log("a request failed", logging.ERROR, exc_info=True, path=path)
            raise
        finally:
            if path == "/v1/classify":
                self.service.metrics.files.add(of=str(status))
            if path not in PUBLIC and path != "/metrics":
                log("request", method=scope["method"], path=path, status=status)
