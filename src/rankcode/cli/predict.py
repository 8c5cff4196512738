"""`rankcode predict`."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections import Counter
from dataclasses import KW_ONLY, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import Tensor

from rankcode.cli.messages import say, say_left_out
from rankcode.cli.options import Device, Flag, rule_at
from rankcode.cli.output_files import Picture, check_writable
from rankcode.data.sources import BadData
from rankcode.prediction import Prediction, predict_rows
from rankcode.saving.files import write_whole
from rankcode.saving.run_folder import RunFolder, load
from rankcode.sharded_prediction import AUTHOR, is_own, left_out_file, predict_to_parquet
from rankcode.training.distributed import own_device

COLUMNS = ("from", "label", "probability", "steps", "fired")
# How a file of answers begins, which distinguishes it from files that something else wrote.
BEGINNINGS = {".csv": ",".join(COLUMNS), ".jsonl": '{"from": "'}


@dataclass(frozen=True)
class Predict:
    """Print the answers of a trained network to sound files or to the rows of a data file, and when it answered.

    For example:

        rankcode predict runs/gestures new.npz
        rankcode predict runs/gestures new.npz --output answers.csv --plot answers.png
        rankcode predict runs/speech one.wav recordings/ --json
        rankcode predict runs/speech million.txt --output answers.parquet --workers 8
        rankcode predict model.safetensors new.npz --threshold 0.99
    """

    model: str
    """Folder of a run, or a model file."""
    files: tuple[str, ...]
    """Sound files, folders of them, or files of series (.csv, .parquet, .npz, .npy, .ts, .tsv, .arff). A .txt file is a
    manifest, which lists files; for sound, so is a .csv or .parquet file."""
    _: KW_ONLY
    threshold: float | None = None
    """θ to answer at. Default: that of the training, or 0.95 if it had none."""
    output: str | None = None
    """Write the answers to this file, .csv, .jsonl or .parquet, with the probabilities of all classes, instead of
    printing them. Only a file that this command wrote is replaced. A .parquet file is written in parts and can hold any
    number of answers: repeating the command continues after an interruption, and data that cannot be used is listed in
    a file beside it."""
    workers: int | None = None
    """Number of worker processes, on Ray; for --output answers.parquet. Default: this process alone."""
    address: str | None = None
    """Address of a Ray cluster, such as 10.0.0.1:6379 or auto. Default of --workers there: as many as fit."""
    plot: str | None = None
    """Draw some of the answers into this .png file: each row, the class probabilities below it, and when it fired."""
    skip_bad: Flag = False
    """Leave out files and rows that cannot be used, and list them."""
    device: Device = "auto"
    json: Flag = False
    """Print a line of JSON for each answer instead of a table."""

    def run(self) -> None:
        if self.json and self.output is not None:
            raise ValueError("--json prints the answers and --output writes them to a file: give one of the two")
        if Path(self.model).is_dir() and self.threshold is None:
            RunFolder(self.model).rule()  # refuses a rule that only Python code can build
        if Path(self.output or "").suffix.lower() == ".parquet":
            return self._write_parquet(Path(self.output or ""))
        if self.workers is not None or self.address is not None:
            raise ValueError("--workers and --address need --output with the name of a .parquet file")
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

    def _write_parquet(self, output: Path) -> None:
        """Write the answers in parts, which are joined at the end."""
        if self.plot is not None:
            raise ValueError("--plot draws answers that are printed, or written to a .csv or .jsonl file")
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"--workers must be at least 1, not {self.workers}")
        for needed in ("pyarrow", *(["ray"] if self.workers or self.address else [])):
            import_module(needed)  # raises before anything is computed if it is missing
        if output.exists() and not is_own(output):
            raise ValueError(f"{output} exists, and this command did not write it: choose another --output")
        listed = left_out_file(output)
        check_writable(listed, AUTHOR, "--output")
        if self.address is None:
            own_device(self.device)
        network = load(self.model)
        rule = None if self.threshold is None else rule_at(self.threshold, network)
        ray: Any = {"workers": self.workers, "address": self.address, "device": self.device}
        try:
            found = predict_to_parquet(network, list(self.files), output, rule, **ray)
        except KeyboardInterrupt:
            raise KeyboardInterrupt("stopped; repeat the command to continue") from None
        if found.left_out:
            say(f"left out {found.left_out:,} files or rows: {listed} lists them", file=sys.stderr)
        if not found.answers:
            raise BadData("there was nothing to answer to")
        rate = (found.answers - found.kept) / found.seconds
        before = f", {found.kept:,} of them before" if found.kept else ""
        on = f", {len(found.nodes)} workers on {len(set(found.nodes))} machines" if self.address else ""
        say(f"wrote {found.answers:,} answers to {output}{before}; {rate:,.0f} per second{on}", file=sys.stderr)

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
            raise ValueError(f"--output takes the name of a .csv, .jsonl or .parquet file, not {path!r}")
        check_writable(self.path, BEGINNINGS[self.suffix], "--output")

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
    """Lists on standard error what is left out, as it happens."""

    def append(self, line: str) -> None:
        super().append(line)
        say_left_out([line])
