"""The folder of a training run: config.json, checkpoint.pt, metrics.jsonl, best and last model, a plot.

Every file is written completely or not at all, except metrics.jsonl, which grows by a line for each record. An
interrupted run continues from its checkpoint, which holds the records too: metrics.jsonl is written again from them.
A folder is a run folder once it has a config.json. Folders with other files are never written to.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import fields, replace
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any, Literal

from rankcode.data.sources import BadData
from rankcode.models import model_path
from rankcode.network import Network
from rankcode.objectives import Objective
from rankcode.rules import Rule, Threshold
from rankcode.saving.checkpoint import is_checkpoint, read_checkpoint, write_checkpoint
from rankcode.saving.config_file import longer_config, read_config, versions, write_config
from rankcode.saving.description import (
    FORMAT,
    OBJECTIVES,
    RULES,
    TASK_KINDS,
    as_object,
    content_of,
    damaged,
    describe,
    parse,
    read_network,
    read_part,
    read_value,
)
from rankcode.saving.files import alone_in, whole_file, write_whole, writing
from rankcode.saving.model_file import different_weights, load_model, save
from rankcode.saving.traces_file import read_traces, write_traces
from rankcode.stopping import Tuning, tune_on
from rankcode.stopping.calibration import reliability_by_calibration
from rankcode.stopping.traces import Traces
from rankcode.tasks.own_data import ARRAYS

PICKED = "picked.json"  # in the folder of a sweep: the run that was picked, which the folder then stands for


class RunFolder:
    def __init__(self, path: str | Path, tensorboard: bool = False):
        self.path, self.tensorboard = _picked_run(Path(path)), tensorboard
        self.config_file, self.checkpoint_file = self.path / "config.json", self.path / "checkpoint.pt"
        self.metrics_file, self.held_out_file = self.path / "metrics.jsonl", self.path / "held_out.pt"
        self._events: Any = None
        self._lock: ExitStack | None = None
        self._config: dict[str, Any] = {}  # to be written by `start`
        self._new = False  # nothing has been recorded yet

    def config(self) -> dict[str, Any]:
        """The content of config.json."""
        return read_config(self.config_file)

    def task(self, data: str | None = None, **changes: Any) -> Any:
        """The task of the run. `data` is where its data is now; `changes` replace other settings, such as test_rows."""
        task = self._read("task", TASK_KINDS)
        if getattr(task, "path", None) == ARRAYS:
            raise BadData(f"{self.path} was trained on arrays: give them to evaluate or fit in Python")
        names = [field.name for field in fields(task)]
        given = {name: value for name, value in (changes | {_data_setting(names): data}).items() if value is not None}
        for name in given.keys() - names:
            raise ValueError(f"the task of {self.path} has no setting {name}")
        return replace(task, **given)

    def objective(self) -> Objective:
        """The objective of the run."""
        return self._read("objective", OBJECTIVES)

    def fitted(self) -> bool:
        """Whether the model was fitted without checkpoints, so that there is nothing to resume."""
        return "fit" in self.config()

    def rule(self) -> Rule:
        """The rule of the run's objective, even if the objective is a custom one; of a fitted model, its own."""
        if self.fitted():
            return self.model().rule or Threshold()
        description = self.config()["objective"]
        if "rule" not in description:
            return self.objective().rule
        with content_of(self.config_file):
            return read_part(description["rule"], RULES, "objective.rule")

    def network(self) -> Network:
        """The network of the run with the weights of the latest checkpoint."""
        description, weights = self.config()["network"], self.checkpoint()["network"]
        with content_of(self.config_file):
            network = read_network(description)
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
        config["task"][_data_setting(config["task"])] = os.path.abspath(path)
        write_config(self.config_file, config)

    def begin(self, settings: dict[str, Any], resume: bool) -> dict[str, Any] | None:
        """Lock the folder for a run with these settings. Returns the checkpoint to continue from, or None for a new
        run."""
        if self.tensorboard:
            _tensorboard_writer()  # raises before anything is written if it is not installed
        if not self.config_file.exists():
            if self.path.exists() and not (self.path.is_dir() and set(self.path.iterdir()) == set(self._leftovers())):
                raise ValueError(f"{self.path} exists and is not a run folder: choose another")
            self._hold()
            if not self.config_file.exists():  # another process may have started a run in the meantime
                self._config, self._new = {"format": FORMAT, "versions": versions(), **settings}, True
                return None
        if not resume:
            raise ValueError(f"{self.path} holds a run already: resume it, or choose another folder")
        self._config = longer_config(self.config_file, settings)
        self._hold()
        return self.checkpoint()

    def start(self, records: list[dict[str, Any]], checkpoint: dict[str, Any]) -> None:
        """Make every file match the state of the run. A folder that has a config.json has a checkpoint too."""
        for leftover in self._leftovers():
            leftover.unlink()
        write_checkpoint(self.checkpoint_file, checkpoint)
        write_config(self.config_file, self._config)
        write_whole(self.metrics_file, b"".join(_line(record) for record in records))
        if self.tensorboard:
            examples = records[-1]["examples"] if records else 0
            self._events = _tensorboard_writer()(self.path, purge_step=examples + 1)

    def checkpoint(self) -> dict[str, Any]:
        """The latest checkpoint."""
        if not self.checkpoint_file.exists():
            raise BadData(f"{self.path} has no checkpoint.pt to continue from: choose another folder")
        return read_checkpoint(self.checkpoint_file)

    def write_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        write_checkpoint(self.checkpoint_file, checkpoint)

    def records(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl, without a last line that is incomplete."""
        lines = self.metrics_file.read_bytes().splitlines(keepends=True) if self.metrics_file.exists() else []
        with content_of(self.metrics_file):
            whole = [line for line in lines if line.endswith(b"\n")]
            return [as_object(parse(line), f"line {number}") for number, line in enumerate(whole, 1)]

    def write_record(self, record: dict[str, Any]) -> None:
        self._new = False
        with writing(self.metrics_file), open(self.metrics_file, "ab") as file:
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
        name = name or self.kept_model()
        file = self.path / f"{name}.safetensors"
        if not file.exists():
            raise FileNotFoundError(f"there is no {file}: the run was kept without its models, or has saved none yet")
        return load_model(file, network)

    def kept_model(self) -> str:
        """Which model the training finished with: best or last."""
        if self.fitted():
            return "best"
        kept = self.config()["training"].get("finish_with")
        with content_of(self.config_file):
            return read_value(kept, Literal["best", "last"], "training.finish_with")

    def write_fitted(self, settings: dict[str, Any], network: Network, held_out: Traces) -> None:
        """Store a model that was fitted without checkpoints, after `begin`. `held_out`: the traces of its rule's
        fit."""
        write_traces(self.held_out_file, held_out)
        self.write_model("best", network)
        write_config(self.config_file, self._config | settings)

    def held_out(self) -> Traces | None:
        """The traces that the rule of a fitted model was fitted to; None: the model was trained, and has none."""
        if not self.fitted():
            return None
        if not self.held_out_file.exists():
            raise FileNotFoundError(f"there is no {self.held_out_file}, which the rule is fitted to: train again")
        return read_traces(self.held_out_file)

    def write_tuning(self, name: str, network: Network, tuning: Tuning, traces: Traces) -> None:
        """Store a rule that was fitted later in the model, and its expected results in tuning.json and tuning.png;
        reliability.png shows how well the probabilities of the traces are calibrated."""
        self.write_model(name, network)
        promise = {
            "wish": tuning.wish.given,
            "rule": describe(tuning.rule),
            "kind": tuning.kind,
            "reason": tuning.reason,
            "expected": tuning.expected._asdict(),
            "accuracy_interval": tuning.interval,
            "rows": tuning.rows,
            "curve": [point._asdict() for point in tuning.curve],
        }
        write_whole(self.path / "tuning.json", json.dumps(promise, indent=1).encode() + b"\n")
        if find_spec("matplotlib") is not None:
            from rankcode.plots.tuning import plot_reliability, plot_tuning

            one = {"one threshold": tune_on(traces, tuning.wish, "threshold")} if tuning.kind != "threshold" else {}
            self._draw("tuning.png", plot_tuning(tuning, one))
            self._draw("reliability.png", plot_reliability(reliability_by_calibration(traces)))

    def finish(self) -> None:
        """Draw training.png, if matplotlib is installed."""
        if find_spec("matplotlib") is not None:
            from rankcode.plots import plot_training

            title = f"Training of {self.path.absolute().name}"
            self._draw("training.png", plot_training(self.records(), title))

    def _draw(self, name: str, figure: Any) -> None:
        with whole_file(self.path / name) as picture:
            figure.savefig(picture, format="png", dpi=120)

    def close(self) -> None:
        """Release the lock on the folder."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None
        self._close_events()

    def _close_events(self) -> None:
        if self._events is not None:
            self._events.close()
            self._events = None

    def discard_if_new(self) -> None:
        """Remove a run that failed before its first record, so that its folder can be used again."""
        if self._new:
            self._close_events()  # its thread may still be writing
            events = self.path.glob("events.out.tfevents*")
            for file in (self.config_file, self.metrics_file, self.checkpoint_file, *self._leftovers(), *events):
                file.unlink(missing_ok=True)
            with suppress(OSError):
                self.path.rmdir()

    def _hold(self) -> None:
        """Lock the folder against other processes."""
        if self._lock is None:
            lock = ExitStack()
            try:
                lock.enter_context(alone_in(self.path, wait=False))
            except BlockingIOError:
                raise BadData(f"{self.path} is being trained by another process") from None
            self._lock = lock

    def _leftovers(self) -> list[Path]:
        """Files that a killed process was writing, or had written before config.json."""
        begun = not self.config_file.exists() and is_checkpoint(self.checkpoint_file)
        return [*self.path.glob(".*.part"), *([self.checkpoint_file] if begun else [])]


def load(path: str | Path, network: Network | None = None) -> Network:
    """Read a network, on the CPU and in evaluation mode: from a model file, from a run folder the model that the
    training finished with, or a pretrained one by its name, `"speech-commands"`. The weights of a network with custom
    parts are loaded into `network`, which has them."""
    path = model_path(path)
    return RunFolder(path).model(network=network) if path.is_dir() else load_model(path, network)


def numbered(path: Path) -> Iterator[Path]:
    """The path, path-2, path-3, …"""
    yield path
    yield from (path.with_name(f"{path.name}-{number}") for number in count(2))


def free_folder(path: Path) -> Path:
    """The path, or the first of path-2, path-3, … that does not exist."""
    return next(each for each in numbered(path) if not each.exists())


def _picked_run(path: Path) -> Path:
    """The run that was picked from a sweep, if the folder is one, else the folder itself."""
    if not (path / PICKED).is_file():
        return path
    with content_of(path / PICKED):
        run = as_object(parse((path / PICKED).read_bytes()), "its content").get("run")
        return path / read_value(run, str, "run")


def _data_setting(names: Any) -> str:
    """The setting of a task that says where its data is."""
    return "path" if "path" in names else "data"


def _tensorboard_writer() -> Any:
    """The class that writes TensorBoard events."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ImportError("TensorBoard is not installed: pip install 'rankcode[tensorboard]'") from None
    return SummaryWriter


def _line(record: dict[str, Any]) -> bytes:
    return json.dumps(record).encode() + b"\n"
