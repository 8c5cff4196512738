"""`rankcode export`."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

from rankcode.cli.messages import say
from rankcode.cli.options import Flag, MovedData, rule_at
from rankcode.data.sources import BadData
from rankcode.export import Exported, export_onnx
from rankcode.saving.run_folder import RunFolder, load


@dataclass(frozen=True)
class Export:
    """Write a trained network as an ONNX file: one step in, probabilities and the decision out.

    The file holds the network, its rule and, for sound and series, its front end. It needs neither rankcode nor PyTorch
    and runs in onnxruntime and in browsers. Before it is written, it is compared with PyTorch, step by step: on test
    data of the run, or on random numbers if there is none.

    For example:

        rankcode export runs/gestures gestures.onnx
        rankcode export runs/speech speech.onnx --int8
        rankcode export model.safetensors model.onnx --threshold 0.99 --on recordings/
    """

    model: str
    """Folder of a run, or a model file."""
    output: str
    """The .onnx file to write. Only a file that this command wrote is replaced."""
    _: KW_ONLY
    threshold: float | None = None
    """θ to answer at. Default: the rule of the network, or 0.95 if it has none."""
    from_inputs: Flag = False
    """Make the file read the inputs of the network instead of raw data: log-mel frames instead of samples."""
    int8: Flag = False
    """Store the weights in 8 bits."""
    opset: int = 18
    """Version of the ONNX operators."""
    on: str | None = None
    """Compare on this data instead: a sound file, a folder of them, or a file of series."""
    check_rows: int = 256
    """About how many test rows of the run to compare on."""
    data: MovedData = None

    def run(self) -> None:
        if self.check_rows < 1:
            raise ValueError(f"--check-rows must be at least 1, not {self.check_rows}")
        network = load(self.model)
        rule = None if self.threshold is None else rule_at(self.threshold, network)
        done = export_onnx(
            network,
            self.output,
            rule,
            from_inputs=self.from_inputs,
            int8=self.int8,
            opset=self.opset,
            check_on=self._check_on(),
            check_rows=self.check_rows,
            source=str(Path(self.model).absolute().name),
        )
        say(*_report(done, self.int8))

    def _check_on(self) -> Any:
        """The data to compare on; None: random numbers."""
        if self.on is not None or not Path(self.model).is_dir():
            return self.on
        folder = RunFolder(self.model)
        if self.threshold is None:
            folder.rule()  # refuses a rule that only Python code can build
        try:
            task = folder.task(self.data)
        except BadData:  # it was trained on arrays
            return None
        if self.data is not None:
            task.test  # noqa: B018 (raises if the data is missing)
        return task


def _report(done: Exported, int8: bool) -> list[str]:
    same = done.agreement
    near = f"; {same.near} within rounding of the threshold" if same.near else ""
    lines = [
        f"wrote {done.path}: {done.parameters:,} parameters, {done.size / 1e6:.2f} MB",
        f"  decisions as in PyTorch on {same.rows:,} rows of {done.checked_on}{near} (probabilities differ by at most "
        f"{same.difference:.0e})",
        f"  {done.milliseconds:.3f} ms per step for one row, on one thread",
    ]
    if int8:
        lines.insert(
            2, f"  weights in 8 bits change {same.changed} of these answers, {max(0, same.lost)} for the worse"
        )
    return lines
