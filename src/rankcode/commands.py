"""The commands of `rankcode`: each a dataclass of its arguments, and `run`."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from rankcode import cells
from rankcode.demo import Demo
from rankcode.distributed import own_device
from rankcode.metrics import THRESHOLDS, Curve, Report, evaluate, tradeoff
from rankcode.model_file import build
from rankcode.network import Network
from rankcode.objectives import AtEnd, AtSpike, Beta, EveryStep, Objective, Switch, UntilSpike
from rankcode.rules import Never, Rule, Threshold
from rankcode.run_folder import RunFolder, free_folder
from rankcode.tasks import TASKS
from rankcode.training import Training, fit

CellName = Literal["lstm", "gru", "conv-lstm", "lif", "conv-lif"]
UNITS = {"lstm": 125, "gru": 125, "lif": 256, "conv-lstm": 8, "conv-lif": 16}
ObjectiveName = Literal["at-spike", "at-end", "every-step", "until-spike"]


@dataclass(frozen=True)
class Train:
    """Train a network on a task and keep the run in a folder.

    Tasks: spotting, two-sequence, temporal-digits.
    """

    task: str
    """What to learn: spotting, two-sequence or temporal-digits."""
    objective: ObjectiveName = "at-spike"
    """at-spike is rank coding, at-end is conventional training."""
    threshold: float | None = None
    """θ at which an output fires. Default: 0.95, and a membrane of 1 for spiking cells."""
    beta: str = "0"
    """Weight of the entropy that is rewarded: a number, or a schedule such as 0:0.4,0.5:0.165 (0.4 at first,
    0.165 from half of the training on)."""
    cell: CellName = "lstm"
    """Recurrent cell."""
    units: int | None = None
    """Units in the cell. Default: 125 for lstm and gru, 256 for lif, 8 maps for conv-lstm, 16 for conv-lif."""
    layers: int = 1
    """Layers of an LSTM or GRU."""
    decay: float = 0.9
    """What a spiking cell's membrane keeps from step to step; the paper has 0.2."""
    training: Training = field(default_factory=Training)

    def run(self) -> None:
        task = _task(self.task)
        if self.cell in ("lstm", "gru", "lif") and any(field.name == "flat" for field in fields(task)):
            task = replace(task, flat=True)
        threshold = self.threshold
        if threshold is None:
            threshold = 1.0 if self.cell in ("lif", "conv-lif") else 0.95
        objective = _objective(self.objective, Threshold(threshold), _beta(self.beta))
        config = self.training
        if config.folder is None:
            config = replace(config, folder=str(free_folder(Path("runs") / f"{self.task}-{self.objective}")))
        torch.manual_seed(config.seed)
        units = UNITS[self.cell] if self.units is None else self.units
        _fit(standard_network(task, self.cell, units, self.layers, self.decay), task, objective, config)


@dataclass(frozen=True)
class Resume:
    """Go on with a run that was cut off, from its latest checkpoint."""

    run_folder: str
    """Folder of the run."""
    device: str = "auto"
    """cpu, cuda, cuda:N; auto takes a GPU where there is one."""

    def run(self) -> None:
        folder = RunFolder(self.run_folder)
        written = folder.config()
        training = Training(**written["training"], folder=self.run_folder, device=self.device, resume=True)
        network = build(written["network"], folder.path / "config.json")
        _fit(network, _written_task(written), _written_objective(written["objective"]), training)


@dataclass(frozen=True)
class Evaluate:
    """How right and how early a trained network is, on data it has not seen."""

    run_folder: str
    """Folder of the run."""
    threshold: float | None = None
    """θ to answer at. Default: the rule of the training; for training that never fires, the end and θ = 0.95."""
    split: Literal["test", "validation"] = "test"
    """Which data."""
    model: Literal["best", "last"] | None = None
    """Which weights of the run. Default: those the training finished with."""
    alpha: float = 0.5
    """Weight of earliness in the cost."""
    test_rows: int | None = None
    """How many test sequences to draw, for a generated task. Default: as many as the task says."""
    device: str = "auto"
    """cpu, cuda, cuda:N; auto takes a GPU where there is one."""
    json: bool = False
    """Print JSON instead of a table."""

    def run(self) -> None:
        folder = RunFolder(self.run_folder)
        written = folder.config()
        task = _written_task(written, self.test_rows)
        network = folder.model(self.model or written["training"]["finish_with"]).to(own_device(self.device))
        own = _written_objective(written["objective"]).rule
        rules = {f"θ = {self.threshold:g}": Threshold(self.threshold)} if self.threshold is not None else {}
        if not rules and isinstance(own, Never):
            rules = {"at the end": own, "first spike, θ = 0.95": Threshold()}
        reports = {
            name: evaluate(network, task, rule, self.split, self.alpha, progress=True)
            for name, rule in (rules or {"": own}).items()
        }
        if self.json:
            print(json.dumps({name or "report": report.as_dict() for name, report in reports.items()}, indent=2))
            return
        for name, report in reports.items():
            print(f"{self.run_folder} on {report.rows:,} {self.split} rows{', ' if name else ''}{name}")
            print(report_table(report, task.label_names))


