"""Whether new streams are admitted, by how late the service was and how busy it is.

A service that takes everyone serves everyone late. Lateness alone would say so too late: just below its capacity a
service is on time, and just above it waiting messages add up. So the share of time that ticks take counts as well.
"""

from __future__ import annotations

from collections import deque

from rankcode.serve.json_logs import log

TICKS = 50  # that are looked at: the last second
LATE_TICKS = 3  # of these make an overload: one long tick is none
BUSY_MEMORY = 0.9  # share of the earlier value in the moving average: about ten ticks
RECOVERED = 0.7  # share of the limits below which an overload is over, so that it does not change with every tick


class Admission:
    """`overloaded`: no new streams. `lag_limit`: seconds that a message may wait until it has been read. `busy_limit`:
    share of the time that ticks may take."""

    def __init__(self, lag_limit: float, busy_limit: float):
        self.lag_limit, self.busy_limit = lag_limit, busy_limit
        self.overloaded = False
        self.busy = 0.0
        self._lags = deque([0.0] * TICKS, TICKS)

    @property
    def lag(self) -> float:
        """Seconds: only two ticks of the last second were later."""
        return sorted(self._lags)[-LATE_TICKS]

    def add(self, lag: float, took: float, period: float) -> None:
        """A tick: how long its oldest message had waited when it ended, how long it took, and how long after the one
        before it ended, in seconds."""
        self._lags.append(lag)
        self.busy = BUSY_MEMORY * self.busy + (1 - BUSY_MEMORY) * min(1.0, took / max(period, 1e-9))
        share = RECOVERED if self.overloaded else 1.0
        overloaded = self.lag > share * self.lag_limit or self.busy > share * self.busy_limit
        if overloaded != self.overloaded:
            self.overloaded = overloaded
            event = "overloaded" if overloaded else "no longer overloaded"
            log(event, lag_ms=round(1000 * self.lag), busy=round(self.busy, 2))
