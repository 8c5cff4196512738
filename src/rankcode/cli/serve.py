"""`rankcode serve`."""

from __future__ import annotations

import os
import sys
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from rankcode.cli.messages import say
from rankcode.cli.options import Device, Flag, rule_at

SERVICE = Parameter(group=Group("Service", sort_key=10))
MIN_TOKEN = 16  # characters: shorter ones can be guessed


@dataclass(frozen=True)
class Serve:
    """Open a web page that shows when a network answers. Everything runs in the browser: no sound leaves the computer.

    The page has the network that comes with rankcode, the tasks of the paper, and a place for a network of your own.
    With --api, start a service for many clients instead: live streams over WebSocket, whole files over HTTP.

    For example:

        rankcode serve
        rankcode serve runs/gestures
        rankcode serve --api
        rankcode serve runs/gestures --api --host 0.0.0.0 --token-file token.txt
    """

    model: str | None = None
    """Folder of a run, or a model file; the page opens exported .onnx files too. Default: the network that comes with
    rankcode."""
    _: KW_ONLY
    api: Flag = False
    """Start a service for many clients instead of the page."""
    port: int | None = None
    """Port to listen on; 0 means any free port. Default: 8000 for the service, any free port for the page."""
    no_browser: Flag = False
    """Only print the address of the page."""
    host: Annotated[str, SERVICE] = "127.0.0.1"
    """Address to listen on. Choose another, such as 0.0.0.0, to let other computers reach the service."""
    token_file: Annotated[str | None, SERVICE] = None
    """File with a token that clients must send. Default: the variable RANKCODE_TOKEN; without it, none is needed."""
    allow_origin: Annotated[tuple[str, ...], SERVICE] = ()
    """Origins of web pages that may use the service, such as https://example.org. Default: only its own."""
    allow_host: Annotated[tuple[str, ...], SERVICE] = ()
    """Host names under which the service may be reached, besides localhost and IP addresses."""
    threshold: Annotated[float | None, SERVICE] = None
    """θ to answer at. Default: that of the network."""
    max_clients: Annotated[int, SERVICE] = 1000
    """Maximum number of simultaneous connections."""
    max_streams: Annotated[int | None, SERVICE] = None
    """Maximum number of simultaneous streams. Default: for sound, as many as this computer can read in real time,
    measured when the service starts; for other data 1024."""
    streams_per_client: Annotated[int, SERVICE] = 64
    """Maximum number of simultaneous streams per connection."""
    idle_seconds: Annotated[float, SERVICE] = 60
    """Close a connection after this many seconds without a message."""
    device: Annotated[Device, SERVICE] = "cpu"

    def run(self) -> None:
        if not 0 <= (self.port or 0) <= 65_535:
            raise ValueError(f"port must be within 0…65535, not {self.port}")
        if self.api:
            return self._run_service()
        from rankcode.serve.static_page import open_page

        open_page(self.model, self.port or 0, not self.no_browser)

    def _run_service(self) -> None:
        from rankcode.saving.run_folder import load
        from rankcode.serve.access import Access
        from rankcode.serve.capacity import measured_streams
        from rankcode.serve.limits import Limits
        from rankcode.serve.served_model import ServedModel
        from rankcode.serve.server import serve
        from rankcode.serve.service import Service
        from rankcode.training.distributed import own_device

        name = self.model or "speech-commands"
        network = load(name).to(own_device(self.device))
        rule = None if self.threshold is None else rule_at(self.threshold, network)
        model = ServedModel(network, Path(name).name, rule)
        access = Access(frozenset({*self.allow_host, self.host}), frozenset(self.allow_origin), self._token())
        limits = Limits(
            max_clients=self.max_clients,
            max_streams=measured_streams(model) if self.max_streams is None else self.max_streams,
            streams_per_client=self.streams_per_client,
            idle_seconds=self.idle_seconds,
        )
        address = f"[{self.host}]" if ":" in self.host else self.host

        def started(port: int) -> None:
            if access.token is None and self.host not in ("127.0.0.1", "::1", "localhost"):
                message = "anyone who can reach this computer can use the service, since there is no --token-file"
                say(f"rankcode: warning: {message}", file=sys.stderr)
            say(f"serving {name} at http://{address}:{port}, up to {limits.max_streams:,} streams; Ctrl-C stops it")
            sys.stdout.flush()  # for pipes

        serve(Service(model, limits, access), self.host, 8000 if self.port is None else self.port, started)

    def _token(self) -> str | None:
        """The token that clients must send; None: they need none."""
        if self.token_file is None:
            token, source = os.environ.get("RANKCODE_TOKEN"), "RANKCODE_TOKEN"
        else:
            token, source = Path(self.token_file).read_text().strip(), self.token_file
        if token is not None and (len(token) < MIN_TOKEN or not (token.isascii() and token.isprintable())):
            raise ValueError(f"the token in {source} must have at least {MIN_TOKEN} characters, all of them ASCII")
        return token