@dataclass(frozen=True)
class Tradeoff:
    """Accuracy against steps read, over thresholds, for one run or several of the same task."""

    run_folders: tuple[str, ...]
    """Folders of the runs."""
    thresholds: tuple[float, ...] = THRESHOLDS
    """Values of θ."""
    split: Literal["test", "validation"] = "test"
    """Which data."""
    model: Literal["best", "last"] | None = None
    """Which weights of the run. Default: those the training finished with."""
    output: str = "tradeoff"
    """Files to write: OUTPUT.png and OUTPUT.json."""
    test_rows: int | None = None
    """How many test sequences to draw, for a generated task. Default: as many as the task says."""
    device: str = "auto"
    """cpu, cuda, cuda:N; auto takes a GPU where there is one."""

    def run(self) -> None:
        from rankcode.plots import plot_tradeoff

        if not self.run_folders:
            raise ValueError("name the folder of at least one run")
        Path(self.output).parent.mkdir(parents=True, exist_ok=True)
        written = {path: RunFolder(path).config() for path in self.run_folders}
        tasks = [_written_task(config, self.test_rows) for config in written.values()]
        for path, task in zip(written, tasks, strict=True):
            if task != tasks[0]:
                raise ValueError(f"{path} is a run of {task}, {self.run_folders[0]} one of {tasks[0]}")
        curves: dict[str, Curve] = {}
        for path, config in written.items():
            network = RunFolder(path).model(self.model or config["training"]["finish_with"])
            network.to(own_device(self.device))
            curves[path] = tradeoff(network, tasks[0], self.thresholds, self.split, progress=True)
            print(f"{path}: area under the curve {curves[path].area:.4f}")
            print("     θ   accuracy  mean steps   fired")
            for threshold, accuracy, steps, fired in zip(
                curves[path].thresholds, curves[path].accuracy, curves[path].mean_steps, curves[path].fired, strict=True
            ):
                print(f"{threshold:6g}   {100 * accuracy:6.2f} %  {steps:10.2f}  {100 * fired:5.1f} %")
        limits = tasks[0].limit_curves() if hasattr(tasks[0], "limit_curves") else {}
        content = {
            "task": tasks[0].name,
            "split": self.split,
            "curves": {name: curve.as_dict() for name, curve in curves.items()},
            "limits": {name: {"accuracy": a.tolist(), "mean_steps": s.tolist()} for name, (a, s) in limits.items()},
        }
        Path(f"{self.output}.json").write_text(json.dumps(content, indent=2) + "\n")
        plot_tradeoff(curves, limits).savefig(f"{self.output}.png", dpi=150)
        print(f"wrote {self.output}.png and {self.output}.json")


COMMANDS = {"demo": Demo, "train": Train, "resume": Resume, "evaluate": Evaluate, "tradeoff": Tradeoff}


