"""The commands of `rankcode`: each a dataclass of its arguments, and `run`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import torch

from rankcode.audio import Audio
from rankcode.audio_files import read_audio
from rankcode.bench import Measured, Shape, bench_table, machine, measure, measure_stream, runnable
from rankcode.data import BadData
from rankcode.demo import Demo
from rankcode.distributed import own_device
from rankcode.downloads import download
from rankcode.metrics import THRESHOLDS, Curve, Report, evaluate, tradeoff
from rankcode.model_file import build, load
from rankcode.network import Network
from rankcode.objectives import Objective
from rankcode.prediction import Prediction, predict
from rankcode.rules import Never, Rule, Threshold
from rankcode.run_folder import RunFolder, free_folder
from rankcode.settings import ObjectiveName, named_objective, named_task, read_beta, written_objective, written_task
from rankcode.standard_network import UNITS, CellName, standard_network
from rankcode.tasks import TASKS, rows_for
from rankcode.tasks.sound import sound_files
from rankcode.training import Training, fit
from rankcode.whole_file import write_whole


@dataclass(frozen=True)
class Train:
    """Train a network on a task, or on data of your own, and keep the run in a folder.

    Tasks: spotting, two-sequence, temporal-digits, temporal-mnist, speech-commands.
    """

    task: str
    """What to learn: a task by name, or the path of your own data."""
    data: str | None = None
    """Where the data of temporal-mnist or speech-commands is. Default: where rankcode data puts it."""
    augment: bool = False
    """Alter the training recordings of speech-commands: shifted, louder or softer, noisy, with parts masked."""
    skip_bad: bool = False
    """Leave out files and rows that cannot be used, and say which."""
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
    hidden: int | None = None
    """Units of a hidden layer (ReLU) between an LSTM or GRU and the outputs. Default: no such layer."""
    decay: float = 0.9
    """What a spiking cell's membrane keeps from step to step; the paper has 0.2."""
    training: Training = field(default_factory=Training)

    def run(self) -> None:
        task = named_task(self.task, data=self.data, augment=self.augment or None, skip_bad=self.skip_bad or None)
        if self.cell in ("lstm", "gru", "lif") and any(field.name == "flat" for field in fields(task)):
            task = replace(task, flat=True)
        threshold = self.threshold
        if threshold is None:
            threshold = 1.0 if self.cell in ("lif", "conv-lif") else 0.95
        objective = named_objective(self.objective, Threshold(threshold), read_beta(self.beta))
        config = self.training
        if config.folder is None:
            name = self.task if self.task in TASKS else Path(self.task).resolve().stem
            config = replace(config, folder=str(free_folder(Path("runs") / f"{name}-{self.objective}")))
        torch.manual_seed(config.seed)
        units = UNITS[self.cell] if self.units is None else self.units
        _fit(standard_network(task, self.cell, units, self.layers, self.decay, self.hidden), task, objective, config)


@dataclass(frozen=True)
class Resume:
    """Go on with a run that was cut off, from its latest checkpoint."""

    run_folder: str
    """Folder of the run."""
    data: str | None = None
    """Where the data of the run's task is, if it is no longer where training found it."""
    device: str = "auto"
    """cpu, cuda, cuda:N; auto takes a GPU where there is one."""

    def run(self) -> None:
        folder = RunFolder(self.run_folder)
        written = folder.config()
        training = Training(**written["training"], folder=self.run_folder, device=self.device, resume=True)
        network = build(written["network"], folder.path / "config.json")
        if self.data is not None:
            folder.move_data(self.data)
        _fit(network, written_task(folder.config()), written_objective(written["objective"]), training)


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
    data: str | None = None
    """Where the data of the run's task is, if it is no longer where training found it."""
    on: str | None = None
    """Evaluate on all of this data instead: any that could be trained on, labelled with the same names."""
    skip_bad: bool = False
    """Leave out what cannot be used of the data, and say which."""
    device: str = "auto"
    """cpu, cuda, cuda:N; auto takes a GPU where there is one."""
    json: bool = False
    """Print JSON instead of a table."""

    def run(self) -> None:
        folder = RunFolder(self.run_folder)
        written = folder.config()
        network = folder.model(self.model or written["training"]["finish_with"]).to(own_device(self.device))
        if self.on is None:
            task = written_task(written, self.test_rows, self.data, self.skip_bad)
        elif self.data is not None or self.test_rows is not None:
            raise ValueError("--on takes all of its own data: it does not go with --data or --test-rows")
        else:
            task = rows_for(network, self.on, self.skip_bad)
            _say_left_out(task.left_out)
        own = written_objective(written["objective"]).rule
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
            rows = f"{self.split} rows" if self.on is None else f"rows of {self.on}"
            print(f"{self.run_folder} on {report.rows:,} {rows}{', ' if name else ''}{name}")
            print(report_table(report))


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
    data: str | None = None
    """Where the data of the runs' task is, if it is no longer where training found it."""
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
        tasks = [written_task(config, self.test_rows, self.data) for config in written.values()]
        tasks = [replace(task, augment=False) if hasattr(task, "augment") else task for task in tasks]  # not in tests
        for path, task in zip(written, tasks, strict=True):
            if task != tasks[0]:
                raise ValueError(f"{path} and {self.run_folders[0]} are runs on different data, or of different tasks")
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
        short = {path: Path(path).name for path in curves}
        named = curves if len(set(short.values())) < len(short) else {short[path]: curves[path] for path in curves}
        plot_tradeoff(named, limits).savefig(f"{self.output}.png", dpi=150)
        print(f"wrote {self.output}.png and {self.output}.json")


