"""The plan of a sweep: what is swept, and the options of every run. It is written before a run begins."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from rankcode.data.sources import BadData
from rankcode.rules import Threshold, check_rule
from rankcode.saving.description import describe
from rankcode.sweeps import search_space
from rankcode.sweeps.search_space import Space, Trial, has_range, read_space, suggestions
from rankcode.sweeps.sweep_folder import SweepFolder
from rankcode.sweeps.worker import planned_run, thresholds_of
from rankcode.tasks import TASKS, OwnData
from rankcode.tasks.own_data import ARRAYS
from rankcode.training.config import Training
from rankcode.training.standard_run import NETWORK_OPTIONS, standard_objective

Search = Literal["auto", "grid", "random", "bayesian"]
DEFAULT_RUNS = 20  # where the combinations have no end
OBJECTIVE_OPTIONS = ("recipe", "objective", "threshold", "beta", "cell")
OPTIONS = {*NETWORK_OPTIONS, "augment", *(field.name for field in fields(Training))} - {"folder", "resume", "progress"}
# Settings of `Training` that do not define a run: they may differ when the sweep is continued.
WHERE = ("device", "tensorboard")


def make_plan(
    task: Any,
    over: Mapping[str, Any],
    options: Mapping[str, Any],
    runs: int | None = None,
    search: Search = "auto",
    early_stopping: bool | None = None,
    thresholds: Iterable[float] = (),
) -> dict[str, Any]:
    """The plan as JSON. Every run of it is checked; those of a Bayesian search follow when results are known."""
    space = read_space(over)
    if search not in get_args(Search):
        raise ValueError(f"search must be one of {', '.join(get_args(Search))}, not {search!r}")
    if runs is not None and runs < 1:
        raise ValueError(f"runs must be at least 1, not {runs}")
    for name in (*space, *options):
        if name not in OPTIONS or (name in space and name in WHERE):
            raise ValueError(f"{name} is not an option of a run that can be swept")
        if name in space and name in options:
            raise ValueError(f"{name} is given twice: as one value, and in over=…")
    plan: dict[str, Any] = {
        "task": _described(task),
        "options": {name: value for name, value in options.items() if name not in WHERE},
        "over": {name: values if isinstance(values, list) else str(values) for name, values in space.items()},
        "search": search,
        "seed": options.get("seed", 0),
        "early_stopping": early_stopping,
        "thresholds": sorted(map(float, thresholds)),
        "runs": [],
    }
    combinations = None if has_range(space) else unlike(plan, search_space.grid(space))
    if search == "auto":
        fits = combinations is not None and (runs is None or runs >= len(combinations))
        plan["search"] = "grid" if fits else "random"
    if early_stopping is None:  # a grid was asked for because each of its runs is wanted
        plan["early_stopping"] = plan["search"] != "grid"
    if plan["search"] == "grid":
        plan["runs"] = unlike(plan, search_space.grid(space)) if combinations is None else combinations
        if runs is not None and runs < len(plan["runs"]):
            raise ValueError(f"the grid has {len(plan['runs'])} runs, and runs={runs}: choose random search")
    else:
        count = runs or (DEFAULT_RUNS if combinations is None else len(combinations))
        drawn = unlike(plan, search_space.random_combinations(space, plan["seed"]), count)
        plan["runs"] = drawn if plan["search"] == "random" else []
        plan["wanted"] = count
    for combination in plan["runs"] or _ends(space):
        _check(plan, combination)
    return plan


def unlike(plan: dict[str, Any], combinations: Iterable[dict[str, Any]], count: int | None = None) -> list[dict]:
    """The first combinations that stand for different runs: conventional training, say, has no threshold."""
    found: dict[str, dict[str, Any]] = {}
    tries = 0
    for combination in combinations:
        new = _key(plan, combination) not in found
        if new:
            found[_key(plan, combination)] = combination
        tries = 0 if new else tries + 1
        if len(found) == count or (count is not None and tries == search_space.MAX_TRIES):
            break
    return list(found.values())


def next_suggestion(folder: SweepFolder, plan: dict[str, Any]) -> dict[str, Any] | None:
    """The options of the next run of a Bayesian search; None if there are enough runs, or no other combination."""
    if len(plan["runs"]) >= plan["wanted"]:
        return None
    space, known = read_space(plan["over"]), {_key(plan, options) for options in plan["runs"]}
    results = [folder.result(number) or {} for number in range(1, len(plan["runs"]) + 1)]
    trials = [
        Trial(options, result.get("validation", {}).get("area", 0.0 if "status" in result else None))
        for options, result in zip(plan["runs"], results, strict=True)
    ]
    return next(
        (options for options in suggestions(space, trials, plan["seed"]) if _key(plan, options) not in known), None
    )


def continued(written: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any] | None:
    """The plan of a folder if it is the wanted one, which may have more runs; None if it is another."""
    settings = [{name: plan[name] for name in plan if name not in ("runs", "wanted")} for plan in (written, wanted)]
    if settings[0] != json.loads(json.dumps(settings[1])):
        return None
    longer = json.loads(json.dumps(wanted["runs"]))
    count = min(len(written["runs"]), len(longer))
    if longer and written["runs"][:count] != longer[:count]:
        return None
    more = {"wanted": max(written["wanted"], wanted["wanted"])} if "wanted" in wanted else {}
    return written | more | {"runs": written["runs"] + longer[count:]}


def _described(task: Any) -> dict[str, Any]:
    """A task, the name of one, or the path of own data, as JSON that a worker can read."""
    if isinstance(task, str | Path):
        task = TASKS[str(task)]() if str(task) in TASKS else OwnData(str(Path(task).absolute()))
    if type(task) not in (*TASKS.values(), OwnData) or getattr(task, "path", None) == ARRAYS:
        raise ValueError("a sweep needs data that its workers can read: a task of rankcode, or the path of a file")
    if task.validation is None:
        raise BadData("a sweep needs validation data, by which networks and thresholds are chosen")
    return describe(task)


def _key(plan: dict[str, Any], combination: dict[str, Any]) -> str:
    """The same text for combinations that stand for the same run."""
    options = plan["options"] | combination
    objective = standard_objective(**{name: options[name] for name in OBJECTIVE_OPTIONS if name in options})
    others = {name: value for name, value in options.items() if name not in ("objective", "threshold", "beta")}
    return json.dumps([describe(objective), others], sort_keys=True)


def _ends(space: Space) -> Iterable[dict[str, Any]]:
    """Combinations that have the first and the last values of every option."""
    for place in (0, -1):
        yield {
            name: values[place] if isinstance(values, list) else (values.low, values.high)[place]
            for name, values in space.items()
        }


def _check(plan: dict[str, Any], combination: dict[str, Any]) -> None:
    """Raise what training with these options would raise at its beginning."""
    with torch.random.fork_rng(devices=[]):
        run = planned_run(plan, combination, {})
    for threshold in thresholds_of(run, plan["thresholds"]):
        check_rule(Threshold(threshold), run.network.activation, run.network.num_classes)