def standard_network(task: Any, cell: CellName, units: int, layers: int = 1, decay: float = 0.2) -> Network:
    """The network the command line trains: one sigmoid output for two classes, else one for each class."""
    shape, outputs = task.features, 1 if task.classes == 2 else task.classes
    if cell in ("conv-lstm", "conv-lif") and len(shape) != 3:
        raise ValueError(f"a {cell} reads images, and the steps of {task.name} are not images")
    if layers != 1 and cell not in ("lstm", "gru"):
        raise ValueError(f"layers is for lstm and gru, not for {cell}")
    if cell == "conv-lstm":
        return Network(cells.ConvLSTM(shape[0], units, shape[1:]), outputs)
    if cell in ("lstm", "gru"):
        kind = cells.LSTM if cell == "lstm" else cells.GRU
        return Network(kind(math.prod(shape), units, layers), outputs)
    # A spiking network; its last cell has a neuron for each class, whose membranes are the activations.
    hidden: list[nn.Module] = []
    if cell == "conv-lif":
        hidden.append(cells.ConvLIF(shape[0], units, shape[1:], decay=decay))
        hidden.append(cells.ConvLIF(units, units, shape[1:], pool=2, decay=decay))
        shape = (units, shape[1] // 2, shape[2] // 2)
    hidden.append(cells.LIF(math.prod(shape), 128 if cell == "conv-lif" else units, decay=decay))
    top = cells.LIF(hidden[-1].features[0], task.classes, decay=decay, emits="membranes")  # type: ignore[index]
    return Network(cells.Stack(*hidden, top), task.classes)


def report_table(report: Report, label_names: tuple[str, ...]) -> str:
    """A report as text."""
    lines = [
        f"  accuracy       {100 * report.accuracy:.2f} %",
        f"  mean steps     {report.mean_steps:.2f}   (earliness {report.earliness:.3f})",
        f"  fired          {100 * report.fired:.1f} %",
        f"  harmonic mean  {report.harmonic_mean:.4f}",
        f"  cost           {report.cost:.4f}   (α = {report.alpha:g})",
        "",
        f"  {'class':<12} {'rows':>9}  accuracy  mean steps   fired",
    ]
    for row in report.classes:
        name = label_names[row.label]
        share = f"{100 * row.accuracy:6.2f} %  {row.mean_steps:10.2f}  {100 * row.fired:5.1f} %"
        lines.append(f"  {name:<12} {row.rows:>9,}  {share}")
    return "\n".join(lines) + "\n"


def _fit(network: Network, task: Any, objective: Objective, config: Training) -> None:
    try:
        history = fit(network, task, objective, config)
    except KeyboardInterrupt:
        begun = config.folder is not None and (Path(config.folder) / "checkpoint.pt").exists()
        raise ValueError(f"stopped{f'; go on with: rankcode resume {config.folder}' if begun else ''}") from None
    if int(os.environ.get("RANK", "0")) > 0:  # under torchrun the first process speaks
        return
    if history.best is not None:
        best = history.best["validation"]
        print(
            f"best model, by {config.select} on validation data: accuracy {100 * best['accuracy']:.2f} %, "
            f"mean steps {best['mean_steps']:.2f}"
        )
    print(f"kept in {config.folder}; next: rankcode evaluate {config.folder}")


def _task(name: str) -> Any:
    if name not in TASKS:
        raise ValueError(f"there is no task {name!r}: choose from {', '.join(TASKS)}")
    return TASKS[name]()


def _written_task(written: dict[str, Any], test_rows: int | None = None) -> Any:
    """The task that config.json names."""
    settings = dict(written["task"])
    name = settings.pop("name", None)
    if name not in TASKS:
        raise ValueError(f"the run was trained from Python on {name}: use it from Python too")
    if test_rows is not None:
        if "test_rows" not in settings or test_rows < 1:
            raise ValueError(f"test rows are for generated tasks, and at least 1: {name} cannot draw {test_rows}")
        settings["test_rows"] = test_rows
    return TASKS[name](**settings)


def _beta(text: str) -> Beta:
    try:
        if ":" not in text:
            if not math.isfinite(float(text)):
                raise ValueError
            return float(text)
        return Switch(*(tuple(float(part) for part in pair.split(":")) for pair in text.split(",")))  # type: ignore[arg-type]
    except (ValueError, TypeError):
        raise ValueError(f"beta must be a number, or share:value pairs such as 0:0.4,0.5:0.165, not {text!r}") from None


def _objective(name: str, rule: Rule, beta: Beta) -> Objective:
    if name in ("at-spike", "until-spike"):
        return (AtSpike if name == "at-spike" else UntilSpike)(rule=rule, beta=beta)
    if name == "every-step" and beta:
        raise ValueError("every-step has no beta")
    return AtEnd(beta) if name == "at-end" else EveryStep()


def _written_objective(written: dict[str, Any]) -> Objective:
    """The objective that config.json names."""
    name = {"AtSpike": "at-spike", "UntilSpike": "until-spike", "AtEnd": "at-end", "EveryStep": "every-step"}
    rule, beta = written.get("rule", {"kind": "Threshold", "threshold": 0.95}), written.get("beta", 0.0)
    if isinstance(beta, dict):
        beta = Switch(*beta["points"]) if beta.get("kind") == "Switch" else None
    if written.get("kind") not in name or rule.get("kind") != "Threshold" or beta is None:
        raise ValueError("the run was trained from Python with parts of its own: use it from Python too")
    return _objective(name[written["kind"]], Threshold(rule["threshold"], rule.get("classes")), beta)
