"""Whether new streams are admitted, by how late the service was: one that takes everyone serves everyone late."""

from __future__ import annotations

from collections import deque

from rankcode.serve.json_logs import log

TICKS = 50  # that are looked at: the last second
LATE_TICKS = 3  # of these make an overload: one long tick is none
RECOVERED = 0.7  # share of the limit below which an overload is over, so that it does not change with every tick


class Admission:
    """`overloaded`: no new streams. `lag_limit`: seconds that a message may wait until it has been read."""

    def __init__(self, lag_limit: float):
        self.lag_limit = lag_limit
        self.overloaded = False
        self._lags = deque([0.0] * TICKS, TICKS)

    @property
    def lag(self) -> float:
        """Seconds: only two ticks of the last second were later."""
        return sorted(self._lags)[-LATE_TICKS]

    def add(self, lag: float) -> None:
        """A tick, and how long its oldest message had waited when it ended, in seconds."""
        self._lags.append(lag)
        overloaded = self.lag > (RECOVERED if self.overloaded else 1.0) * self.lag_limit
        if overloaded != self.overloaded:
            self.overloaded = overloaded
            log("overloaded" if overloaded else "no longer overloaded", lag_ms=round(1000 * self.lag))
