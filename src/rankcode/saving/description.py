"""Every part of a model or run as JSON, and back: networks, rules, objectives, tasks and front ends.

A built-in part is written as `{"kind": class name, setting: value, …}`. A custom part, of a class that is not part of
rankcode, is written as `{"custom": class name, …}`, so that runs can be compared, and is never built from a file:
reading a file cannot run code. Reading checks kinds, names and types against the signatures of the classes.
"""

from __future__ import annotations

import inspect
import json
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import cache
from numbers import Number
from pathlib import Path
from reprlib import repr as shortened
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor, nn

from rankcode import cells, objectives
from rankcode.cells.gated import MAX_LAYERS
from rankcode.checks import check_features
from rankcode.data.sources import BadData
from rankcode.front_ends import FRONT_ENDS, LogMel
from rankcode.network import Activation, Network
from rankcode.objectives import Objective, Switch
from rankcode.readouts import CheckpointReadout, EnsembleReadout
from rankcode.rules import FireAt, Never, OptimalStopping, Patience, Rule, StepThresholds, Threshold
from rankcode.tasks import TASKS, OwnData

T = TypeVar("T")
FORMAT = 1  # of model files and config.json
REMEDY = "restore it from a copy, or train again"

# Settings that the signature of a class does not give.
SETTINGS: dict[Any, dict[str, Any]] = {
    Network: {
        "cell": nn.Module,
        "outputs": int,
        "readout": nn.Module,
        "activation": Activation,
        "dtype": Literal["float32", "float64", "bfloat16", "float16"],
    },
    FireAt: {"steps": int | tuple[int, ...]},
    cells.Stack: {"parts": tuple[nn.Module, ...]},
    cells.Parallel: {"parts": tuple[nn.Module, ...]},
    nn.Sequential: {"parts": tuple[nn.Module, ...]},
    nn.Linear: {"in_features": int, "out_features": int, "bias": bool},
    nn.Flatten: {"start_dim": int, "end_dim": int},
    nn.Identity: {},
    nn.ReLU: {},
    nn.Tanh: {},
    nn.GELU: {"approximate": Literal["none", "tanh"]},
    nn.Dropout: {"p": float},
}
# Settings that are positional arguments.
AS_ARGUMENTS = {cells.Stack: "parts", cells.Parallel: "parts", nn.Sequential: "parts", Switch: "points"}


def _by_name(*kinds: Any) -> dict[str, Any]:
    return {kind.__name__: kind for kind in kinds}


RULES = _by_name(Threshold, StepThresholds, OptimalStopping, FireAt, Never, Patience)
OBJECTIVES = _by_name(*objectives.OBJECTIVES)
SCHEDULES = _by_name(Switch)
TASK_KINDS = _by_name(*TASKS.values(), OwnData)
MODULES = _by_name(
    *(cells.LSTM, cells.GRU, cells.ConvLSTM, cells.LIF, cells.ConvLIF, cells.Glimpses, cells.Stack),
    *(cells.Parallel, cells.CausalConv, cells.RandomKernels, CheckpointReadout, EnsembleReadout),
    *(nn.Sequential, nn.Linear, nn.Flatten, nn.Identity, nn.ReLU, nn.Tanh, nn.GELU, nn.Dropout),
)
# The type of a setting → the types that JSON may have there.
PLAIN = {int: (int,), float: (int, float), str: (str,), bool: (bool,), NoneType: (NoneType,)}
# The type of a setting → the kinds that are allowed there.
FAMILIES: dict[Any, dict[str, Any]] = {
    Rule: RULES,
    Callable[[float], float]: SCHEDULES,
    nn.Module: MODULES,
}
BUILT_IN = {
    kind for family in (RULES, OBJECTIVES, SCHEDULES, TASK_KINDS, MODULES, FRONT_ENDS) for kind in family.values()
}


# Writing


