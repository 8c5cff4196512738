"""The parts that all figures of the reproduction share: trained runs, kept evaluations, and results as files.

A figure is a module of `experiments.figures` with a `TITLE` and `reproduce(place) -> Result`. It asks `place` for
trained networks, evaluates them, draws, and returns every number of the paper beside ours. Runs and evaluations are
kept in `runs/`: a second call reuses them, and a run that was interrupted is resumed.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from matplotlib import rc_context

from rankcode.data.sources import BadData, split_of
from rankcode.experiments.run_records import share_read, thin
from rankcode.metrics import Curve, evaluate, tradeoff
from rankcode.network import Network
from rankcode.objectives import Objective
from rankcode.rules import Rule
from rankcode.saving.config_file import check_config, versions
from rankcode.saving.files import write_whole
from rankcode.saving.run_folder import RunFolder
from rankcode.training.config import Training, described
from rankcode.training.distributed import own_device
from rankcode.training.loop import fit
from rankcode.training.records import merit

Scale = Literal["smoke", "quick", "paper"]
T = TypeVar("T")
# Fields of a task that do not say which rows a split holds: where files are, how rows are altered or laid out, sizes.
NOT_DATA = {"data", "skip_bad", "augment", "flat", "rows", "validation_rows", "test_rows"}
# Every setting is given, so that the reproduction does not change with the library's defaults.
TRAINING = Training(
    batch_size=128, optimizer="adam", learning_rate=0.001, schedule="constant", warmup_ratio=0.0, weight_decay=0.0,
    max_grad_norm=1.0, ema_decay=None, input_noise=0.0, select="accuracy", select_alpha=0.1,
    finish_with="best", first_spike_threshold=0.95, precision="float32", engine="auto",
)  # fmt: skip


class Number(NamedTuple):
    """A number of the paper and ours."""

    what: str
    paper: float | str | None  # as printed in the paper; None where the paper gives none
    ours: float | None
    unit: str = "%"
    spread: float | None = None  # standard deviation over seeds
    note: str = ""


@dataclass(frozen=True)
class Setting:
    """A training that several figures may share. Seed, folder and device come from the reproduction."""

    name: str
    task: Any
    network: Callable[[], Network]
    objective: Objective
    training: Training
    keep_histograms: bool = False  # keep the distribution of steps read in every record, for figures that draw it


@cache
def data_of(task: Any, split: str) -> dict[str, Any]:
    """Which rows a split holds: the task's settings, the number of rows, and a fingerprint of rows read from files."""
    source: Any = split_of(task, split)
    settings = {field.name: getattr(task, field.name) for field in fields(task) if field.name not in NOT_DATA}
    found: dict[str, Any] = {"task": task.name, "split": split}
    found |= {} if source.size is None else {"rows": source.size}  # generated training rows are endless
    found |= {"fingerprint": source.fingerprint()} if hasattr(source, "fingerprint") else {}
    return found | settings


