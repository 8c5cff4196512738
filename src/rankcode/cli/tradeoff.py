"""`rankcode tradeoff`."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from rankcode.cli.messages import say
from rankcode.cli.options import Device, Model, MovedData, TestRows, data_name
from rankcode.cli.output_files import OutputFiles
from rankcode.metrics import THRESHOLDS, Curve, tradeoff
from rankcode.saving.run_folder import RunFolder
from rankcode.training.distributed import own_device


@dataclass(frozen=True)
class Tradeoff:
    """Measure and draw accuracy against steps read, over thresholds, for one run or several of the same task.

    For example:

        rankcode tradeoff runs/gestures
        rankcode tradeoff runs/gestures runs/gestures-2 --output both
    """

    run_folders: tuple[str, ...]
    """Folders of the runs."""
    _: KW_ONLY
    thresholds: tuple[float, ...] = THRESHOLDS
    """Values of θ."""
    output: str | None = None
    """Files to write: OUTPUT.png and OUTPUT.json. Only files that this command wrote are replaced. Default: tradeoff in
    the first of the run folders."""
    split: Literal["test", "validation"] = "test"
    """Split of the runs' data."""
    model: Model = None
    data: MovedData = None
    test_rows: TestRows = None
    device: Device = "auto"

    def run(self) -> None:
        from rankcode.plots import plot_tradeoff

        if not self.run_folders or not self.thresholds:
            raise ValueError("name at least one run folder and one threshold")
        tasks = {path: RunFolder(path).task(self.data, test_rows=self.test_rows) for path in self.run_folders}
        output = f"{self.run_folders[0]}/tradeoff" if self.output is None else self.output
        files = OutputFiles(output, "tradeoff")
        first = tasks[self.run_folders[0]]
        for path, task in tasks.items():
            if _to_compare(task) != _to_compare(first):
                raise ValueError(f"{path} and {self.run_folders[0]} are runs on different data, or of different tasks")
        curves: dict[str, Curve] = {}
        layouts: dict[Any, Any] = {}  # the task for each layout, so that its data is read only once
        for path in tasks:
            network = RunFolder(path).model(self.model).to(own_device(self.device))
            task = layouts.setdefault(getattr(tasks[path], "flat", None), tasks[path])
            curves[path] = tradeoff(network, task, self.thresholds, self.split, progress=True)
        limits = first.limit_curves() if hasattr(first, "limit_curves") else {}
        content = {
            "task": first.name,
            "split": self.split,
            "curves": {name: curve.as_dict() for name, curve in curves.items()},
            "limits": {name: {"accuracy": a.tolist(), "mean_steps": s.tolist()} for name, (a, s) in limits.items()},
        }
        short = {path: Path(path).name for path in curves}
        named = curves if len(set(short.values())) < len(short) else {short[path]: curves[path] for path in curves}
        title = f"{data_name(getattr(first, 'path', first.name))}, {self.split} data"
        files.write(content, plot_tradeoff(named, limits, title))
        for path, curve in curves.items():
            say(f"{path}: area under the curve {curve.area:.4f}", *_table(curve))
        say(f"wrote {files.png} and {files.json}")


def _to_compare(task: Any) -> Any:
    """A task without the settings that leave its test data unchanged: augmentation, and the layout for a cell."""
    same = replace(task, **{each.name: False for each in fields(task) if each.name in ("augment", "flat")})
    return same, getattr(task, "fingerprint", "")


def _table(curve: Curve) -> list[str]:
    """A curve as lines of text."""
    points = zip(curve.thresholds, curve.accuracy, curve.mean_steps, curve.fired, strict=True)
    return [
        "     θ   accuracy  mean steps   fired",
        *(f"{theta:6g}   {100 * a:6.2f} %  {steps:10.2f}  {100 * fired:5.1f} %" for theta, a, steps, fired in points),
    ]
