"""Ctrl-C while modules are imported: a KeyboardInterrupt would show a traceback, or be lost in an import."""

from __future__ import annotations

# Without the enums of `signal`, which take most of the time before Ctrl-C is handled.
import _signal as signal  # pyright: ignore[reportMissingImports]
import os


def end(*_: object) -> None:
    """End the process with one line."""
    os.write(2, b"rankcode: stopped\n")
    os._exit(130)


class EndedByCtrlC:
    """Within this context Ctrl-C ends the process, unless it is ignored or handled already."""

    def __enter__(self) -> None:
        self.set = False
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            try:
                signal.signal(signal.SIGINT, end)
                self.set = True
            except ValueError:  # only the main thread may set handlers
                pass

    def __exit__(self, *_: object) -> None:
        if self.set:
            signal.signal(signal.SIGINT, signal.default_int_handler)
