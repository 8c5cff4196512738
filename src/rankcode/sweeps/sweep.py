"""`sweep`: trains the runs of a plan side by side, and keeps the composite front up to date.

The folder of the sweep is the only state. A run that has a result is never trained again, one that was cut off is
continued from its checkpoint, and so the same call continues a sweep that was killed.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankcode.data.sources import BadData
from rankcode.metrics import THRESHOLDS
from rankcode.ray_workers import RayWorkers
from rankcode.saving.files import alone_in
from rankcode.saving.run_folder import numbered
from rankcode.sweeps.front import composite, draw_front, points_of, write_front
from rankcode.sweeps.live_table import LiveTable
from rankcode.sweeps.plan import WHERE, Search, continued, make_plan, next_suggestion
from rankcode.sweeps.sweep_folder import SweepFolder
from rankcode.sweeps.worker import Worker
from rankcode.tasks import TASKS

if TYPE_CHECKING:
    import pandas

MAX_ATTEMPTS = 3  # of a run whose worker dies: it may need more memory than there is
DRAW_SHARE = 0.02  # of the time at most goes into pictures of the front


def sweep(
    task: Any,
    over: Mapping[str, Any],
    *,
    folder: str | Path | None = None,
    runs: int | None = None,
    hours: float | None = None,
    search: Search = "auto",
    early_stopping: bool | None = None,
    thresholds: Iterable[float] = THRESHOLDS,
    cpus_per_run: float = 1,
    gpus_per_run: float | None = None,
    address: str | None = None,
    progress: bool = True,
    **options: Any,
) -> pandas.DataFrame:
    """Train networks with different options side by side, and find the best trade-offs among all of them.

    `task` is a task of rankcode, its name, or the path of your own data. `over` names the options to vary, as `rankcode
    train` has them: a list of values, or a range such as `"1e-4..1e-2"`; `options` are those that are the same for all
    runs.

        frame = rc.sweep("two-sequence", {"beta": [0, 0.1, 0.2], "threshold": [0.95, 0.99]}, folder="runs/sweep")

    - `folder`: where the sweep is kept. The same call continues a sweep that was stopped or killed. Default:
      runs/TASK-sweep.
    - `runs`: how many runs at most; `hours`: how long this call may take.
    - `search`: "grid" tries all combinations, "random" some of them, "bayesian" those that promise most, by Optuna.
      Default: grid where all combinations are wanted, else random.
    - `early_stopping`: end runs that are hopeless after a ninth or a third of their training. Default: not for a grid.
    - `thresholds`: values of θ at which every network is measured.
    - `cpus_per_run`, `gpus_per_run`: what a run takes of the machine, such as a tenth of a GPU.
    - `address`: of a Ray cluster. Default: Ray on this machine, started and stopped by the sweep.

    Returns a frame with a row for each network and threshold: run, folder, status, reason of a failure, the options in
    `over`, theta, accuracy and mean steps on validation and test data, and whether the point is on the front.
    """
    limits: Any = {"runs": runs, "search": search, "early_stopping": early_stopping, "thresholds": thresholds}
    resources: Any = {"cpus_per_run": cpus_per_run, "gpus_per_run": gpus_per_run, "address": address}
    return frame_of(run_sweep(task, over, options, folder, hours, **limits, **resources, progress=progress))


def run_sweep(
    task: Any,
    over: Mapping[str, Any],
    options: Mapping[str, Any],
    folder: str | Path | None = None,
    hours: float | None = None,
    *,
    cpus_per_run: float = 1,
    gpus_per_run: float | None = None,
    address: str | None = None,
    progress: bool = True,
    **limits: Any,
) -> SweepFolder:
    """`sweep`, without the frame. `limits`: runs, search, early_stopping and thresholds."""
    for name, value in {"hours": hours, "cpus_per_run": cpus_per_run, "gpus_per_run": gpus_per_run}.items():
        if value is not None and not (value > 0 or (name == "gpus_per_run" and value == 0)):
            raise ValueError(f"{name}={value:g} must be above 0")
    deadline = None if hours is None else time.time() + 3600 * hours
    wanted = make_plan(task, over, options, **limits)
    for needed in ("ray", *(["optuna"] if wanted["search"] == "bayesian" else [])):
        import_module(needed)  # raises before anything is written if it is missing
    kept, plan = _opened(folder, wanted)
    where = {name: options[name] for name in WHERE if name in options}
    use_gpus = str(options.get("device", "auto")) != "cpu"
    try:
        with alone_in(kept.path, wait=False):
            kept.write_plan(plan)
            if plan["search"] == "bayesian" or not all(map(kept.has_ended, range(1, len(plan["runs"]) + 1))):
                workers = RayWorkers(Worker, (), kept.path, cpus_per_run, gpus_per_run, address, use_gpus)
                with workers, LiveTable(kept, progress) as table:
                    _train(kept, plan, workers, table, deadline, where)
            write_front(kept, results_of(kept, plan))
            draw_front(kept, results_of(kept, plan))
    except BlockingIOError:
        raise BadData(f"{kept.path} is being swept by another process") from None
    return kept


def _opened(folder: str | Path | None, plan: dict[str, Any]) -> tuple[SweepFolder, dict[str, Any]]:
    """The folder of a sweep, and its plan. The default one is the first that is free or holds the same sweep."""
    path = plan["task"].get("path")
    name = next((name for name, kind in TASKS.items() if kind.__name__ == plan["task"]["kind"]), None)
    default = Path("runs") / f"{name or Path(path).stem}-sweep"
    for each in map(SweepFolder, numbered(default) if folder is None else [folder]):
        if not each.exists():
            if each.path.exists() and any(file.name != ".ray" for file in each.path.iterdir()):
                if folder is None:
                    continue
                raise ValueError(f"{each.path} exists and is not the folder of a sweep: choose another")
            return each, plan
        if (found := continued(each.plan(), plan)) is not None:
            return each, found
    raise ValueError(f"{folder} holds another sweep: choose another folder, or repeat its options")


def _train(
    folder: SweepFolder,
    plan: dict[str, Any],
    workers: RayWorkers,
    table: LiveTable,
    deadline: float | None,
    where: dict[str, Any],
) -> None:
    waiting = deque(number for number in range(1, len(plan["runs"]) + 1) if not folder.has_ended(number))
    deaths: Counter[int] = Counter()
    picture = Picture(folder)
    if not workers.gpus_per_run and where.get("device", "auto") == "auto":
        where = where | {"device": "cpu"}

    def over() -> bool:
        return deadline is not None and time.time() >= deadline

    def wanted() -> int:
        """How many runs are still to be trained."""
        more = plan["wanted"] - len(plan["runs"]) if plan["search"] == "bayesian" else 0
        return len(waiting) + len(workers.running) + more

    while wanted() and not (over() and not workers.running):
        while not over() and workers.has_room(wanted()):
            if not waiting and plan["search"] == "bayesian":
                options = next_suggestion(folder, plan)
                if options is None:
                    plan["wanted"] = len(plan["runs"])
                else:
                    plan["runs"].append(options)
                    waiting.append(len(plan["runs"]))
                folder.write_plan(plan)
            if not waiting:
                break
            number = waiting.popleft()
            workers.give(number, str(folder.path), number, deadline, where)
        ended = workers.wait(1.0)
        for number, _, reason in ended:
            if reason is not None and not folder.has_ended(number):
                deaths[number] += 1
                if deaths[number] < MAX_ATTEMPTS:
                    waiting.appendleft(number)
                else:
                    reason = f"{reason}, {MAX_ATTEMPTS} times: it may need more memory than there is"
                    folder.write_result(number, {"status": "failed", "reason": reason})
        if ended:
            results = results_of(folder, plan)
            write_front(folder, results)
            picture.update(results)
        table.show(plan, workers.running, [number for number, *_ in ended if folder.result(number) is not None])
    picture.finish()


class Picture:
    """front.png, drawn in a thread, so that no worker waits for it."""

    def __init__(self, folder: SweepFolder):
        self.folder, self._thread, self._next = folder, threading.Thread(), 0.0

    def update(self, results: dict[int, dict[str, Any]]) -> None:
        """Draw, unless too much time went into pictures lately."""
        if time.monotonic() >= self._next and not self._thread.is_alive():
            self._thread = threading.Thread(target=self._draw, args=[results], daemon=True)
            self._thread.start()

    def _draw(self, results: dict[int, dict[str, Any]]) -> None:
        begun = time.monotonic()
        draw_front(self.folder, results)
        self._next = time.monotonic() + (time.monotonic() - begun) / DRAW_SHARE

    def finish(self) -> None:
        if self._thread.is_alive():
            self._thread.join()


def results_of(folder: SweepFolder, plan: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """The results of the runs that have one, by number."""
    found = {number: folder.result(number) for number in range(1, len(plan["runs"]) + 1)}
    return {number: result for number, result in found.items() if result is not None}


def frame_of(folder: SweepFolder) -> pandas.DataFrame:
    """A row for each network and threshold of a sweep, and one for each run that failed or was not trained."""
    import pandas

    plan = folder.plan()
    results = results_of(folder, plan)
    front = {(point["run"], point["threshold"]) for point in composite(results)}
    rows = []
    for number, options in enumerate(plan["runs"], 1):
        result = results.get(number, {"status": "not trained"})
        run = {"run": number, "folder": str(folder.run(number)), "status": result["status"]}
        run |= {"reason": result.get("reason"), **{name: options.get(name) for name in plan["over"]}}
        for point in points_of(number, result) or [{"threshold": None}]:
            measured = {
                f"{split}_{name}": point[split][name]
                for split in ("validation", "test")
                if split in point
                for name in ("accuracy", "mean_steps")
            }
            on_front = (number, point["threshold"]) in front
            rows.append({**run, "theta": point["threshold"], **measured, "on_front": on_front})
    return pandas.DataFrame(rows)