@dataclass(frozen=True)
class Predict:
    """What a trained network answers to sound files, or to the rows of a data file, and when."""

    model: str
    """Folder of a run, or a model file."""
    files: tuple[str, ...]
    """Sound files, folders of them, or .npz, .ts, .tsv and .arff files, as the network was trained on."""
    threshold: float | None = None
    """θ to answer at. Default: that of the training, and 0.95 for a model file."""
    skip_bad: bool = False
    """Go on where a file cannot be used, and say which."""
    device: str = "auto"
    """cpu, cuda, cuda:N; auto takes a GPU where there is one."""
    json: bool = False
    """Print a line of JSON for each answer instead of a table."""

    def run(self) -> None:
        if not self.files:
            raise ValueError("name at least one file")
        network, rule = _trained(self.model)
        network.to(own_device(self.device))
        if self.threshold is not None:
            rule = Threshold(self.threshold)
        answered = 0
        for place, answer in self._answers(network, rule):
            answered += 1
            if self.json:
                print(json.dumps({"from": place, **answer._asdict()}))
                continue
            if answered == 1:
                print("answer         probability   steps   heard   from")
            heard = "" if answer.milliseconds is None else f"{answer.milliseconds:.0f} ms"
            silent = "" if answer.fired else "  (did not fire)"
            print(f"{answer.label:<14} {answer.probability:11.3f}   {answer.steps:5}  {heard:>7}  {place}{silent}")
        if answered == 0:
            raise ValueError("there was nothing to answer to")

    def _answers(self, network: Network, rule: Rule) -> Iterator[tuple[str, Prediction]]:
        if not isinstance(network.front_end, Audio):
            for file in self.files:
                skipped: list[str] | None = [] if self.skip_bad else None
                answers = self._usable(lambda file, bad=skipped: predict(network, file, rule, bad), [Path(file)])
                _say_left_out(skipped or ())
                for row, answer in enumerate(next(iter(answers.values()), []), start=1):
                    yield f"{file}, row {row}", answer
            return
        files = [file for name in self.files for file in _sound_files(Path(name))]
        rate = network.front_end.log_mel.rate
        for first in range(0, len(files), 64):
            waveforms = self._usable(lambda file: read_audio(file, rate), files[first : first + 64])
            if waveforms:
                yield from zip(map(str, waveforms), predict(network, list(waveforms.values()), rule), strict=True)

    def _usable(self, read: Callable[[Path], Any], files: list[Path]) -> dict[Path, Any]:
        """What was read of each file; one that cannot be used is an error, or left out and named."""
        found = {}
        for file in files:
            try:
                found[file] = read(file)
            except (BadData, FileNotFoundError) as error:
                if not self.skip_bad:
                    hint = "" if "--skip-bad" in str(error) else "; --skip-bad goes on without"
                    raise type(error)(f"{error}{hint}") from None
                _say_left_out([str(error)])
        return found


@dataclass(frozen=True)
class Data:
    """Download a data set from its publisher: checked, and resumed where it was cut off."""

    name: Literal["mnist", "speech-commands", "speech-commands-v0.02"]
    """Which: mnist is 11 MB, speech-commands (v0.01) 1.5 GB, speech-commands-v0.02 2.4 GB."""
    to: str | None = None
    """Folder to put it into. Default: NAME in the folder that RANKCODE_DATA names, or in ~/.cache/rankcode."""

    def run(self) -> None:
        print(f"{self.name} is in {download(self.name, self.to)}")