def describe(part: Any) -> Any:
    """A part, or a plain value, as JSON."""
    if part is None or isinstance(part, str | bool):
        return part
    if isinstance(part, Number):
        return getattr(part, "item", lambda: part)()  # NumPy numbers as Python numbers
    if isinstance(part, tuple | list | nn.ModuleList):
        return [describe(item) for item in part]
    if isinstance(part, Tensor):
        return part.tolist()
    kind, settings = type(part), _settings_of(part)
    if kind in (Network, LogMel):  # their place determines the class
        name = {}
    elif kind in BUILT_IN and not (kind is nn.Sequential and _has_named_layers(part)):
        name = {"kind": kind.__name__}
    else:
        name = {"custom": getattr(part, "__qualname__", kind.__name__)}
        settings = {key: value for key, value in settings.items() if _is_plain(value)}
    return name | {key: describe(value) for key, value in settings.items()}


def _settings_of(part: Any) -> dict[str, Any]:
    if isinstance(part, Network):
        given = {"front_end": part.front_end, "label_names": part.label_names}
        return {
            "cell": part.cell,
            "outputs": part.outputs,
            "readout": part.readout,
            "activation": part.activation,
            "dtype": str(next(part.parameters()).dtype).removeprefix("torch."),
            **{name: value for name, value in given.items() if value is not None},
        }
    if type(part) is nn.Linear:
        without = {} if part.bias is not None else {"bias": False}
        return {"in_features": part.in_features, "out_features": part.out_features, **without}
    if type(part) in (cells.Stack, cells.Parallel, nn.Sequential):
        return {"parts": list(part if isinstance(part, nn.Sequential) else part.cells)}
    if type(part) in SETTINGS:
        return {name: getattr(part, name) for name in SETTINGS[type(part)]}
    if type(part) in BUILT_IN and isinstance(part, nn.Module) and type(part).__module__.startswith("rankcode."):
        # Our modules store the arguments they were created with.
        return {name: getattr(part, name) for name in inspect.signature(type(part)).parameters}
    if isinstance(part, nn.Module):
        return {}
    if is_dataclass(part):
        found = {field.name: getattr(part, field.name) for field in fields(part) if field.init}
    else:
        found = {name: value for name, value in getattr(part, "__dict__", {}).items() if not name.startswith("_")}
    if isinstance(part, Objective) and type(part) not in BUILT_IN:
        found["rule"] = part.rule  # may be a class attribute
    return found


def _is_plain(value: Any) -> bool:
    """Whether a setting of a custom part can be compared: a number, a string, a rule or a tuple of these."""
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, Number | str | Rule) or is_dataclass(value)


def _has_named_layers(module: nn.Sequential) -> bool:
    """Whether layers have other names than 0, 1, …: their weights are saved under these names."""
    return list(module._modules) != [str(number) for number in range(len(module))]


# Reading


class ContentError(ValueError):
    """What is wrong with the content of a file; `content_of` puts the file's path in front."""


def damaged(problem: str) -> ContentError:
    return ContentError(f"is damaged: {problem}; {REMEDY}")


@contextmanager
def content_of(path: str | Path) -> Iterator[None]:
    """Name the file in errors about its content."""
    try:
        yield
    except ContentError as error:
        raise BadData(f"{path} {error}") from None
    except RecursionError:
        raise BadData(f"{path} {damaged('its content is nested too deeply')}") from None


def parse(text: str | bytes) -> Any:
    """The content of JSON without NaN and infinity."""
    try:
        return json.loads(text, parse_float=_finite, parse_constant=_finite)
    except ValueError as error:
        raise damaged(f"it is not JSON ({one_line(error)})") from None


def parse_versioned(text: str | bytes, place: str) -> dict[str, Any]:
    """A JSON object that this version of rankcode can read."""
    content = as_object(parse(text), place)
    if content.get("format") != FORMAT:
        raise ContentError(f"has format {content.get('format')!r}, and this version of rankcode reads {FORMAT}")
    return content


def read_network(description: Any) -> Network:
    """The described network, without weights: on the `meta` device, no size allocates memory."""
    extras = {"front_end", "label_names"}
    kept = {name: value for name, value in as_object(description, "network").items() if name not in extras}
    with torch.device("meta"), warnings.catch_warnings(action="ignore"):  # PyTorch warns of sizes of 0
        settings = read_settings(kept, Network, "network")
        dtype = getattr(torch, settings.pop("dtype", "float32"))
        network = _made(Network, settings, "network").to(dtype)
        try:
            network.logits(torch.empty(1, *network.cell.output_shape, dtype=dtype), 1)
        except (RuntimeError, TypeError, ValueError) as error:
            raise damaged(f"network.readout does not suit cell and outputs: {one_line(error)}") from None
    set_extras(network, description)
    return network


