"""Which runs of a sweep end before their training does: hopeless ones, and all when the time is over.

Hopeless runs are found by asynchronous successive halving (ASHA, Li et al. 2020). At a ninth and at a third of its
training, the area under the accuracy–earliness front of a run on validation data (`Curve.area`: the best accuracy
within a budget of steps, averaged over all budgets) is compared with those of the runs that have been there before it;
the run continues only if it is among the best third.
"""

from __future__ import annotations

import math
import time
from typing import Any

from rankcode.metrics import tradeoff
from rankcode.network import Network
from rankcode.saving.run_folder import RunFolder
from rankcode.sweeps.sweep_folder import SweepFolder

REDUCTION = 3  # one of this many runs continues
RUNGS = {"1/9": 1 / 9, "1/3": 1 / 3}  # shares of the training


class EarlyStopping:
    """`fit(…, stop=EarlyStopping(…))`; `status` says afterwards how the run ended."""

    def __init__(
        self,
        folder: SweepFolder,
        number: int,
        task: Any,
        thresholds: list[float],
        compare: bool,
        deadline: float | None,
    ):
        """`compare`: whether hopeless runs are stopped. `deadline`: in seconds of `time.time`."""
        self.folder, self.number, self.task, self.thresholds = folder, number, task, thresholds
        self.compare, self.deadline = compare, deadline
        self.status, self._batches = "finished", 0

    def __call__(self, model: Network, record: dict[str, Any]) -> bool:
        self._batches = self._batches or RunFolder(self.folder.run(self.number)).config()["batches"]
        share = record["batch"] / self._batches
        if share >= 1:
            return False
        if self.compare and self._is_hopeless(model, share):
            self.status = "stopped"
        elif self.deadline is not None and time.time() >= self.deadline:
            self.status = "unfinished"
        return self.status != "finished"

    def _is_hopeless(self, model: Network, share: float) -> bool:
        areas = self.folder.rungs(self.number)
        reached = [name for name, start in RUNGS.items() if share >= start]
        if not reached or reached[-1] in areas:
            return False
        area = tradeoff(model, self.task, self.thresholds, "validation").area
        self.folder.write_rungs(self.number, areas | {reached[-1]: area})
        return not among_best(area, self.folder.areas_at(reached[-1]))


def among_best(area: float, areas: list[float]) -> bool:
    """Whether an area is among the best third of those at a rung; where there are fewer than three, every one is."""
    better = sum(each > area for each in areas)
    return len(areas) < REDUCTION or better < math.ceil(len(areas) / REDUCTION)
