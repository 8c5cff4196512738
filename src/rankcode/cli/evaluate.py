"""`rankcode evaluate`."""

from __future__ import annotations

import json
import sys
from dataclasses import KW_ONLY, dataclass
from typing import Literal

from rankcode.cli.messages import say, say_left_out
from rankcode.cli.options import Device, Flag, Model, MovedData, TestRows, rule_at
from rankcode.cli.output_files import Picture
from rankcode.front_ends import Standardise
from rankcode.metrics import ALPHA, Report, evaluate
from rankcode.rules import Never, Rule
from rankcode.saving.run_folder import RunFolder
from rankcode.tasks import OwnData, rows_for
from rankcode.training.baselines import baselines
from rankcode.training.distributed import own_device


@dataclass(frozen=True)
class Evaluate:
    """Measure the accuracy and earliness of a trained network on data it has not seen.

    For example:

        rankcode evaluate runs/gestures
        rankcode evaluate runs/gestures --threshold 0.99 --json
        rankcode evaluate runs/gestures --plot confusion.png
        rankcode evaluate runs/gestures --on others.npz
    """

    run_folder: str
    """Folder of the run."""
    _: KW_ONLY
    threshold: float | None = None
    """θ to answer at. Default: the rule of the training; if that never fires, both the last step and θ = 0.95."""
    on: str | None = None
    """Evaluate on all rows of this data instead, which must have class names that the network knows."""
    split: Literal["test", "validation"] | None = None
    """Split of the run's data. Default: test."""
    model: Model = None
    alpha: float = ALPHA
    """Weight of earliness in the cost."""
    plot: str | None = None
    """Draw the confusion matrix into this .png file. Only a file that this command wrote is replaced."""
    skip_bad: Flag = False
    """Leave out files and rows that cannot be used, and list them."""
    data: MovedData = None
    test_rows: TestRows = None
    device: Device = "auto"
    json: Flag = False
    """Print JSON instead of a table."""

    def run(self) -> None:
        folder = RunFolder(self.run_folder)
        if self.on is not None and (self.data, self.test_rows, self.split) != (None, None, None):
            raise ValueError("--on uses all rows of its data: do not give --data, --test-rows or --split with it")
        if not self.alpha >= 0:
            raise ValueError(f"--alpha must be at least 0, not {self.alpha:g}")
        picture = None if self.plot is None else Picture(self.plot, "evaluate")
        network = folder.model(self.model).to(own_device(self.device))
        rules: dict[str, Rule]
        if self.threshold is not None:
            rules = {f"θ = {self.threshold:g}": rule_at(self.threshold, network)}
        elif isinstance(own := network.rule or folder.rule(), Never):
            rules = {"at the end": own, "first spike, θ = 0.95": rule_at(0.95, network)}
        else:
            rules = {"": own}
        if self.on is None:
            task = folder.task(self.data, test_rows=self.test_rows, skip_bad=self.skip_bad or None)
        else:
            task = rows_for(network, self.on, self.skip_bad)
        say_left_out(getattr(task, "left_out", ()))
        split = self.split or "test"
        reports = {
            name: evaluate(network, task, rule, split, self.alpha, progress=True) for name, rule in rules.items()
        }
        simple = {}
        if isinstance(task, OwnData) and isinstance(task.front_end, Standardise):
            simple = baselines(task.train, getattr(task, split))
        rows = f"{split} rows" if self.on is None else f"rows of {self.on}"
        titles = {name: f"on {report.rows:,} {rows}{', ' if name else ''}{name}" for name, report in reports.items()}
        if self.json:
            more = {"baselines": simple} if simple else {}
            print(json.dumps({name or "report": report.as_dict() | more for name, report in reports.items()}, indent=2))
        else:
            for name, report in reports.items():
                say(f"{self.run_folder} {titles[name]}", *_table(report, simple))
        if picture is not None:
            from rankcode.plots import plot_confusion

            matrices = {
                f"{titles[name]}: {100 * report.accuracy:.1f} % right": report.confusion
                for name, report in reports.items()
            }
            picture.write(plot_confusion(matrices, network.class_names))
            say(f"wrote {picture.path}", file=sys.stderr)


def _table(report: Report, simple: dict[str, float]) -> list[str]:
    """A report as lines of text, with the accuracies of simple classifiers."""
    compared = ", ".join(f"the {name} {100 * accuracy:.2f} %" for name, accuracy in simple.items())
    lines = [
        f"  accuracy       {100 * report.accuracy:.2f} %",
        f"  mean steps     {report.mean_steps:.2f}   (earliness {report.earliness:.3f})",
        *([] if report.milliseconds is None else [f"  heard          {report.milliseconds:.0f} ms"]),
        f"  fired          {100 * report.fired:.1f} %",
        f"  harmonic mean  {report.harmonic_mean:.4f}",
        f"  cost           {report.cost:.4f}   (α = {report.alpha:g})",
        *([f"  to compare     {compared}, from whole rows"] if simple else []),
        "",
        f"  {'class':<12} {'rows':>9}  accuracy  mean steps   fired",
    ]
    for row in report.classes:
        share = f"{100 * row.accuracy:6.2f} %  {row.mean_steps:10.2f}  {100 * row.fired:5.1f} %"
        lines.append(f"  {row.name:<12} {row.rows:>9,}  {share}")
    return [*lines, ""]
