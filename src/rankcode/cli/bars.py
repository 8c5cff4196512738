"""Class probabilities as bars in a terminal, redrawn in place."""

from __future__ import annotations

import math
import shutil
import sys
import time

from rankcode.cli.messages import printable
from rankcode.network import Network
from rankcode.rules import Rule
from rankcode.streaming import Listener, Stream

MAX_WIDTH = 50  # of a bar
MAX_NAME = 20  # characters of a class's name
MIN_SECONDS = 0.04  # between two drawings


class Bars:
    """A line for each class, with θ as a line in its bar. Draws only if standard output is a terminal."""

    def __init__(self, network: Network, rule: Rule, wanted: bool):
        self.names, self.rule = [printable(name)[:MAX_NAME] for name in network.class_names], rule
        self.shown = wanted and sys.stdout.isatty()
        self._drawn = 0  # lines of bars on the screen, above the cursor
        self._time = -math.inf

    def draw(self, source: Stream | Listener, now: bool = False) -> None:
        """Show what is compared with θ, the probabilities of a stream or the evidence of a listener, in place of the
        last values. `now`: even if those were just drawn."""
        values = source.evidence if isinstance(source, Listener) else source.probabilities
        if not self.shown or values is None or not (now or time.monotonic() - self._time >= MIN_SECONDS):
            return
        thresholds = [math.inf] * len(self.names)
        if hasattr(self.rule, "table"):
            thresholds = self.rule.table(range(source.steps, source.steps + 1), len(self.names))[0].tolist()  # type: ignore[attr-defined]
        space = max(map(len, self.names))
        width = max(10, min(MAX_WIDTH, shutil.get_terminal_size().columns - space - 7))
        self._erase()
        for name, value, threshold in zip(self.names, values[0].tolist(), thresholds, strict=True):
            print(f"{name:<{space}} {bar(value, threshold, width)} {value:.2f}")
        sys.stdout.flush()
        self._drawn, self._time = len(self.names), time.monotonic()

    def say(self, line: str, below: bool = False) -> None:
        """Print a line: `below` the bars, which then stay on the screen, or in their place, to be drawn below it."""
        if not below:
            self._erase()
        self._drawn, self._time = 0, -math.inf
        print(printable(line), flush=True)

    def _erase(self) -> None:
        if self._drawn:
            print(f"\x1b[{self._drawn}A\x1b[J", end="")
            self._drawn = 0


def bar(probability: float, threshold: float, width: int) -> str:
    """A bar of blocks, with a line at the threshold if that is at most 1."""
    filled = round(probability * width)
    blocks = list("█" * filled + " " * (width - filled))
    if threshold <= 1:
        blocks[min(int(threshold * width), width - 1)] = "┃"
    return "".join(blocks)
