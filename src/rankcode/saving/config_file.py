"""config.json: the task, network, objective and settings of a run, written when it begins.

A run can be resumed only with the same settings, except that it may become longer. A model that was fitted without
checkpoints has the settings of the fit instead of an objective and training settings.
"""

from __future__ import annotations

import json
import math
import platform
import shlex
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rankcode.saving.description import as_object, content_of, parse_versioned, read_value
from rankcode.saving.files import write_whole


def write_config(file: Path, config: dict[str, Any]) -> None:
    write_whole(file, json.dumps(config, indent=2).encode() + b"\n")


def read_config(file: Path) -> dict[str, Any]:
    if not file.is_file():
        if (file.parent / "plan.json").exists():
            name = shlex.quote(str(file.parent))
            raise FileNotFoundError(f"{file.parent} is a sweep: pick a run with rankcode tune {name} --accuracy 0.95")
        raise FileNotFoundError(f"{file.parent} is not a run folder: it has no config.json")
    with content_of(file):
        config = parse_versioned(file.read_bytes(), "its content")
        for part in ("task", "network", *(("fit",) if "fit" in config else ("objective", "training"))):
            as_object(config.get(part), part)
    return config


def check_config(file: Path, settings: dict[str, Any]) -> None:
    """Raise unless the run has these settings."""
    written = read_config(file)
    for part, wanted in settings.items():
        if difference := _difference(part, written.get(part), wanted):
            raise ValueError(f"{file.parent} holds a run with other settings: {difference}")


def longer_config(file: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """The config of the run with the length of these settings. Raises if they differ by more than a greater length."""
    written = read_config(file)
    with content_of(file):
        read_value(written.get("batches"), int, "batches")
    length = {name: written["training"].get(name) for name in ("epochs", "examples")}
    check_config(file, settings | {"training": settings["training"] | length, "batches": written["batches"]})
    if settings["batches"] < written["batches"]:
        asked = [f"{name}={settings['training'][name]:g}" for name in length if settings["training"][name] is not None]
        raise ValueError(
            f"{file.parent} holds a longer run than {' '.join(asked) or 'the default'}: epochs and examples may only "
            "grow"
        )
    return written | {"training": settings["training"], "batches": settings["batches"]}


def versions() -> dict[str, str]:
    try:
        own = version("rankcode")
    except PackageNotFoundError:  # run from a source tree that is not installed
        own = "source"
    return {"rankcode": own, "torch": torch.__version__, "numpy": np.__version__, "python": platform.python_version()}


def _difference(name: str, written: Any, wanted: Any) -> str:
    """The first setting that differs by more than rounding, by its full name; empty if there is none."""
    if isinstance(written, dict) and isinstance(wanted, dict):
        inner = (_difference(f"{name}.{key}", written.get(key), wanted.get(key)) for key in (*wanted, *written))
        return next(filter(None, inner), "")
    if isinstance(written, list) and isinstance(wanted, list) and len(written) == len(wanted):
        same = not any(_difference(name, *pair) for pair in zip(written, wanted, strict=True))
    elif isinstance(written, float) and isinstance(wanted, float):
        same = math.isclose(written, wanted, rel_tol=1e-12)
    else:
        same = written == wanted
    return "" if same else f"{name} is {written!r} there and {wanted!r} here"
