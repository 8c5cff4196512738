"""Options that several commands have, and what their values stand for: tasks, objectives, rules and devices."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter

from rankcode.cli.messages import suggestion
from rankcode.network import Network
from rankcode.rules import Threshold, check_rule
from rankcode.tasks import TASKS, OwnData

SWEEP, MOST_USED, DATA, NETWORK, OPTIMISATION, RUN = (
    Group(name, sort_key=place)
    for place, name in enumerate(("Sweep", "Most used", "Data", "Network", "Optimisation", "Run"))
)

Flag = Annotated[bool, Parameter(negative=())]

Device = Annotated[str, Parameter(help="cpu, cuda, cuda:N or auto, which takes a GPU if there is one.")]
Model = Annotated[
    Literal["best", "last"] | None, Parameter(help="Weights of the run. Default: those that training finished with.")
]
MovedData = Annotated[
    str | None, Parameter(help="Where the data of the run's task is, if it has moved since training.")
]
TestRows = Annotated[
    int | None, Parameter(help="Number of test sequences to draw, for a generated task. Default: that of the task.")
]


def named_task(name: str, **options: Any) -> Any:
    """The task of this name, or the user's own data at this path, with those options that were given."""
    own = name not in TASKS
    if own and not (name and Path(name).exists()):
        close = suggestion(name, TASKS) or f"name a path, or one of {', '.join(TASKS)}"
        raise ValueError(f"there is no task and no data {name!r}: {close}")
    kind = OwnData if own else TASKS[name]
    given = {option: value for option, value in options.items() if value is not None}
    for option in given.keys() - {each.name for each in fields(kind)}:
        raise ValueError(f"--{option.replace('_', '-')} does not apply to {name}")
    if "data" in given:
        given["data"] = str(Path(given["data"]).absolute())  # so that the run can be used from another folder
    return OwnData(str(Path(name).absolute()), **given) if own else kind(**given)


def data_name(task: str) -> str:
    """The name of a task or of a data set: ECG200 for data/ECG200_TRAIN.ts."""
    path = Path(os.path.abspath(task))
    name = task if task in TASKS else path.name if path.is_dir() else path.stem
    return name.removesuffix("_TRAIN").removesuffix("_TEST")


def rule_at(threshold: float, network: Network) -> Threshold:
    """θ for a trained network; classes that must not fire stay silent."""
    rule = Threshold(threshold, getattr(network.rule, "classes", None))
    check_rule(rule, network.activation, network.num_classes)
    return rule
