"""`rankcode evaluate` and `rankcode tradeoff`."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from rankcode.cli.left_out import say_left_out
from rankcode.metrics import THRESHOLDS, Curve, Report, evaluate, tradeoff
from rankcode.rules import Never, Rule, Threshold
from rankcode.saving.run_folder import RunFolder
from rankcode.tasks import rows_for
from rankcode.training.distributed import own_device


@dataclass(frozen=True)
class Evaluate:
    """How right and how early a trained network is, on data it has not seen."""

    run_folder: str
    """Folder of the run."""
    threshold: float | None = None
    """θ to answer at. Default: the rule of the training; for training that never fires, the end and θ = 0.95."""
    split: Literal["test", "validation"] | None = None
    """Which data. Default: test."""
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
        network = folder.model(self.model).to(own_device(self.device))
        if self.on is None:
            task = folder.task(self.data, test_rows=self.test_rows, skip_bad=self.skip_bad or None)
            say_left_out(getattr(task, "left_out", ()))
        elif (self.data, self.test_rows, self.split) != (None, None, None):
            raise ValueError("--on takes all of its own data: it does not go with --data, --test-rows or --split")
        else:
            task = rows_for(network, self.on, self.skip_bad)
            say_left_out(task.left_out)
        split = self.split or "test"
        rules: dict[str, Rule]
        if self.threshold is not None:
            rules = {f"θ = {self.threshold:g}": Threshold(self.threshold)}
        elif isinstance(own := folder.rule(), Never):
            rules = {"at the end": own, "first spike, θ = 0.95": Threshold()}
        else:
            rules = {"": own}
        reports = {
            name: evaluate(network, task, rule, split, self.alpha, progress=True) for name, rule in rules.items()
        }
        if self.json:
            print(json.dumps({name or "report": report.as_dict() for name, report in reports.items()}, indent=2))
            return
        for name, report in reports.items():
            rows = f"{split} rows" if self.on is None else f"rows of {self.on}"
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
        tasks = {path: RunFolder(path).task(self.data, test_rows=self.test_rows) for path in self.run_folders}
        first = tasks[self.run_folders[0]]
        for path, task in tasks.items():
            if _to_compare(task) != _to_compare(first):
                raise ValueError(f"{path} and {self.run_folders[0]} are runs on different data, or of different tasks")
        curves: dict[str, Curve] = {}
        layouts: dict[Any, Any] = {}  # the task once for each layout, so that its data is read once
        for path in tasks:
            network = RunFolder(path).model(self.model).to(own_device(self.device))
            task = layouts.setdefault(getattr(tasks[path], "flat", None), tasks[path])
            curves[path] = tradeoff(network, task, self.thresholds, self.split, progress=True)
            print(f"{path}: area under the curve {curves[path].area:.4f}")
            print("     θ   accuracy  mean steps   fired")
            for threshold, accuracy, steps, fired in zip(
                curves[path].thresholds, curves[path].accuracy, curves[path].mean_steps, curves[path].fired, strict=True
            ):
                print(f"{threshold:6g}   {100 * accuracy:6.2f} %  {steps:10.2f}  {100 * fired:5.1f} %")
        limits = first.limit_curves() if hasattr(first, "limit_curves") else {}
        content = {
            "task": first.name,
            "split": self.split,
            "curves": {name: curve.as_dict() for name, curve in curves.items()},
            "limits": {name: {"accuracy": a.tolist(), "mean_steps": s.tolist()} for name, (a, s) in limits.items()},
        }
        Path(f"{self.output}.json").write_text(json.dumps(content, indent=2) + "\n")
        short = {path: Path(path).name for path in curves}
        named = curves if len(set(short.values())) < len(short) else {short[path]: curves[path] for path in curves}
        plot_tradeoff(named, limits).savefig(f"{self.output}.png", dpi=150)
        print(f"wrote {self.output}.png and {self.output}.json")


def _to_compare(task: Any) -> Any:
    """A task without what does not change its test data: how it is altered in training, or laid out for a cell."""
    return replace(task, **{name: False for name in ("augment", "flat") if hasattr(task, name)})


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
