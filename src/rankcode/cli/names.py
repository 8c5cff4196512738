"""Tasks, objectives and schedules as the command line names them."""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

from rankcode.objectives import AtEnd, AtSpike, Beta, EveryStep, Objective, Switch, UntilSpike
from rankcode.rules import Rule
from rankcode.tasks import TASKS, OwnData

ObjectiveName = Literal["at-spike", "at-end", "every-step", "until-spike"]


def named_task(name: str, **options: Any) -> Any:
    """The task of this name, or the user's own data at this path, with those options that were given."""
    own = name not in TASKS
    if own and not (name and Path(name).exists()):
        raise ValueError(f"there is no task and no data {name!r}: name a path, or one of {', '.join(TASKS)}")
    kind = OwnData if own else TASKS[name]
    given = {option: value for option, value in options.items() if value is not None}
    for option in given.keys() - {each.name for each in fields(kind)}:
        raise ValueError(f"--{option.replace('_', '-')} means nothing for {name}")
    if "data" in given:
        given["data"] = str(Path(given["data"]).resolve())  # so that the run can be used from another folder
    return OwnData(str(Path(name).resolve()), **given) if own else kind(**given)


def read_beta(text: str) -> Beta:
    try:
        if ":" not in text:
            if not math.isfinite(float(text)):
                raise ValueError
            return float(text)
        return Switch(*(tuple(float(part) for part in pair.split(":")) for pair in text.split(",")))  # type: ignore[arg-type]
    except (ValueError, TypeError):
        raise ValueError(f"beta must be a number, or share:value pairs such as 0:0.4,0.5:0.165, not {text!r}") from None


def named_objective(name: str, rule: Rule, beta: Beta) -> Objective:
    if name in ("at-spike", "until-spike"):
        return (AtSpike if name == "at-spike" else UntilSpike)(rule=rule, beta=beta)
    if name == "every-step" and beta:
        raise ValueError("every-step has no beta")
    return AtEnd(beta) if name == "at-end" else EveryStep()