@dataclass(frozen=True)
class Bench:
    """How long a step takes with each engine, against conventional training in the same run.

    Spikes are planted: all at the last step, evenly over the steps in order and shuffled, all at a quarter.
    """

    rows: tuple[int, ...] = (128, 512)
    """Rows in a batch."""
    steps: int = 81
    """Steps in a row."""
    inputs: int = 420
    """Values in a step."""
    units: int = 128
    """Units of the cell."""
    cell: Literal["lstm", "gru"] = "lstm"
    """Recurrent cell."""
    engines: tuple[str, ...] = ()
    """Which engines. Default: all but reference that can run here."""
    repeats: int = 15
    """How often each case is run."""
    output: str = "bench"
    """Files to write: OUTPUT.json and OUTPUT.png."""
    device: str = "auto"
    """cpu, cuda, cuda:N; auto takes a GPU where there is one."""

    def run(self) -> None:
        from rankcode.plots import plot_bench

        if not self.rows or min(*self.rows, self.steps, self.inputs, self.units, self.repeats, 1) < 1:
            raise ValueError("rows, steps, inputs, units and repeats must be at least 1")
        device = str(own_device(self.device))
        shapes = [Shape(rows, self.steps, self.inputs, self.units, cell=self.cell) for rows in self.rows]
        engines = self.engines or tuple(runnable(shapes[0], device))
        found: list[Measured] = []
        for shape in shapes:
            found += measure(shape, engines, device, self.repeats)
        if device == "cpu":
            found.append(measure_stream(shapes[0], self.repeats))
        print(bench_table(found))
        settings = {"steps": self.steps, "inputs": self.inputs, "units": self.units, "cell": self.cell}
        content = {"machine": machine(device), **settings, "measured": [each.as_dict() for each in found]}
        write_whole(Path(f"{self.output}.json"), json.dumps(content, indent=2).encode() + b"\n")
        plot_bench(found).savefig(f"{self.output}.png", dpi=150)
        print(f"wrote {self.output}.json and {self.output}.png")


COMMANDS = {
    "demo": Demo,
    "train": Train,
    "resume": Resume,
    "evaluate": Evaluate,
    "tradeoff": Tradeoff,
    "predict": Predict,
    "data": Data,
    "bench": Bench,
}


def report_table(report: Report) -> str:
    """A report as text."""
    lines = [
        f"  accuracy       {100 * report.accuracy:.2f} %",
        f"  mean steps     {report.mean_steps:.2f}   (earliness {report.earliness:.3f})",
        *([] if report.milliseconds is None else [f"  heard          {report.milliseconds:.0f} ms"]),
        f"  fired          {100 * report.fired:.1f} %",
        f"  harmonic mean  {report.harmonic_mean:.4f}",
        f"  cost           {report.cost:.4f}   (α = {report.alpha:g})",
        "",
        f"  {'class':<12} {'rows':>9}  accuracy  mean steps   fired",
    ]
    for row in report.classes:
        share = f"{100 * row.accuracy:6.2f} %  {row.mean_steps:10.2f}  {100 * row.fired:5.1f} %"
        lines.append(f"  {row.name:<12} {row.rows:>9,}  {share}")
    return "\n".join(lines) + "\n"


def _trained(path: str) -> tuple[Network, Rule]:
    """The network of a run, or of a model file, and the rule to answer with."""
    if not Path(path).is_dir():
        return load(path), Threshold()
    written = RunFolder(path).config()
    rule = written_objective(written["objective"]).rule
    network = RunFolder(path).model(written["training"]["finish_with"])
    return network, Threshold() if isinstance(rule, Never) else rule


def _sound_files(path: Path) -> list[Path]:
    """The sound files in a folder; a file as it is."""
    if not path.is_dir():
        return [path]
    found = [path / name for name in sound_files(path)]
    if not found:
        raise ValueError(f"there is no sound file in {path}")
    return found


def _say_left_out(lines: Iterable[str]) -> None:
    for line in lines:
        print(f"left out: {line}", file=sys.stderr)


def _fit(network: Network, task: Any, objective: Objective, config: Training) -> None:
    if hasattr(task, "summary"):
        print(task.summary(), file=sys.stderr)
    _say_left_out(getattr(task, "left_out", ()))
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
