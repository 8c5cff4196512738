"""The folder of a sweep, which holds everything a sweep needs to go on after it was killed.

plan.json           what is swept, and the options of every run; written before a run begins
runs/001/ …         a run folder for each run, as `rankcode train` writes it
rungs/001.json …    areas of runs in the middle of their training, where hopeless ones are stopped
results/001.json …  how a run ended, and its curves on validation and test data
front.json          the composite front, and front.png its picture
picked.json         the run that was picked from the front
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rankcode.data.sources import BadData
from rankcode.saving.files import write_whole
from rankcode.saving.run_folder import PICKED

FINAL = ("finished", "stopped")  # how a run can end that is not continued by the next call


class SweepFolder:
    def __init__(self, path: str | Path):
        self.path = Path(path).absolute()
        self.plan_file, self.front_file = self.path / "plan.json", self.path / "front.json"
        self._results: dict[int, dict[str, Any]] = {}  # final ones that were read

    def exists(self) -> bool:
        return self.plan_file.exists()

    def plan(self) -> dict[str, Any]:
        return _read(self.plan_file)

    def write_plan(self, plan: dict[str, Any]) -> None:
        _write(self.plan_file, plan)

    def run(self, number: int) -> Path:
        """The run folder of a run; runs are numbered from 1."""
        return self.path / "runs" / f"{number:03}"

    def result(self, number: int) -> dict[str, Any] | None:
        """How a run ended: status, reason of a failure, curves. None if it was not trained, or not to its end."""
        if number not in self._results:
            file = self.path / "results" / f"{number:03}.json"
            result = _read(file) if file.exists() else None
            if result is None or result["status"] not in FINAL:
                return result
            self._results[number] = result
        return self._results[number]

    def write_result(self, number: int, result: dict[str, Any]) -> None:
        _write(self.path / "results" / f"{number:03}.json", result)

    def has_ended(self, number: int) -> bool:
        """Whether there is nothing left to train of a run."""
        result = self.result(number)
        return result is not None and result["status"] in FINAL

    def write_rungs(self, number: int, areas: dict[str, float]) -> None:
        _write(self.path / "rungs" / f"{number:03}.json", areas)

    def rungs(self, number: int) -> dict[str, float]:
        """The areas of a run in the middle of its training, by rung."""
        file = self.path / "rungs" / f"{number:03}.json"
        return _read(file) if file.exists() else {}

    def areas_at(self, rung: str) -> list[float]:
        """The areas of all runs that have reached a rung."""
        found = (_read(file) for file in sorted((self.path / "rungs").glob("[0-9]*.json")))
        return [areas[rung] for areas in found if rung in areas]

    def front(self) -> dict[str, Any]:
        if not self.front_file.exists():
            raise BadData(f"{self.path} has no front.json: no run of this sweep has ended yet")
        return _read(self.front_file)

    def write_front(self, front: dict[str, Any]) -> None:
        _write(self.front_file, front)

    def write_picked(self, picked: dict[str, Any]) -> None:
        _write(self.path / PICKED, picked)


def _read(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_bytes())
    except ValueError as error:
        raise BadData(f"{file} is damaged: {error}") from None
    if not isinstance(content, dict):
        raise BadData(f"{file} is damaged: it does not hold an object")
    return content


def _write(file: Path, content: dict[str, Any]) -> None:
    write_whole(file, json.dumps(content, indent=1).encode() + b"\n")
