"""The runs of a sweep as a table: redrawn in a terminal, elsewhere a line for each run that ends."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterable
from typing import Any

from rankcode.saving.run_folder import RunFolder
from rankcode.sweeps.sweep_folder import SweepFolder

INTERVAL = 1.0  # seconds between two drawings
COLUMNS = ("", "done", "accuracy", "steps", "area")


class LiveTable:
    """`with LiveTable(folder) as table: table.show(plan, running)`. Writes to standard error."""

    def __init__(self, folder: SweepFolder, enabled: bool):
        self.folder, self.enabled, self.terminal = folder, enabled, sys.stderr.isatty()
        self._drawn, self._time = 0, -INTERVAL

    def __enter__(self) -> LiveTable:
        return self

    def __exit__(self, *_: object) -> None:
        self._erase()

    def show(self, plan: dict[str, Any], running: list[int], ended: Iterable[int] = ()) -> None:
        """Show the running and the best runs; where nothing can be redrawn, those that have ended since."""
        if not self.enabled:
            return
        if not self.terminal:
            for number in ended:
                options = ", ".join(f"{name} {value}" for name, value in plan["runs"][number - 1].items())
                status, _, accuracy, steps, area = self._cells(number, False)
                measured = f": {accuracy} after {steps} steps, area {area}" if area else ""
                line = f"run {number} of {len(plan['runs'])} ({options}) {status}{measured}"
                print(line, file=sys.stderr, flush=True)
        elif time.monotonic() - self._time >= INTERVAL:
            self._time = time.monotonic()
            self._draw(plan, running)

    def _draw(self, plan: dict[str, Any], running: list[int]) -> None:
        width, height = shutil.get_terminal_size()
        rows = [(number, self._cells(number, number in running)) for number in range(1, len(plan["runs"]) + 1)]
        ended = [row for row in rows if row[1][0] and row[0] not in running]
        waiting = max(len(rows), plan.get("wanted", 0)) - len(ended) - len(running)
        shown = [row for row in rows if row[0] in running] + sorted(ended, key=lambda row: row[1][4], reverse=True)
        names = list(dict.fromkeys(name for options in plan["runs"] for name in options))
        lines = [["run", *COLUMNS, *names]]  # options are cut off first
        for number, cells in shown[: height - 4]:
            lines.append([str(number), *cells, *(f"{plan['runs'][number - 1].get(name, '')}" for name in names)])
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        text = ["  ".join(f"{cell:>{w}}" for cell, w in zip(line, widths, strict=True))[: width - 1] for line in lines]
        text.append(f"{len(ended)} runs ended, {len(running)} running, {waiting} waiting"[: width - 1])
        self._erase()
        sys.stderr.write("\n".join(text) + "\n")
        sys.stderr.flush()
        self._drawn = len(text)

    def _erase(self) -> None:
        if self._drawn:
            sys.stderr.write(f"\x1b[{self._drawn}A\x1b[J")
            self._drawn = 0

    def _cells(self, number: int, running: bool) -> tuple[str, str, str, str, str]:
        """How the run stands, share done, accuracy and steps on validation data at the last record, and area."""
        result = None if running else self.folder.result(number)
        run = RunFolder(self.folder.run(number))
        begun = run.config_file.exists() and (running or result is not None)
        records = run.records() if begun else []
        last = records[-1] if records else {}
        done = f"{100 * last['batch'] / run.config()['batches']:.0f} %" if last else ""
        accuracy = steps = ""
        if (report := last.get("validation")) is not None:
            accuracy, steps = f"{100 * report['accuracy']:.2f} %", f"{report['mean_steps']:.2f}"
        area = f"{result['validation']['area']:.4f}" if result is not None and "validation" in result else ""
        status = "running" if running else "" if result is None else result["status"]
        return status, done, accuracy, steps, area