class Trained:
    """A finished training: its records, its models, and evaluations of them, which are kept in its folder."""

    def __init__(self, path: Path, setting: Setting, device: torch.device):
        self.path, self.setting, self.device = path, setting, device
        self.folder = RunFolder(path)
        self.records = [{"validation": record["first_spike"]} | record for record in self.folder.records()]

    def model(self, name: str = "best") -> Network:
        if not (self.path / f"{name}.safetensors").exists():  # the repository keeps the weights of a few runs only
            raise BadData(f"{self.path} does not hold the {name} weights: remove it to train again")
        return self.folder.model(name).to(self.device)

    @property
    def best(self) -> dict[str, Any]:
        """The record of the best model."""
        return max(self.records, key=lambda record: merit(record, self.setting.training))

    @property
    def seconds(self) -> float:
        return self.records[-1]["seconds"]

    @property
    def share_read(self) -> float:
        """Steps read in training ÷ steps in the training data."""
        return share_read(self.records, self.mean_length)

    @property
    def mean_length(self) -> float:
        """Mean number of steps of the training rows."""
        task = self.setting.task
        if hasattr(task, "steps"):  # all rows have the same length
            return task.steps
        return task.front_end.num_steps(task.train.lengths).double().mean().item()

    def curve(self, thresholds: Sequence[float], split: str = "test", model: str = "best") -> Curve:
        """Accuracy and steps over θ."""
        what = f"{model} θ {' '.join(f'{each:g}' for each in thresholds)}"
        found = self.kept(
            what, split, lambda: tradeoff(self.model(model), self.setting.task, tuple(thresholds), split).as_dict()
        )
        return Curve(**{**found, **{name: tuple(value) for name, value in found.items() if isinstance(value, list)}})

    def report(self, rule: Rule, split: str = "test", model: str = "best") -> dict[str, Any]:
        """A `Report` with one rule, as JSON."""
        return self.kept(
            f"{model} {rule!r}", split, lambda: evaluate(self.model(model), self.setting.task, rule, split).as_dict()
        )

    def kept(self, what: str, split: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """An evaluation from evaluation.json, computed if it is missing. Evaluations are stored with the data they were
        made on."""
        file, data = self.path / "evaluation.json", in_words(data_of(self.setting.task, split))
        try:
            kept = json.loads(file.read_text()) if file.exists() else {}
        except ValueError:
            raise BadData(f"{file} is damaged: remove it to evaluate again") from None
        if what not in kept.get(data, {}):
            kept.setdefault(data, {})[what] = json.loads(json.dumps(make()))
            write_whole(file, json.dumps(kept, ensure_ascii=False).encode())
        return kept[data][what]


class Result(NamedTuple):
    figure: Any  # a matplotlib figure; None for a table
    numbers: list[Number]
    curves: dict[str, Any]  # what is drawn, and settings, as JSON
    text: str  # the findings, in a few sentences of Markdown
    runs: Iterable[Trained] = ()  # the runs it was made from
    pictures: Mapping[str, Any] = {}  # more matplotlib figures, by file name


@dataclass(frozen=True)
class Reproduction:
    """The scale of the reproduction, its folder, its data and its device."""

    scale: Scale = "quick"
    folder: Path = Path("results/reproduction")
    data: str | None = None
    device: str = "auto"
    progress: bool = True

    def pick(self, smoke: T, quick: T, paper: T) -> T:
        """The value for this scale."""
        return {"smoke": smoke, "quick": quick, "paper": paper}[self.scale]

    def seeds(self) -> range:
        return range(self.pick(1, 1, 3))

    def data_of(self, name: str) -> str | None:
        """The folder of a data set, if a data folder was given."""
        if self.data is None:
            return None
        folder = Path(self.data) / name
        return str(folder if folder.exists() or Path(self.data).name != name else self.data)

    def runs(self, settings: Mapping[str, Setting], seeds: Iterable[int] = (0,)) -> dict[str, list[Trained]]:
        """The finished runs of some settings, by name: one for each seed."""
        return {name: [self.trained(setting, seed) for seed in seeds] for name, setting in settings.items()}

    def trained(self, setting: Setting, seed: int = 0) -> Trained:
        """The finished run of a setting, trained now if it is missing."""
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
            thin(RunFolder(path), setting.training.select, setting.keep_histograms)
            write_whole(path / "finished", in_words(data_of(setting.task, "train")).encode() + b"\n")
            (path / "checkpoint.pt").unlink(missing_ok=True)
        else:
            _check(RunFolder(path), setting, seed)
        return Trained(path, setting, device)

    def check_scale(self, name: str) -> None:
        """Refuse to overwrite results of another scale."""
        file = self.folder / name / "numbers.json"
        made = json.loads(file.read_text())["scale"] if file.exists() else self.scale
        if made != self.scale:
            raise ValueError(f"{file.parent} was made at scale {made}, not {self.scale}: choose another --folder")

    def write(self, name: str, title: str, result: Result) -> Path:
        """Write the figure and every number to files."""
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        if result.figure is not None:
            _save(result.figure, folder / f"{name}.png")
            _save(result.figure, folder / f"{name}.svg")
        for file, picture in result.pictures.items():
            _save(picture, folder / f"{file}.png")
        data = {in_words(found): found for run in result.runs for found in [data_of(run.setting.task, "test")]}
        content = {
            "title": title,
            "scale": self.scale,
            "device": str(own_device(self.device)),
            "versions": versions(),
            "data": [data[key] for key in sorted(data)],
            "numbers": [_as_json(number) for number in result.numbers],
            "figure": result.figure is not None,
            "text": result.text,
            "curves": result.curves,
        }
        write_whole(folder / "numbers.json", json.dumps(content, indent=1, ensure_ascii=False).encode() + b"\n")
        return folder


def in_words(data: Mapping[str, Any]) -> str:
    """`data_of` on one line."""
    return ", ".join(f"{name} {value}" for name, value in data.items())


def _save(figure: Any, file: Path) -> None:
    """Write a picture completely or not at all; the same picture gives the same file."""
    part = file.with_name(f".part.{file.name}")
    with rc_context({"svg.hashsalt": file.stem, "svg.fonttype": "none"}):
        figure.savefig(part, dpi=110, metadata={"Date": None} if file.suffix == ".svg" else None)
    part.replace(file)


def _check(folder: RunFolder, setting: Setting, seed: int) -> None:
    """Check that a finished run has the settings and the training data that the figure asks for."""
    wanted = described(setting.network(), setting.objective, replace(setting.training, seed=seed))
    wanted["network"] = folder.config()["network"] | wanted["network"]  # with the front end, which the task brings
    try:
        check_config(folder.config_file, wanted)
    except ValueError as error:
        raise BadData(f"{error}: remove it to train again") from None
    if not folder.records():
        raise BadData(f"{folder.path} has no records of its training: remove it to train again")
    there, here = (folder.path / "finished").read_text().strip(), in_words(data_of(setting.task, "train"))
    if there != here:
        raise ValueError(
            f"{folder.path} was trained on other data ({there}; here {here}): choose another --folder, or remove it"
        )


def _as_json(number: Number) -> dict[str, Any]:
    """Replaces NaN, which JSON does not have, by None."""
    found = number._asdict()
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in found.items()}


def over_seeds(values: Iterable[float]) -> tuple[float, float | None]:
    """Mean and standard deviation; None for the deviation of a single value."""
    found = list(values)
    return statistics.fmean(found), statistics.stdev(found) if len(found) > 1 else None


def paper_time(report: Mapping[str, Any], steps: int) -> float:
    """Mean spike time as the paper's code counts it: from 0, without sequences that never fire. For sequences of one
    length."""
    if report["fired"] == 0:
        return float("nan")
    return (report["mean_steps"] - (1 - report["fired"]) * steps) / report["fired"] - 1
