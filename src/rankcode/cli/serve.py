"""`rankcode serve`."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from rankcode.cli.options import Flag


@dataclass(frozen=True)
class Serve:
    """Open a web page that shows when a network answers. Everything runs in the browser: no sound leaves the computer.

    The page has the network that comes with rankcode, the tasks of the paper, and a place for a network of your own.

    For example:

        rankcode serve
        rankcode serve runs/gestures
    """

    model: str | None = None
    """Folder of a run, or a model file, to open in the page."""
    _: KW_ONLY
    api: Flag = False
    """Start a service for many clients instead of the page."""
    port: int = 0
    """Port to listen on; 0 is any free one."""
    no_browser: Flag = False
    """Only print the address of the page."""

    def run(self) -> None:
        if self.api:
            raise ValueError("--api is not available yet")
        raise ValueError("the page is not available yet")
