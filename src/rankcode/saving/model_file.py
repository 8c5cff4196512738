"""Save and load networks: one safetensors file whose header says, in JSON, how the network is built.

Only built-in parts are ever named and built, so opening a model file can never run code. A network with
parts of the user's own is loaded into a network the user made: `load(path, network=…)`.
"""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import nn

from rankcode import cells
from rankcode.front_ends import FRONT_ENDS
from rankcode.network import Network
from rankcode.rules import StepThresholds, Threshold, written_thresholds
from rankcode.saving.files import write_whole

FORMAT = 1
TYPES = {name: getattr(torch, name) for name in ("float32", "float64", "bfloat16", "float16")}
KINDS = (cells.LSTM, cells.GRU, cells.ConvLSTM, cells.LIF, cells.ConvLIF, cells.Glimpses)
CELLS = {kind.__name__: kind for kind in KINDS}
LAYERS: dict[str, tuple[type[nn.Module], tuple[str, ...]]] = {
    "Linear": (nn.Linear, ("in_features", "out_features")),
    "Flatten": (nn.Flatten, ("start_dim", "end_dim")),
    "Identity": (nn.Identity, ()),
    "ReLU": (nn.ReLU, ()),
    "Tanh": (nn.Tanh, ()),
    "GELU": (nn.GELU, ("approximate",)),
    "Dropout": (nn.Dropout, ("p",)),
}


def save(network: Network, path: str | Path) -> None:
    """Write a network to one file, whole or not at all."""
    header = {"format": FORMAT, "network": describe(network)}
    if isinstance(network.rule, Threshold | StepThresholds):
        header["rule"] = {"kind": type(network.rule).__name__, **asdict(network.rule)}
    weights = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in network.state_dict().items()
    }
    write_whole(Path(path), to_bytes(weights, {"rankcode": json.dumps(header)}))


def load(path: str | Path, network: Network | None = None) -> Network:
    """Read a network from a file, or from the folder of a run, on the CPU and ready for use (`eval()`); into `network`
    where it has parts of its own."""
    path, written, why = Path(path), None, ""
    if (file := path / "config.json").is_file():  # the folder of a run: the model that it finished with
        try:
            config = json.loads(file.read_text())
            path, written = path / f"{config['training']['finish_with']}.safetensors", config["objective"].get("rule")
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ValueError(f"{file} is damaged: it is not the configuration of a run") from None
        why = ": the run is kept without its weights, or has not got so far"
    if not path.is_file():
        raise FileNotFoundError(f"there is no model file {path}{why}")
    try:
        with safe_open(path, "pt") as file:
            header = json.loads((file.metadata() or {})["rankcode"])
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except KeyError:
        raise ValueError(f"{path} was not written by rankcode.save: its header names no network") from None
    except (SafetensorError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is damaged or not a model file: {error}") from None
    number = header.get("format") if isinstance(header, dict) else None
    if number != FORMAT:
        raise ValueError(f"{path} has format {number!r}, this version of rankcode reads {FORMAT}")
    rule = _rule(header.get("rule", written), path)
    try:
        if network is None:
            network = build(header.get("network", {}), path).eval()  # as it will be used: without dropout
        else:
            deepcopy(network).load_state_dict(weights)  # where it does not fit, the user's network stays as it is
            _attach(network, header.get("network", {}), path, made=True)
        network.load_state_dict(weights)
        network.rule = rule
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} does not fit the network: {reason}") from None
    return network


def describe(network: Network) -> dict[str, Any]:
    """How a network is built, as JSON; parts that are not built-in are named under `own`."""
    description = {
        "cell": _describe(network.cell),
        "outputs": network.outputs,
        "readout": _describe(network.readout),
        "activation": network.activation,
        "dtype": str(next(network.parameters()).dtype).removeprefix("torch."),
    }
    if network.front_end is not None:
        name = type(network.front_end).__name__
        own = type(network.front_end) is not FRONT_ENDS.get(name)
        description["front_end"] = {"own": name} if own else {"kind": name, **asdict(network.front_end)}
    if network.label_names is not None:
        description["label_names"] = list(network.label_names)
    return description


def build(description: dict[str, Any], path: str | Path = "the description") -> Network:
    """The network a description names, with new weights."""
    try:
        cell, readout = _build(description["cell"], path), _build(description["readout"], path)
        network = Network(cell, description["outputs"], readout, description["activation"])
        _attach(network, description, path, made=False)
        return network.to(TYPES[description["dtype"]])
    except (KeyError, TypeError, RuntimeError) as error:
        raise ValueError(f"{path} describes no network this version can build: {error!r}") from None


def _attach(network: Network, description: dict[str, Any], path: str | Path, made: bool) -> None:
    """The front end and the names of the classes, where the description has them; a network that the user made keeps a
    front end of the user's own."""
    if not isinstance(description, dict):
        raise ValueError(f"{path} describes no network this version can build: {description!r}")
    front_end, names = description.get("front_end"), description.get("label_names")
    if isinstance(front_end, dict) and "own" in front_end:
        if not made:
            _build(front_end, path)  # says what to do
        front_end = None
    try:
        if front_end is not None:
            settings: Any = {name: tuple(v) if isinstance(v, list) else v for name, v in front_end.items()}
            network.front_end = FRONT_ENDS[settings.pop("kind")](**settings)
        if names is not None:
            network.label_names = tuple(str(name) for name in names)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{path} describes no network this version can build: {error!r}") from None


def _rule(description: dict[str, Any] | None, path: str | Path) -> Threshold | StepThresholds | None:
    """A rule of thresholds; None where there is none, or one of another kind."""
    try:
        return written_thresholds(dict(description or {}))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} has no rule that this version can read: {error!r}") from None


def _describe(module: nn.Module) -> dict[str, Any]:
    name = type(module).__name__
    if type(module) is CELLS.get(name):
        return {"kind": name, **module.settings()}  # type: ignore[operator]
    if type(module) is cells.Stack or (type(module) is nn.Sequential and _is_numbered(module)):
        parts = module.cells if isinstance(module, cells.Stack) else module
        return {"kind": name, "parts": [_describe(part) for part in parts]}  # type: ignore[union-attr]
    if name in LAYERS and type(module) is LAYERS[name][0]:
        extra = {"bias": False} if getattr(module, "bias", True) is None else {}
        return {"kind": name, **{key: getattr(module, key) for key in LAYERS[name][1]}, **extra}
    return {"own": name}


def _is_numbered(module: nn.Sequential) -> bool:
    """Whether the parts are called 0, 1, … and not by names of their own, which their weights would bear."""
    return list(module._modules) == [str(number) for number in range(len(module))]


def _build(description: dict[str, Any], path: str | Path) -> nn.Module:
    if "own" in description:
        raise ValueError(
            f"{path} holds a {description['own']}, which is not part of rankcode: make the network and load "
            f"into it with load(path, network=…)"
        )
    settings = dict(description)
    kind = settings.pop("kind")
    if kind in ("Stack", "Sequential"):
        parts = [_build(part, path) for part in settings["parts"]]
        return cells.Stack(*parts) if kind == "Stack" else nn.Sequential(*parts)
    return CELLS[kind](**settings) if kind in CELLS else LAYERS[kind][0](**settings)
