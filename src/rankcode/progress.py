"""A line that shows where long work stands: redrawn in a terminal, printed now and then elsewhere."""

from __future__ import annotations

import sys
import time


class Progress:
    """`with Progress("training", total) as bar: bar.show(done, "loss 0.1")`. Writes to standard error."""

    def __init__(self, title: str, total: int, enabled: bool = True, done: int = 0):
        """`done`: work done before, which does not count for the speed."""
        self.title, self.total, self.enabled, self.before = title, total, enabled, done
        self.terminal = sys.stderr.isatty()
        self.interval = 0.2 if self.terminal else 30.0
        self.begun = self.shown = time.monotonic()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_) -> None:
        if self.enabled and self.terminal:
            sys.stderr.write("\n")

    def due(self) -> bool:
        """Whether it is time to show again."""
        return self.enabled and time.monotonic() - self.shown >= self.interval

    def show(self, done: int, text: str) -> None:
        if not self.enabled:
            return
        self.shown = time.monotonic()
        spent = self.shown - self.begun
        left = spent / max(done - self.before, 1) * (self.total - done)
        share = done / self.total
        bar = "█" * int(20 * share) + "·" * (20 - int(20 * share))
        line = f"{self.title} {bar} {100 * share:3.0f} %  {text}  {_clock(spent)} < {_clock(left)}"
        sys.stderr.write(f"\r\x1b[2K{line}" if self.terminal else f"{line}\n")
        sys.stderr.flush()


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
