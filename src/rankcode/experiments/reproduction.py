"""What the figures of the reproduction share: trainings that are done once and kept, and results as files.

A figure is a module of this package with a `TITLE` and `reproduce(place) -> Result`. It asks `place` for trained
networks, evaluates them, draws, and hands back every number of the paper beside ours. Trainings and evaluations are
kept in `runs/`, so that a rerun uses what is there and one that was cut off goes on.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from matplotlib import rc_context

from rankcode.metrics import Curve, Report, evaluate, tradeoff
from rankcode.network import Network
from rankcode.objectives import Objective
from rankcode.rules import Rule
from rankcode.saving.files import write_whole
from rankcode.saving.run_folder import RunFolder, versions
from rankcode.training.config import Training, described
from rankcode.training.distributed import own_device
from rankcode.training.loop import fit
from rankcode.training.state import merit

Scale = Literal["smoke", "quick", "paper"]
T = TypeVar("T")


class Number(NamedTuple):
    """A number of the paper, and ours."""

    what: str
    paper: float | str | None  # as it is printed there; None where the paper has none
    ours: float | None
    unit: str = "%"
    spread: float | None = None  # standard deviation over seeds
    note: str = ""


class Result(NamedTuple):
    figure: Any  # a matplotlib figure; None for a table
    numbers: list[Number]
    curves: dict[str, Any]  # what is drawn, and settings, as JSON
    text: str  # what was found, in a few sentences of Markdown


@dataclass(frozen=True)
class Setting:
    """A training that figures share. Seed, folder and device are the reproduction's."""

    name: str
    task: Any
    network: Callable[[], Network]
    objective: Objective
    training: Training


