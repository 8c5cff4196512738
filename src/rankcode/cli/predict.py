"""`rankcode predict`."""

from __future__ import annotations

import json
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from rankcode.cli.messages import say, say_left_out
from rankcode.cli.options import Device, Flag, named_device, rule_at
from rankcode.prediction import predict_rows
from rankcode.saving.run_folder import RunFolder, load


@dataclass(frozen=True)
class Predict:
    """Print what a trained network answers to sound files, or to the rows of a data file, and when.

    For example:

        rankcode predict runs/gestures new.npz
        rankcode predict runs/speech one.wav recordings/ --json
        rankcode predict model.safetensors new.npz --threshold 0.99
    """

    model: str
    """Folder of a run, or a model file."""
    files: tuple[str, ...]
    """Sound files, folders of them, or files of series (.csv, .parquet, .npz, .npy, .ts, .tsv, .arff)."""
    _: KW_ONLY
    threshold: float | None = None
    """θ to answer at. Default: that of the training; 0.95 where it had none."""
    skip_bad: Flag = False
    """Leave out files and rows that cannot be used, and name them."""
    device: Device = "auto"
    json: Flag = False
    """Print a line of JSON for each answer instead of a table."""

    def run(self) -> None:
        if Path(self.model).is_dir() and self.threshold is None:
            RunFolder(self.model).rule()  # refuses a rule that only Python can use
        network = load(self.model).to(named_device(self.device))
        rule = None if self.threshold is None else rule_at(self.threshold, network)
        answered, left_out = 0, LeftOut()
        for place, answer in predict_rows(network, list(self.files), rule, self.skip_bad, left_out):
            answered += 1
            if self.json:
                print(json.dumps({"from": place, **answer._asdict()}))
                continue
            sound = answer.milliseconds is not None
            if answered == 1:
                say(f"answer         probability   steps{'   heard' if sound else ''}   from")
            heard = f"{answer.milliseconds:5.0f} ms  " if sound else " "
            silent = "" if answer.fired else "  (did not fire)"
            say(f"{answer.label:<14} {answer.probability:11.3f}   {answer.steps:5}  {heard}{place}{silent}")
        if answered == 0:
            raise ValueError("there was nothing to answer to")


class LeftOut(list[str]):
    """Names on standard error what is left out, as soon as it is."""

    def append(self, line: str) -> None:
        super().append(line)
        say_left_out([line])
