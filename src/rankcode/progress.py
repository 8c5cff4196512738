"""A progress bar: redrawn in a terminal, printed every 30 seconds elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T", bound=tuple[Any, ...])


class Progress:
    """`with Progress(total) as bar: bar.show(done, "loss 0.1")`. Writes to standard error."""

    def __init__(self, total: int | None, enabled: bool = True, done: int = 0):
        """`total`: None if it is not known. `done`: work done before, which is left out of the estimate of the
        remaining time."""
        self.total, self.enabled, self.before = total, enabled, done
        self.terminal = sys.stderr.isatty()
        self.interval = 0.2 if self.terminal else 30.0
        self.begun = self.shown = time.monotonic()
        self.open_line = False

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_) -> None:
        if self.open_line:
            sys.stderr.write("\n")
            sys.stderr.flush()

    def due(self, done: int) -> bool:
        """Whether the bar should be shown again; the end is always shown."""
        return self.enabled and (done == self.total or time.monotonic() - self.shown >= self.interval)

    def show(self, done: int, text: str) -> None:
        if not self.enabled:
            return
        self.shown = time.monotonic()
        spent = self.shown - self.begun
        room = shutil.get_terminal_size().columns - 1 if self.terminal else 120  # a wrapped line cannot be redrawn
        if self.total is None:
            line = f"{text}  {_clock(spent)}"[:room]
        else:
            left = spent / max(done - self.before, 1) * (self.total - done)
            share = done / self.total
            line = f"{100 * share:3.0f} %  {text}  {_clock(spent)} < {_clock(left)}"
            cells = max(0, min(20, room - len(line) - 1))
            full = int(cells * share)
            line = f"{'█' * full}{'·' * (cells - full)} {line}"[:room]
        sys.stderr.write(f"\r\x1b[2K{line}" if self.terminal else f"{line}\n")
        sys.stderr.flush()
        self.open_line = self.terminal


def watched(batches: Iterable[T], total: int | None, enabled: bool) -> Iterator[T]:
    """The batches, with a bar that shows how many of `total` rows have been processed."""
    with Progress(total or 0, enabled and total is not None) as bar:
        done = 0
        for batch in batches:
            yield batch
            done += len(batch[0])
            if bar.due(done):
                bar.show(done, f"{done:,} of {total:,} rows")


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
