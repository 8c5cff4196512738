"""Options that several commands have, and what their values stand for: tasks, objectives, rules and devices."""

from __future__ import annotations

import math
import os
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter

from rankcode.cli.messages import suggestion
from rankcode.network import Network
from rankcode.objectives import AtEnd, AtSpike, Beta, EveryStep, Objective, Switch, UntilSpike
from rankcode.rules import Rule, Threshold, check_rule
from rankcode.tasks import TASKS, OwnData

MOST_USED, DATA, NETWORK, OPTIMISATION, RUN = (
    Group(name, sort_key=place)
    for place, name in enumerate(("Most used", "Data", "Network", "Optimisation", "Run"), start=1)
)

Flag = Annotated[bool, Parameter(negative=())]

Device = Annotated[str, Parameter(help="cpu, cuda, cuda:N or auto, which takes a GPU where there is one.")]
Model = Annotated[
    Literal["best", "last"] | None, Parameter(help="Which weights of the run. Default: those training finished with.")
]
MovedData = Annotated[
    str | None, Parameter(help="Where the data of the run's task is, if it has moved since training.")
]
TestRows = Annotated[
    int | None, Parameter(help="Test sequences to draw, for a generated task. Default: as the task says.")
]
ObjectiveName = Literal["at-spike", "at-end", "every-step", "until-spike"]


def named_task(name: str, **options: Any) -> Any:
    """The task of this name, or the user's own data at this path, with those options that were given."""
    own = name not in TASKS
    if own and not (name and Path(name).exists()):
        close = suggestion(name, TASKS) or f"name a path, or one of {', '.join(TASKS)}"
        raise ValueError(f"there is no task and no data {name!r}: {close}")
    kind = OwnData if own else TASKS[name]
    given = {option: value for option, value in options.items() if value is not None}
    for option in given.keys() - {each.name for each in fields(kind)}:
        raise ValueError(f"--{option.replace('_', '-')} means nothing for {name}")
    if "data" in given:
        given["data"] = str(Path(given["data"]).absolute())  # so that the run can be used from another folder
    return OwnData(str(Path(name).absolute()), **given) if own else kind(**given)


def data_name(task: str) -> str:
    """The name of a task or of a data set: ECG200 for data/ECG200_TRAIN.ts."""
    path = Path(os.path.abspath(task))
    name = task if task in TASKS else path.name if path.is_dir() else path.stem
    return name.removesuffix("_TRAIN").removesuffix("_TEST")


def read_beta(text: str) -> Beta:
    try:
        if ":" not in text:
            if not math.isfinite(float(text)):
                raise ValueError
            return float(text)
        return Switch(*(tuple(float(part) for part in pair.split(":")) for pair in text.split(",")))  # type: ignore[arg-type]
    except (ValueError, TypeError):
        raise ValueError(
            f"--beta must be a number, or share:value pairs such as 0:0.4,0.5:0.165, not {text!r}"
        ) from None


def named_objective(name: str, rule: Rule, beta: Beta) -> Objective:
    if name in ("at-spike", "until-spike"):
        return (AtSpike if name == "at-spike" else UntilSpike)(rule=rule, beta=beta)
    if name == "every-step" and beta:
        raise ValueError("every-step has no --beta")
    return AtEnd(beta) if name == "at-end" else EveryStep()


def rule_at(threshold: float, network: Network) -> Threshold:
    """θ for a trained network; classes that must not fire stay silent."""
    rule = Threshold(threshold, getattr(network.rule, "classes", None))
    check_rule(rule, network.activation, network.num_classes)
    return rule