def set_extras(network: Network, description: dict[str, Any]) -> None:
    """Set the front end and the names of the classes, where the description of a network has them."""
    front_end, names = description.get("front_end"), description.get("label_names")
    if front_end is not None:
        network.front_end = made = read_part(front_end, FRONT_ENDS, "network.front_end")
        try:
            check_features(network.cell, made.output_shape)
        except ValueError as error:
            raise damaged(f"network.front_end does not suit network.cell: {error}") from None
    if names is not None:
        network.label_names = read_value(names, tuple[str, ...], "network.label_names")
        if len(names) != network.num_classes:
            raise damaged(f"network.label_names has {len(names)} names for {network.num_classes} classes")


def read_part(description: Any, family: dict[str, Any], place: str) -> Any:
    """A part of one of the kinds of a family. `place` names it in errors, such as network.cell."""
    if "custom" in as_object(description, place):
        raise ContentError(
            f"names {shortened(description['custom'])} as {place}, which is not part of rankcode: create it in Python, "
            f"then load(path, network=…) or fit(…, Training(resume=True, …))"
        )
    kind = description.get("kind")
    if not (isinstance(kind, str) and kind in family):
        raise damaged(f"{place} is of the kind {shortened(kind)}, not one of {', '.join(family)}")
    settings = {name: value for name, value in description.items() if name != "kind"}
    return _made(family[kind], read_settings(settings, family[kind], place), place)


def read_settings(description: Any, kind: Any, place: str) -> dict[str, Any]:
    """The settings of a class, each of the type in its signature."""
    types = _types_of(kind)
    for name in as_object(description, place):
        if name not in types:
            raise damaged(f"{place} has a setting {shortened(name)}, which {kind.__name__} does not have")
    return {name: read_value(value, types[name], f"{place}.{name}") for name, value in description.items()}


def as_object(description: Any, place: str) -> dict[str, Any]:
    if not isinstance(description, dict):
        raise damaged(f"{place} must be an object, not {shortened(description)}")
    return description


def _made(kind: type[T], settings: dict[str, Any], place: str) -> T:
    arguments = settings.pop(AS_ARGUMENTS[kind], ()) if kind in AS_ARGUMENTS else ()
    try:
        return kind(*arguments, **settings)
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise damaged(f"{place} cannot be built: {one_line(error)}") from None


@cache
def _types_of(kind: Any) -> dict[str, Any]:
    if kind in SETTINGS:
        return SETTINGS[kind]
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return {field.name: hints[field.name] for field in fields(kind) if field.init}
    return {name: hint for name, hint in get_type_hints(kind.__init__).items() if name != "return"}


def read_value(value: Any, hint: Any, place: str) -> Any:
    """A value from JSON as this type; lists become tuples."""
    for option in get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,):
        inner = get_args(option)
        if option in PLAIN:
            too_large = type(value) is int and abs(value) > 2**63
            if type(value) in PLAIN[option] and not too_large:
                return value
        elif get_origin(option) is Literal:
            if isinstance(value, str) and value in inner:
                return value
        elif get_origin(option) is tuple:
            if isinstance(value, list) and (inner[-1] is Ellipsis or len(value) == len(inner)):
                if inner[0] is nn.Module and len(value) > MAX_LAYERS:
                    raise damaged(f"{place} has {len(value)} parts, more than {MAX_LAYERS}")
                hints = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
                return tuple(read_value(item, hints[k], f"{place}[{k}]") for k, item in enumerate(value))
        elif isinstance(value, dict):
            if option in FAMILIES:
                return read_part(value, FAMILIES[option], place)
            return _made(option, read_settings(value, option, place), place)
    raise damaged(f"{place} must be {inspect.formatannotation(hint)}, not {shortened(value)}")


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text} is not a finite number")
    return value


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
