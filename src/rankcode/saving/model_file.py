"""Save and load networks: one safetensors file whose header describes, in JSON, how the network is built.

Only built-in parts are built, so opening a model file can never run code. A network with custom parts is loaded into a
network that the user has created: `load(path, network=…)`.
"""

from __future__ import annotations

import json
import warnings
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from rankcode.data.sources import digest
from rankcode.network import Network
from rankcode.rules import Rule, check_rule
from rankcode.saving.description import (
    FORMAT,
    REMEDY,
    RULES,
    ContentError,
    as_object,
    content_of,
    damaged,
    describe,
    one_line,
    parse_versioned,
    read_network,
    read_part,
    set_extras,
)
from rankcode.saving.files import write_whole


def save(network: Network, path: str | Path) -> None:
    """Write a network to one file, completely or not at all."""
    header = {"format": FORMAT, "network": describe(network)}
    if network.rule is not None:
        header["rule"] = describe(network.rule)
    weights = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in network.state_dict().items()
    }
    write_whole(Path(path), to_bytes(weights, metadata(header, weights)))


def load_model(path: str | Path, network: Network | None = None) -> Network:
    """Read a network from a model file, on the CPU and in evaluation mode, or load its weights into `network`."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no model file {path}")
    with content_of(path):
        header, weights = _read(path)
        for name, tensor in weights.items():
            if tensor.is_floating_point() and not tensor.isfinite().all():
                raise ContentError(f"cannot be used: the weights {name} hold NaN or infinity; train again")
        if network is None:
            network = read_network(header.get("network"))
            network.rule = _rule(header.get("rule"), network)
            if misfit := different_weights(network.state_dict(), weights):
                raise damaged(f"its weights are not those of the network that it describes: {misfit}")
            network.to_empty(device="cpu").load_state_dict(weights)
            return network.eval()
        rule = _rule(header.get("rule"), network)
        _load_into(network, weights, header.get("network"))
        network.rule = rule
    return network


def metadata(header: dict[str, Any], weights: dict[str, Tensor]) -> dict[str, str]:
    """The metadata of a model file: its header as JSON, with a checksum of all that the file holds."""
    return {"rankcode": json.dumps({**header, "checksum": checksum(header, weights)})}


def checksum(header: dict[str, Any], weights: dict[str, Tensor]) -> str:
    """A digest that changes with the header or the weights, which are on the CPU."""
    parts: list[str | bytes] = [json.dumps(header)]
    for name, tensor in sorted(weights.items()):
        parts += [f"{name} {_shape(tensor)}", tensor.reshape(-1).view(torch.uint8).numpy().tobytes()]
    return digest(parts)


def different_weights(wanted: dict[str, Any], found: Any) -> str:
    """The first difference in names, shapes or types between two state dicts; empty if there is none."""
    if not isinstance(found, dict):
        return "the file has no weights"
    for name in (*wanted, *found):
        there, here = (_shape(weights[name]) if name in weights else "missing" for weights in (found, wanted))
        if there != here:
            return f"{name} is {there} in the file, {here} in the network"
    return ""


def _shape(value: Any) -> str:
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    return f"{list(value.shape)} {value.dtype}".replace("torch.", "")


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The header of a model file and its tensors."""
    try:
        with safe_open(path, "pt") as file:
            text = (file.metadata() or {}).get("rankcode")
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except SafetensorError as error:
        raise ContentError(f"is no model file, or a damaged one ({one_line(error)}); {REMEDY}") from None
    if text is None:
        raise ContentError("was not written by rankcode.save: its header describes no network")
    header = parse_versioned(text, "its header")
    if header.pop("checksum", None) != checksum(header, weights):
        raise damaged("its content does not match its checksum")
    return header, weights


def _load_into(network: Network, weights: dict[str, Tensor], description: Any) -> None:
    """Load into a network that the user has created; if the file does not fit it, the network is unchanged."""
    settings = dict(as_object(description, "network"))
    if isinstance(settings.get("front_end"), dict) and "custom" in settings["front_end"]:
        del settings["front_end"]  # the user's network has its own
    trial = deepcopy(network)
    try:
        trial.load_state_dict(weights)
    except RuntimeError as error:
        raise ContentError(f"does not fit the network: {one_line(error)}") from None
    set_extras(trial, settings)
    network.load_state_dict(weights)
    set_extras(network, settings)


def _rule(description: Any, network: Network) -> Rule | None:
    """The rule in the header; a custom rule is left to the user."""
    if description is None:
        return None
    if isinstance(description, dict) and "custom" in description:
        if network.rule is None:
            message = f"the rule {description['custom']} of the network is not part of rankcode: set network.rule"
            warnings.warn(message, stacklevel=4)
        return network.rule
    rule = read_part(description, RULES, "rule")
    try:
        check_rule(rule, network.activation, network.num_classes)
    except ValueError as error:
        raise damaged(f"rule does not suit the network: {error}") from None
    return rule
