"""The folder of a training run: config.json, checkpoint.pt, metrics.jsonl, best and last model, a plot.

Every file is written completely or not at all, except metrics.jsonl, which grows by a line for each record. An
interrupted run continues from its checkpoint, which holds the records too: metrics.jsonl is written again from them.
config.json defines the run. Folders with other files are never written to.
"""

from __future__ import annotations

import io
import json
import math
import os
import platform
from contextlib import ExitStack
from dataclasses import fields, replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import torch

from rankcode.network import Network
from rankcode.objectives import Objective
from rankcode.rules import Rule
from rankcode.saving.description import (
    OBJECTIVES,
    RULES,
    TASK_KINDS,
    ContentError,
    as_object,
    content_of,
    damaged,
    parse,
    read_network,
    read_part,
)
from rankcode.saving.files import alone_in, write_whole, writing
from rankcode.saving.model_file import different_weights, load_model, save
from rankcode.tasks.own_data import ARRAYS

FORMAT = 1


class RunFolder:
    def __init__(self, path: str | Path, tensorboard: bool = False):
        self.path, self.tensorboard = Path(path), tensorboard
        self.config_file = self.path / "config.json"
        self._events: Any = None
        self._lock: ExitStack | None = None

    def config(self) -> dict[str, Any]:
        """The content of config.json."""
        if not self.config_file.is_file():
            raise FileNotFoundError(f"{self.path} is not a run folder: it has no config.json")
        with content_of(self.config_file):
            config = as_object(parse(self.config_file.read_bytes()), "its content")
            if config.get("format") != FORMAT:
                raise ContentError(f"has format {config.get('format')!r}, and this version of rankcode reads {FORMAT}")
            for part in ("task", "network", "objective", "training"):
                as_object(config.get(part), part)
        return config

    def task(self, data: str | None = None, **changes: Any) -> Any:
        """The task of the run. `data` is where its data is now; `changes` replace other settings, such as test_rows."""
        task = self._read("task", TASK_KINDS)
        if getattr(task, "path", None) == ARRAYS:
            raise ValueError(f"{self.path} was trained on arrays: give them to evaluate or fit in Python")
        names = {field.name for field in fields(task)}
        where = next((name for name in ("data", "path") if name in names), "data")
        given = {name: value for name, value in (changes | {where: data}).items() if value is not None}
        for name in given.keys() - names:
            raise ValueError(f"the task {task.name} has no setting {name}")
        return replace(task, **given)

    def objective(self) -> Objective:
        """The objective of the run."""
        return self._read("objective", OBJECTIVES)

    def rule(self) -> Rule:
        """The rule of the run's objective, even if the objective is a custom one."""
        description = self.config()["objective"]
        if "rule" not in description:
            return self.objective().rule
        with content_of(self.config_file):
            return read_part(description["rule"], RULES, "objective.rule")

    def network(self) -> Network:
        """The network of the run with the weights of the latest checkpoint, or new weights before the first."""
        description, checkpoint = self.config()["network"], self.checkpoint()
        with content_of(self.config_file):
            if checkpoint is None:
                return read_network(description, "cpu")
            network, weights = read_network(description), checkpoint.get("network", {})
            if misfit := different_weights(network.state_dict(), weights):
                raise damaged(f"it describes another network than checkpoint.pt holds: {misfit}")
        network.to_empty(device="cpu").load_state_dict(weights)
        return network

    def _read(self, part: str, family: dict[str, Any]) -> Any:
        description = self.config()[part]
        with content_of(self.config_file):
            return read_part(description, family, part)

    def move_data(self, path: str) -> None:
        """Record in config.json that the data of the run's task has moved."""
        config = self.config()
        self._hold()
        where = next((name for name in ("data", "path") if name in config["task"]), None)
        if where is None:
            raise ValueError(f"the task of {self.path} has no data that could have moved")
        config["task"][where] = os.path.abspath(path)
        self._write_config(config)

    def begin(self, settings: dict[str, Any], resume: bool) -> dict[str, Any] | None:
        """Make the folder, or check the run that it holds: the checkpoint to continue from, or None to start."""
        if self.tensorboard:
            _tensorboard_writer()  # raises before anything is written if it is not installed
        if not self.config_file.exists():
            if self.path.exists() and not (self.path.is_dir() and self._only_leftovers()):
                raise ValueError(f"{self.path} exists and is not a run folder: choose another")
            self._hold()
            if not self.config_file.exists():  # another process may have started a run in the meantime
                self._write_config({"format": FORMAT, "versions": versions(), **settings})
                return None
        if not resume:
            raise ValueError(f"{self.path} holds a run already: resume it, or choose another folder")
        if not (self.path / "checkpoint.pt").exists() and (self.records() or any(self.path.glob("*.safetensors"))):
            raise ValueError(f"{self.path} has no checkpoint.pt to continue from: choose another folder")
        longer = self._longer_config(settings)
        self._hold()
        checkpoint = self.checkpoint()
        if longer is not None:
            self._write_config(longer)
        return checkpoint

    def _longer_config(self, settings: dict[str, Any]) -> dict[str, Any] | None:
        """Raise unless the run has these settings; the new config if only epochs or examples have grown."""
        written, batches = self.config(), settings["batches"]
        with content_of(self.config_file):
            if type(written.get("batches")) is not int:
                raise damaged("it does not say how many batches the run has")
        length = {name: written["training"].get(name) for name in ("epochs", "examples")}
        self.check(settings | {"training": settings["training"] | length, "batches": written["batches"]})
        if batches < written["batches"]:
            raise ValueError(
                f"{self.path} holds a run of {written['batches']:,} batches, and these settings give {batches:,}: "
                f"epochs and examples may only grow"
            )
        if batches == written["batches"]:
            return None
        return written | {"training": settings["training"], "batches": batches}

    def _write_config(self, config: dict[str, Any]) -> None:
        write_whole(self.config_file, json.dumps(config, indent=2).encode() + b"\n")

    def check(self, settings: dict[str, Any]) -> None:
        """Raise unless the run has these settings."""
        written = self.config()
        for part, wanted in json.loads(json.dumps(settings)).items():
            if not _same(written.get(part), wanted):
                difference = _difference(part, written.get(part), wanted)
                raise ValueError(f"{self.path} holds a run with other settings: {difference}")

    def checkpoint(self) -> dict[str, Any] | None:
        """The latest checkpoint, or None before the first."""
        file = self.path / "checkpoint.pt"
        if not file.exists():
            return None
        content = io.BytesIO(file.read_bytes())
        with content_of(file):
            try:
                if ZipFile(content).testzip() is not None:  # compares checksums, which torch.load does not
                    raise ValueError
                content.seek(0)
                checkpoint = torch.load(content, map_location="cpu", weights_only=True)
            except Exception:  # what a damaged file raises depends on where it is damaged
                raise damaged("it is cut short, or its content does not match its checksum") from None
            return as_object(checkpoint, "its content")

    def start(self, records: list[dict[str, Any]], checkpoint: dict[str, Any]) -> None:
        """Make every file match the state of the run."""
        for leftover in self._leftovers():
            leftover.unlink()
        write_whole(self.path / "metrics.jsonl", b"".join(_line(record) for record in records))
        self.write_checkpoint(checkpoint)
        if self.tensorboard:
            examples = records[-1]["examples"] if records else 0
            self._events = _tensorboard_writer()(self.path, purge_step=examples + 1)

    def write_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        buffer = io.BytesIO()
        torch.save(checkpoint, buffer)
        write_whole(self.path / "checkpoint.pt", buffer.getvalue())

    def records(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl, without a last line that is incomplete."""
        file = self.path / "metrics.jsonl"
        lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
        with content_of(file):
            try:
                found = [json.loads(line) for line in lines if line.endswith(b"\n")]
            except ValueError:
                raise damaged("one of its lines is not JSON") from None
            return [as_object(record, f"line {number}") for number, record in enumerate(found, 1)]

    def write_record(self, record: dict[str, Any]) -> None:
        with writing(self.path / "metrics.jsonl"), open(self.path / "metrics.jsonl", "ab") as file:
            file.write(_line(record))
        if self._events is not None:
            for part in ("training", "validation", "first_spike"):
                for name, value in record.get(part, {}).items():
                    if isinstance(value, float):
                        self._events.add_scalar(f"{part}/{name}", value, record["examples"])
            self._events.flush()

    def write_model(self, name: str, network: Network) -> None:
        save(network, self.path / f"{name}.safetensors")

    def model(self, name: str | None = None, network: Network | None = None) -> Network:
        """The best or the last model; by default the one that the training finished with."""
        if name is None:
            name = self.config()["training"].get("finish_with")
            if name not in ("best", "last"):
                with content_of(self.config_file):
                    raise damaged(f"training.finish_with must be best or last, not {name!r}")
        file = self.path / f"{name}.safetensors"
        if not file.exists():
            raise FileNotFoundError(f"there is no {file}: the run was kept without its models, or has saved none yet")
        return load_model(file, network)

    def finish(self) -> None:
        """Draw training.png, if matplotlib is installed."""
        if find_spec("matplotlib") is not None:
            from rankcode.plots import plot_training

            part = self.path / ".part.training.png"
            with writing(self.path / "training.png"):
                plot_training(self.records(), part)
                os.replace(part, self.path / "training.png")

    def close(self) -> None:
        """Release the lock on the folder."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None
        if self._events is not None:
            self._events.close()

    def _hold(self) -> None:
        """Lock the folder against other processes."""
        if self._lock is None:
            lock = ExitStack()
            try:
                lock.enter_context(alone_in(self.path, wait=False))
            except BlockingIOError:
                raise ValueError(f"{self.path} is being trained by another process") from None
            self._lock = lock

    def _leftovers(self) -> list[Path]:
        """Files that were being written when a process was killed."""
        return [*self.path.glob(".*.part"), *self.path.glob(".part.*")]

    def _only_leftovers(self) -> bool:
        return set(self.path.iterdir()) == set(self._leftovers())


def load(path: str | Path, network: Network | None = None) -> Network:
    """Read a network, on the CPU and in evaluation mode: from a model file, or from a run folder the model that the
    training finished with. The weights of a network with custom parts are loaded into `network`, which has them."""
    return RunFolder(path).model(network=network) if Path(path).is_dir() else load_model(path, network)


def free_folder(path: Path) -> Path:
    """The path, or the first of path-2, path-3, … that does not exist."""
    return next(free for n in count(1) if not (free := path if n == 1 else path.with_name(f"{path.name}-{n}")).exists())


def _tensorboard_writer() -> Any:
    """The class that writes TensorBoard events."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ImportError("TensorBoard is not installed: pip install 'rankcode[tensorboard]'") from None
    return SummaryWriter


def versions() -> dict[str, str]:
    try:
        own = version("rankcode")
    except PackageNotFoundError:  # run from a source tree that is not installed
        own = "source"
    return {"rankcode": own, "torch": torch.__version__, "numpy": np.__version__, "python": platform.python_version()}


def _line(record: dict[str, Any]) -> bytes:
    return json.dumps(record).encode() + b"\n"


def _same(one: Any, other: Any) -> bool:
    """Whether two settings are the same, up to rounding."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-12)
    return one == other


def _difference(name: str, written: Any, wanted: Any) -> str:
    """The first setting that differs, by its full name."""
    if isinstance(written, dict) and isinstance(wanted, dict):
        for key in (*wanted, *written):
            if not _same(written.get(key), wanted.get(key)):
                return _difference(f"{name}.{key}", written.get(key), wanted.get(key))
    return f"{name} is {written!r} there and {wanted!r} here"
