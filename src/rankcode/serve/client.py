"""A client of `rankcode serve --api`, for Python without asyncio.

with Client("http://127.0.0.1:8000") as client:
    answer = client.classify(samples)  # a whole recording, or a series
    for chunk in microphone:  # or as it arrives
        if (answer := client.push(chunk)) is not None:
            break
    else:
        answer = client.finish()
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import Any

import numpy as np
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.sync.client import ClientConnection, connect

from rankcode.prediction import Prediction
from rankcode.serve.wire_format import PATH, RECORD, record


class ServiceError(RuntimeError):
    """The service has refused something. `code` is its close code or HTTP status, None if only one stream ended."""

    def __init__(self, text: str, code: int | None = None):
        super().__init__(text)
        self.code = code


class Client:
    """A connection to the service, with one stream at a time. After an answer, the next `push` begins the next stream.

    `dtype` of the data that is sent: int16 or float32 for sound, float32 or float64 for other data. `token`, if the
    service needs one. `timeout`: seconds to wait for the service.
    """

    def __init__(self, url: str, dtype: str = "float32", token: str | None = None, timeout: float = 10.0):
        url = url.replace("http", "ws", 1) if url.startswith("http") else url
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self.timeout = timeout
        self._stream = 0
        self._held = ExitStack()  # websockets wants connections to be opened by a with statement
        try:
            opening: Any = connect(
                url.rstrip("/") + ("" if url.rstrip("/").endswith(PATH) else PATH),
                additional_headers=headers,
                compression=None,
                open_timeout=timeout,
                close_timeout=1,
                proxy=None,
            )
            self._socket: ClientConnection = self._held.enter_context(opening)
        except InvalidStatus as error:
            text = (error.response.body or b"").decode(errors="replace").strip()
            raise ServiceError(text or str(error), error.response.status_code) from None
        except (OSError, WebSocketException) as error:
            raise ServiceError(f"there is no service at {url}: {error}") from None
        hello = self._receive(timeout)
        self.model: dict[str, Any] = hello["model"]
        self.limits: dict[str, Any] = hello["limits"]
        self.dtype = dtype
        self._send(json.dumps({"type": "start", "dtype": self.dtype, "version": self.model["version"]}))
        self._receive(timeout)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._held.close()

    def push(self, data: Any) -> Prediction | None:
        """Send samples or steps of the stream. Returns its answer if that has come, and until then None."""
        content = self._bytes(data)
        largest = self.limits["message_bytes"] - RECORD.size
        unit = np.dtype(self.dtype).itemsize * int(np.prod(self.model["step_shape"]))
        largest -= largest % unit
        for begin in range(0, len(content), largest):
            self._send(record(self._stream, content[begin : begin + largest]))
            if (answer := self._answer(0)) is not None:
                return answer
        return self._answer(0)

    def finish(self) -> Prediction:
        """The data has ended: wait for the answer."""
        self._send(json.dumps({"type": "finish", "stream": self._stream}))
        answer = self._answer(self.timeout)
        if answer is None:
            raise ServiceError(f"no answer came within {self.timeout:g} s")
        return answer

    def classify(self, data: Any) -> Prediction:
        """The answer to a whole recording or series."""
        answer = self.push(data)
        return self.finish() if answer is None else answer

    def _bytes(self, data: Any) -> bytes:
        array = np.asarray(data)
        if self.dtype == "int16" and array.dtype.kind == "f":
            array = np.clip(np.round(array * 32768.0), -32768, 32767)
        elif self.dtype != "int16" and array.dtype == np.int16 and self.model["sample_rate"]:
            array = array / 32768
        return array.astype(np.dtype(self.dtype).newbyteorder("<")).tobytes()

    def _answer(self, timeout: float) -> Prediction | None:
        """The answer of the present stream, if it comes within this many seconds."""
        while True:
            try:
                message = self._receive(timeout)
            except TimeoutError:
                return None
            if message.get("stream") != self._stream:
                continue
            self._stream += 1
            if message["type"] == "error":
                raise ServiceError(message["text"])
            return Prediction(**{name: message[name] for name in Prediction._fields})

    def _send(self, message: str | bytes) -> None:
        try:
            self._socket.send(message)
        except ConnectionClosed:
            self._receive(0)  # raises, and says why

    def _receive(self, timeout: float) -> dict[str, Any]:
        try:
            message = json.loads(self._socket.recv(timeout))
        except ConnectionClosed as error:
            reason = error.rcvd.reason if error.rcvd is not None else "the connection to the service was lost"
            raise ServiceError(reason, None if error.rcvd is None else error.rcvd.code) from None
        if message["type"] == "error" and "stream" not in message:
            raise ServiceError(message["text"], message.get("code"))
        return message
