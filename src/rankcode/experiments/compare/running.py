"""Run methods on sets with seeds, and write a line of JSON for every result as soon as it is known.

A comparison that was stopped continues where it stopped: results that have a line are not computed again. To repeat
something, delete its lines.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rankcode.data.series import Series
from rankcode.data.series_files import Options, is_series, read_series
from rankcode.data.sources import BadData
from rankcode.experiments.compare.methods import Answers, CannotReadError
from rankcode.metrics import cost, harmonic_mean
from rankcode.progress import Progress
from rankcode.saving.files import alone_in, write_whole

ALPHAS = (0.1, 0.5, 1.0)
Record = dict[str, Any]
Key = tuple[str, str, int, float]  # set, method, seed, α


def sets_in(folder: Path) -> list[Path]:
    """The folders and files of sets in a folder, by name."""
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}")
    found = [path for path in sorted(folder.iterdir()) if not path.name.startswith(".") and is_series(path)]
    if not found:
        raise BadData(f"{folder} has no set of series: give a folder with a folder for each set")
    return found


def read_records(file: Path) -> list[Record]:
    """The lines of a file. A line that was cut off when a comparison was killed is removed."""
    if not file.exists():
        return []
    content = file.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        write_whole(file, whole)
    return [json.loads(line) for line in whole.splitlines()]


def key_of(record: Record) -> Key:
    return record["set"], record["method"], record["seed"], record["alpha"]


def compare(
    sets: Sequence[Path],
    methods: Mapping[str, Callable[..., Any]],
    seeds: Sequence[int],
    alphas: Sequence[float],
    folder: Path,
    progress: bool = True,
) -> list[Record]:
    """Run what has no line in FOLDER/results.jsonl yet, and return all lines. Seeds are the outer loop: a comparison
    that is stopped early has fewer seeds, not fewer sets."""
    file = folder / "results.jsonl"
    work = [(seed, path, name) for seed in seeds for path in sets for name in methods]
    with alone_in(folder, wait=False), Progress(len(work), progress) as bar:
        known = {key_of(record) for record in read_records(file)}
        for done, (seed, path, name) in enumerate(work):
            missing = [alpha for alpha in alphas if (path.stem, name, seed, alpha) not in known]
            if not missing:
                continue
            if bar.due(done) or done == 0:
                bar.show(done, f"{name} on {path.stem}, seed {seed}")
            for record in results(path, methods[name], name, seed, missing):
                with open(file, "a", encoding="utf-8") as lines:
                    lines.write(json.dumps(record, ensure_ascii=False) + "\n")
        bar.show(len(work), "all methods")
        return read_records(file)


def results(path: Path, method: Callable[..., Any], name: str, seed: int, alphas: Sequence[float]) -> Iterator[Record]:
    """The result of a method for each α, or why there is none."""
    missing = list(alphas)
    try:
        splits = read_series(path, Options())
        train, test = splits["train"], splits["test"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for answers in method(train, test, seed).answers(alphas):
                yield {"set": path.stem, "method": name, "seed": seed, **measured(answers, test)}
                missing.remove(answers.alpha)
    except Exception as error:
        kind = "left_out" if isinstance(error, CannotReadError) else "error"
        reason = " ".join(f"{error}".split()) or type(error).__name__
        for alpha in missing:
            yield {"set": path.stem, "method": name, "seed": seed, "alpha": alpha, kind: reason[:300]}


def measured(answers: Answers, test: Series) -> Record:
    accuracy = float(np.mean(answers.labels == np.array(test.labels)))
    earliness = float(np.mean(answers.steps / test.lengths))
    found = {
        "alpha": answers.alpha,
        "accuracy": accuracy,
        "earliness": earliness,
        "harmonic_mean": harmonic_mean(accuracy, earliness),
        "cost": cost(accuracy, earliness, answers.alpha),
        "area": answers.area,
        "fit_seconds": answers.fit_seconds,
        "milliseconds": 1000 * answers.predict_seconds / len(test.labels),
    }
    return {name: None if value is None else round(value, 5) for name, value in found.items()}
