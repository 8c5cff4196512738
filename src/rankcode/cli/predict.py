"""`rankcode predict`."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections import Counter
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from torch import Tensor

from rankcode.cli.messages import say, say_left_out
from rankcode.cli.options import Device, Flag, rule_at
from rankcode.cli.output_files import Picture, check_replaceable
from rankcode.data.sources import BadData
from rankcode.prediction import Prediction, predict_rows
from rankcode.saving.files import write_whole
from rankcode.saving.run_folder import RunFolder, load
from rankcode.training.distributed import own_device

COLUMNS = ("from", "label", "probability", "steps", "fired")
# What a file of answers begins with: by this it is told from a file that something else wrote.
BEGINNINGS = {".csv": ",".join(COLUMNS), ".jsonl": '{"from": "'}


@dataclass(frozen=True)
class Predict:
    """Print what a trained network answers to sound files, or to the rows of a data file, and when.

    For example:

        rankcode predict runs/gestures new.npz
        rankcode predict runs/gestures new.npz --output answers.csv --plot answers.png
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
    output: str | None = None
    """Write the answers to this file, .csv or .jsonl, with the probabilities of all classes, instead of printing them.
    Only a file that this command wrote is replaced."""
    plot: str | None = None
    """Draw some of the answers into this .png file: each row, the class probabilities below it, and when it fired."""
    skip_bad: Flag = False
    """Leave out files and rows that cannot be used, and name them."""
    device: Device = "auto"
    json: Flag = False
    """Print a line of JSON for each answer instead of a table."""

    def run(self) -> None:
        if self.json and self.output is not None:
            raise ValueError("--json prints the answers and --output writes them to a file: give one of the two")
        if Path(self.model).is_dir() and self.threshold is None:
            RunFolder(self.model).rule()  # refuses a rule that only Python can use
        output = None if self.output is None else AnswerFile(self.output)
        picture = None if self.plot is None else Picture(self.plot, "predict")
        network = load(self.model).to(own_device(self.device))
        rule = None if self.threshold is None else rule_at(self.threshold, network)
        left_out = LeftOut()
        examples: list[tuple[str, str, Tensor]] = []  # the first two rows with each answer
        answers: Counter[str] = Counter()
        closed = False  # the reader of standard output, such as `head`, has gone
        for place, row, answer in predict_rows(network, list(self.files), rule, self.skip_bad, left_out):
            answers[answer.label] += 1
            if picture is not None and answers[answer.label] <= 2:
                examples.append((answer.label, place, row))
            if output is not None:
                output.add(place, answer)
            elif not closed:
                try:
                    self._print(place, answer, heading=answers.total() == 1)
                except BrokenPipeError:
                    if picture is None:
                        raise
                    closed = True
        if not answers:
            raise BadData("there was nothing to answer to")
        if output is not None:
            output.write()
            say(f"wrote {answers.total():,} answers to {output.path}", file=sys.stderr)
        if picture is not None:
            from rankcode.plots.answers import plot_answers, some_of_each

            labels, places, rows = zip(*examples, strict=True)
            chosen = some_of_each(labels)
            names = [places[each] for each in chosen]
            picture.write(plot_answers(network, [rows[each] for each in chosen], names=names, rule=rule))
            say(f"wrote {picture.path}", file=sys.stderr)

    def _print(self, place: str, answer: Prediction, heading: bool) -> None:
        if self.json:
            print(json.dumps({"from": place, **answer._asdict()}))
            return
        sound = answer.milliseconds is not None
        if heading:
            say(f"answer         probability   steps{'   heard' if sound else ''}   from")
        heard = f"{answer.milliseconds:5.0f} ms  " if sound else " "
        silent = "" if answer.fired else "  (did not fire)"
        say(f"{answer.label:<14} {answer.probability:11.3f}   {answer.steps:5}  {heard}{place}{silent}")


class AnswerFile:
    """A .csv or .jsonl file with a line for each answer."""

    def __init__(self, path: str):
        self.path, self._lines = Path(path), io.StringIO(newline="")
        self.suffix = self.path.suffix.lower()
        if self.suffix not in BEGINNINGS:
            raise ValueError(f"--output takes the name of a .csv or .jsonl file, not {path!r}")
        check_replaceable(self.path, BEGINNINGS[self.suffix], "--output")

    def add(self, place: str, answer: Prediction) -> None:
        if self.suffix == ".jsonl":
            self._lines.write(json.dumps({"from": place, **answer._asdict()}) + "\n")
            return
        writer = csv.writer(self._lines, lineterminator="\n")
        sound = answer.milliseconds is not None
        if not self._lines.tell():
            names = [f"probability_{name}" for name in answer.probabilities]
            writer.writerow([*COLUMNS, *(["milliseconds"] if sound else []), *names])
        numbers = [*([answer.milliseconds] if sound else []), *(f"{p:.6g}" for p in answer.probabilities.values())]
        writer.writerow([place, answer.label, f"{answer.probability:.6g}", answer.steps, answer.fired, *numbers])

    def write(self) -> None:
        write_whole(self.path, self._lines.getvalue().encode(errors="backslashreplace"))


class LeftOut(list[str]):
    """Names on standard error what is left out, as soon as it is."""

    def append(self, line: str) -> None:
        super().append(line)
        say_left_out([line])
