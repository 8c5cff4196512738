"""Tasks and objectives as config.json of a run has them."""

from __future__ import annotations

from typing import Any

from rankcode.objectives import AtEnd, AtSpike, Beta, EveryStep, Objective, Switch, UntilSpike
from rankcode.rules import Never, Rule, written_thresholds
from rankcode.tasks import TASKS, OwnData
from rankcode.tasks.own_data import ARRAYS


def written_task(
    written: dict[str, Any], test_rows: int | None = None, data: str | None = None, skip_bad: bool = False
) -> Any:
    """The task that config.json names; `data` is where its data is now."""
    settings = dict(written["task"])
    name = settings.pop("name", None)
    if (name not in TASKS and name != OwnData.name) or settings.get("path") == ARRAYS:
        raise ValueError(f"the run was trained from Python on {name}: use it from Python too")
    if test_rows is not None:
        if "test_rows" not in settings or test_rows < 1:
            raise ValueError(f"test rows are for generated tasks, and at least 1: {name} cannot draw {test_rows}")
        settings["test_rows"] = test_rows
    if data is not None:
        where = next((option for option in ("data", "path") if option in settings), None)
        if where is None:
            raise ValueError(f"--data means nothing for {name}")
        settings[where] = data
    if skip_bad and "skip_bad" in settings:
        settings["skip_bad"] = True
    try:
        return OwnData(**settings) if name == OwnData.name else TASKS[name](**settings)
    except TypeError:
        raise ValueError(f"the run has settings for {name} that this version does not know: {settings}") from None


def named_objective(name: str, rule: Rule, beta: Beta) -> Objective:
    if name in ("at-spike", "until-spike"):
        return (AtSpike if name == "at-spike" else UntilSpike)(rule=rule, beta=beta)
    if name == "every-step" and beta:
        raise ValueError("every-step has no beta")
    return AtEnd(beta) if name == "at-end" else EveryStep()


def written_rule(written: dict[str, Any]) -> Rule:
    """The rule of the objective that config.json names."""
    described = written.get("rule", {})
    if written.get("kind") in ("AtEnd", "EveryStep") or described.get("kind") == "Never":
        return Never()
    if (rule := written_thresholds(described)) is None:
        raise ValueError("the run was trained from Python with a rule of its own: give --threshold, or use it there")
    return rule


def written_objective(written: dict[str, Any]) -> Objective:
    """The objective that config.json names."""
    name = {"AtSpike": "at-spike", "UntilSpike": "until-spike", "AtEnd": "at-end", "EveryStep": "every-step"}
    rule, beta = written_thresholds(written["rule"]) if "rule" in written else Never(), written.get("beta", 0.0)
    if isinstance(beta, dict):
        beta = Switch(*beta["points"]) if beta.get("kind") == "Switch" else None
    if written.get("kind") not in name or rule is None or beta is None:
        raise ValueError("the run was trained from Python with parts of its own: use it from Python too")
    return named_objective(name[written["kind"]], rule, beta)