class Trained:
    """A finished training: its records, its models, and evaluations of them, which are kept beside them."""

    def __init__(self, path: Path, setting: Setting, device: torch.device):
        self.path, self.setting, self.device = path, setting, device
        self.folder = RunFolder(path)
        self.records = self.folder.records()

    def model(self, name: str = "best") -> Network:
        if not (self.path / f"{name}.safetensors").exists():  # large ones are not kept in the repository
            raise ValueError(f"{self.path} does not hold the {name} weights: remove it, and they are trained again")
        return self.folder.model(name).to(self.device)

    @property
    def best(self) -> dict[str, Any]:
        """The record of the best model."""
        return max(self.records, key=lambda record: merit(record, self.setting.training.select))

    @property
    def seconds(self) -> float:
        return self.records[-1]["seconds"]

    @property
    def share_read(self) -> float:
        """Steps read in training ÷ steps there were: what training cost, at best, against conventional training."""
        return statistics.fmean(record["training"]["mean_steps"] for record in self.records) / self.steps

    @property
    def steps(self) -> float:
        """Mean length of the sequences: where a network that never fires would answer."""
        report = self.records[0]["first_spike"]
        return report["mean_steps"] / report["earliness"]

    def curve(self, thresholds: Sequence[float], split: str = "test", model: str = "best") -> Curve:
        """Accuracy and steps over θ."""
        key = f"{model} {split} θ {' '.join(f'{each:g}' for each in thresholds)}"
        task = self.setting.task
        found = self._kept(key, lambda: tradeoff(self.model(model), task, tuple(thresholds), split).as_dict())
        return Curve(**{**found, **{name: tuple(value) for name, value in found.items() if isinstance(value, list)}})

    def report(self, rule: Rule, split: str = "test", model: str = "best") -> dict[str, Any]:
        """A `Report` at one rule, as JSON has it."""

        def made() -> dict[str, Any]:
            report: Report = evaluate(self.model(model), self.setting.task, rule, split)
            return report.as_dict()

        return self._kept(f"{model} {split} {rule!r}", made)

    def _kept(self, key: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        file = self.path / "evaluation.json"
        try:
            kept = json.loads(file.read_text()) if file.exists() else {}
        except ValueError:
            raise ValueError(f"{file} is damaged: remove it to evaluate again") from None
        if key not in kept:
            kept[key] = json.loads(json.dumps(make()))
            write_whole(file, json.dumps(kept).encode())
        return kept[key]


@dataclass(frozen=True)
class Reproduction:
    """Where, how large, and on what."""

    scale: Scale = "quick"
    folder: Path = Path("results/reproduction")
    data: str | None = None
    device: str = "auto"
    progress: bool = True

    def pick(self, smoke: T, quick: T, paper: T) -> T:
        """What goes with the scale."""
        return {"smoke": smoke, "quick": quick, "paper": paper}[self.scale]

    def seeds(self, paper: int = 3) -> range:
        return range(self.pick(1, 1, paper))

    def data_of(self, name: str) -> str | None:
        """The folder of a data set, where one was given for all."""
        if self.data is None:
            return None
        folder = Path(self.data) / name
        return str(folder if folder.exists() or Path(self.data).name != name else self.data)

    def trained(self, setting: Setting, seed: int = 0) -> Trained:
        """Train what is not yet trained."""
        path = self.folder / "runs" / self.scale / f"{setting.name}-{seed}"
        device = own_device(self.device)
        if not (path / "finished").exists():
            if self.progress:
                print(f"training {path.name}", flush=True)
            torch.manual_seed(seed)
            network = setting.network()
            resume = (path / "config.json").exists()
            training = replace(
                setting.training, seed=seed, folder=str(path), device=str(device), resume=resume, progress=self.progress
            )
            fit(network, setting.task, setting.objective, training)
            _shorten(RunFolder(path))
            write_whole(path / "finished", b"")
            (path / "checkpoint.pt").unlink(missing_ok=True)
        else:
            _check(RunFolder(path), setting, seed)
        return Trained(path, setting, device)

    def check_scale(self, name: str) -> None:
        """Results of another scale are not written over."""
        file = self.folder / name / "numbers.json"
        made = json.loads(file.read_text())["scale"] if file.exists() else self.scale
        if made != self.scale:
            raise ValueError(f"{file.parent} was made at scale {made}, not {self.scale}: choose another --folder")

    def write(self, name: str, title: str, result: Result) -> Path:
        """The figure, and every number, as files."""
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        if result.figure is not None:
            for ending, metadata in (("png", None), ("svg", {"Date": None})):
                part = folder / f".part.{name}.{ending}"
                with rc_context({"svg.hashsalt": name}):  # the same file for the same picture
                    result.figure.savefig(part, dpi=130, metadata=metadata)
                part.replace(folder / f"{name}.{ending}")
        content = {
            "title": title,
            "scale": self.scale,
            "device": str(own_device(self.device)),
            "versions": versions(),
            "numbers": [_as_json(number) for number in result.numbers],
            "figure": result.figure is not None,
            "text": result.text,
            "curves": result.curves,
        }
        write_whole(folder / "numbers.json", json.dumps(content, indent=1, ensure_ascii=False).encode() + b"\n")
        return folder


def _check(folder: RunFolder, setting: Setting, seed: int) -> None:
    """Whether a finished run is what the figure asks for."""
    wanted = described(setting.network(), setting.objective, replace(setting.training, seed=seed))
    wanted["network"] = folder.config()["network"] | wanted["network"]  # with the front end, which the task brings
    try:
        folder.check(wanted)
    except ValueError as error:
        raise ValueError(f"{error}: remove it to train again") from None
    if not folder.records():
        raise ValueError(f"{folder.path} has no records of its training: remove it to train again")


def _shorten(folder: RunFolder) -> None:
    """Leave out of all records but the first what is most of them: how each class fared, and how many rows were
    answered at each step with the objective's rule; with first-spike inference that stays."""
    records = folder.records()
    for record in records[1:]:
        record["validation"].pop("steps_histogram", None)
        for report in (record["validation"], record["first_spike"]):
            report.pop("classes", None)
    write_whole(folder.path / "metrics.jsonl", b"".join(json.dumps(each).encode() + b"\n" for each in records))


def _as_json(number: Number) -> dict[str, Any]:
    """JSON has no NaN: what is not a number is left out."""
    found = number._asdict()
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in found.items()}


def over_seeds(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and standard deviation."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def paper_time(report: dict[str, Any], steps: int) -> float:
    """Mean spike time as the paper's code counts it: from 0, and sequences that never fire left out. For sequences
    of one length."""
    if report["fired"] == 0:
        return float("nan")
    return (report["mean_steps"] - (1 - report["fired"]) * steps) / report["fired"] - 1
