"""One run of a sweep: trains it, or continues it, and measures it. Runs in the worker processes of Ray."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from rankcode.metrics import tradeoff
from rankcode.ray_workers import RayWorker
from rankcode.saving.description import TASK_KINDS, read_part
from rankcode.saving.files import alone_in
from rankcode.sweeps.early_stopping import EarlyStopping
from rankcode.sweeps.sweep_folder import SweepFolder
from rankcode.training.loop import fit
from rankcode.training.standard_run import StandardRun, standard_run


class Worker(RayWorker):
    """An actor of Ray: it lives as long as the sweep, so PyTorch is imported and data is read once."""

    def __init__(self, threads: int):
        torch.set_num_threads(threads)

    def work(self, path: str, number: int, deadline: float | None, where: dict[str, Any]) -> None:
        train_run(SweepFolder(path), number, deadline, where, self.node())


def train_run(
    folder: SweepFolder, number: int, deadline: float | None, where: dict[str, Any], node: str | None = None
) -> None:
    """Train a run of a sweep from where it is, and write its result. An error is a result too.

    `where`: settings of `Training` that do not define the run, such as the device. `node`: where it is trained.
    """
    plan, path = folder.plan(), folder.run(number)
    with alone_in(path, wait=True):
        pass  # a worker of a sweep that was killed may still be training this run, for a moment
    if folder.has_ended(number):
        return
    try:
        result = _trained(folder, number, plan, deadline, where | {"folder": str(path), "resume": True})
    except Exception as error:
        result = {"status": "failed", "reason": " ".join(str(error).split()) or type(error).__name__}
    folder.write_result(number, result | {"node": node})


def _trained(
    folder: SweepFolder, number: int, plan: dict[str, Any], deadline: float | None, where: dict[str, Any]
) -> dict[str, Any]:
    run = planned_run(plan, plan["runs"][number - 1], where)
    thresholds = thresholds_of(run, plan["thresholds"])
    stop = EarlyStopping(folder, number, run.task, thresholds, plan["early_stopping"], deadline)
    history = fit(*run, stop=stop)
    curves = {split: tradeoff(run.network, run.task, thresholds, split).as_dict() for split in ("validation", "test")}
    return {"status": stop.status, "problem": history.problem, "seconds": history.records[-1]["seconds"], **curves}


def planned_run(plan: dict[str, Any], options: dict[str, Any], where: dict[str, Any]) -> StandardRun:
    """The arguments of `fit` for a run of a plan."""
    options = plan["options"] | options
    task = _task(json.dumps(plan["task"]), options.pop("augment", None), options.get("cell"), options.get("recipe"))
    run = standard_run(task.read, **options, progress=False, **where)
    task.read = run.task
    return run


def thresholds_of(run: StandardRun, thresholds: list[float]) -> list[float]:
    """The thresholds at which a network is measured: those of the sweep, and the one that it was trained with."""
    own = getattr(run.objective.rule, "threshold", None)
    return sorted({*thresholds, *(() if own is None else (own,))})


@cache
def _task(description: str, augment: bool | None, cell: str | None, recipe: str | None) -> SimpleNamespace:
    """`read`: a task with the data that was read for a cell, for all runs of a process."""
    described = json.loads(description)
    if augment is not None and "augment" not in described:
        raise ValueError(f"augment= does not apply to {Path(described.get('path', '')).name or 'this task'}")
    described |= {} if augment is None else {"augment": augment}
    return SimpleNamespace(read=read_part(described, TASK_KINDS, "task"))
