"""A run from the options of `rankcode train`: the network, the objective and the settings that they stand for."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal, NamedTuple, get_args

import torch

from rankcode.network import Network
from rankcode.objectives import AtEnd, AtSpike, Beta, EveryStep, Objective, Switch, UntilSpike
from rankcode.rules import Threshold
from rankcode.training import recipes
from rankcode.training.config import Training
from rankcode.training.recipes import RecipeName
from rankcode.training.standard_network import HIDDEN_SIZES, CellName, standard_network

ObjectiveName = Literal["at-spike", "at-end", "every-step", "until-spike"]


class StandardRun(NamedTuple):
    """The arguments of `fit`."""

    network: Network
    task: Any
    objective: Objective
    config: Training


def standard_run(
    task: Any,
    *,
    recipe: RecipeName = "default",
    objective: ObjectiveName | None = None,
    threshold: float | None = None,
    beta: str | float = "0",
    cell: CellName | None = None,
    hidden_size: int | None = None,
    num_layers: int = 1,
    readout_layer_size: int | None = None,
    kernel_size: int | None = None,
    decay: float | None = None,
    **training: Any,
) -> StandardRun:
    """What `rankcode train` trains with these options; `training` are settings of `Training`. Seeds PyTorch."""
    named = standard_objective(recipe, objective, threshold, beta, cell)
    chosen = recipes.recipe(recipe, getattr(task.train, "size", None))
    cell = cell or chosen.cell
    if cell in ("lstm", "gru", "lif") and getattr(task, "flat", None) is False:
        task = replace(task, flat=True)
    config = replace(chosen.training, **training)
    default_size = chosen.hidden_size if cell == chosen.cell else HIDDEN_SIZES[cell]
    hidden_size = default_size if hidden_size is None else hidden_size
    torch.manual_seed(config.seed)
    network = standard_network(task, cell, hidden_size, num_layers, decay, readout_layer_size, kernel_size)
    return StandardRun(network, task, named, config)


# The options of `standard_run` beside those of `Training`.
NETWORK_OPTIONS = tuple(standard_run.__kwdefaults__ or ())


def standard_objective(
    recipe: RecipeName = "default",
    objective: ObjectiveName | None = None,
    threshold: float | None = None,
    beta: str | float = "0",
    cell: CellName | None = None,
) -> Objective:
    """The objective that these options stand for."""
    for name, value, kind in (("recipe", recipe, RecipeName), ("objective", objective, ObjectiveName)):
        if value is not None and value not in get_args(kind):
            raise ValueError(f"{name} must be one of {', '.join(get_args(kind))}, not {value!r}")
    chosen = recipes.recipe(recipe, None)
    cell, named = cell or chosen.cell, objective or chosen.objective
    if cell not in HIDDEN_SIZES:
        raise ValueError(f"cell must be one of {', '.join(HIDDEN_SIZES)}, not {cell!r}")
    spiking = cell in ("lif", "conv-lif")
    rule = Threshold((1.0 if spiking else 0.95) if threshold is None else threshold)
    if rule.threshold > 1 and not spiking:
        raise ValueError(f"threshold={rule.threshold:g} is outside (0, 1], the range of probabilities")
    weight = read_beta(str(beta))
    if named in ("at-spike", "until-spike"):
        return (AtSpike if named == "at-spike" else UntilSpike)(rule=rule, beta=weight)
    if named == "every-step" and weight:
        raise ValueError("every-step has no beta=…")
    return AtEnd(weight) if named == "at-end" else EveryStep()


def read_beta(text: str) -> Beta:
    """β from text: a number, or a schedule."""
    try:
        if ":" not in text:
            if not math.isfinite(float(text)):
                raise ValueError
            return float(text)
        return Switch(*(tuple(float(part) for part in pair.split(":")) for pair in text.split(",")))  # type: ignore[arg-type]
    except (ValueError, TypeError):
        raise ValueError(
            f"beta=… must be a number, or share:value pairs such as 0:0.4,0.5:0.165, not {text!r}"
        ) from None
