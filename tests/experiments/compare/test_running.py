"""`running.py`: results are kept as they are made, failures too, and a killed comparison goes on."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from small_sets import write_set

pytest.importorskip("matplotlib")
pytest.importorskip("sklearn")

from rankcode.experiments.compare.methods import Answers, CannotReadError
from rankcode.experiments.compare.running import compare, key_of, read_records, sets_in

ALPHAS = (0.1, 1.0)


class AlwaysOne:
    """Answers "1" at step 3."""

    runs = 0

    def __init__(self, train, test, seed):
        self.test = test

    def answers(self, alphas):
        AlwaysOne.runs += 1
        rows = len(self.test.labels)
        for alpha in alphas:
            yield Answers(alpha, np.full(rows, "1"), np.full(rows, 3), 2.0, 0.048, None)


class Fails(AlwaysOne):
    def answers(self, alphas):
        yield next(super().answers(alphas))
        raise RuntimeError("no\nmemory")


class Cannot(AlwaysOne):
    def answers(self, alphas):
        raise CannotReadError("reads one channel only")


def test_results_are_measured_and_kept(tmp_path):
    write_set(tmp_path / "data", "A")
    found = compare(sets_in(tmp_path / "data"), {"one": AlwaysOne}, [0], ALPHAS, tmp_path / "out", progress=False)
    expected = {"accuracy": 0.5, "earliness": 0.25, "area": None, "fit_seconds": 2.0, "milliseconds": 2.0}
    assert found[1] == {
        "set": "A", "method": "one", "seed": 0, "alpha": 1.0, "harmonic_mean": 0.6, "cost": 0.75, **expected
    }  # fmt: skip
    assert found == read_records(tmp_path / "out" / "results.jsonl") and found[0]["cost"] == 0.525


def test_a_failure_is_recorded_and_the_rest_goes_on(tmp_path):
    write_set(tmp_path / "data", "A")
    methods = {"fails": Fails, "cannot": Cannot, "one": AlwaysOne}
    found = compare(sets_in(tmp_path / "data"), methods, [0], ALPHAS, tmp_path / "out", progress=False)
    by_key = {key_of(record): record for record in found}
    assert len(found) == len(by_key) == 6
    assert by_key["A", "fails", 0, 0.1]["cost"] == 0.525
    assert by_key["A", "fails", 0, 1.0]["error"] == "no memory"
    assert by_key["A", "cannot", 0, 1.0]["left_out"] == "reads one channel only"
    assert by_key["A", "one", 0, 1.0]["cost"] == 0.75


def test_only_what_is_missing_is_run(tmp_path):
    write_set(tmp_path / "data", "A")
    write_set(tmp_path / "data", "B")
    sets, out = sets_in(tmp_path / "data"), tmp_path / "out"
    compare(sets[:1], {"one": AlwaysOne}, [0], ALPHAS, out, progress=False)
    with open(out / "results.jsonl", "a") as file:
        file.write('{"set": "B", "met')  # cut off in the middle of a line
    before = AlwaysOne.runs
    found = compare(sets, {"one": AlwaysOne}, [0, 1], ALPHAS, out, progress=False)
    assert AlwaysOne.runs - before == 3
    assert len({key_of(record) for record in found}) == len(found) == 8


def test_a_folder_without_sets_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="has no set of series"):
        sets_in(tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        sets_in(tmp_path / "nowhere")


def test_a_killed_comparison_goes_on(tmp_path):
    write_set(tmp_path / "data", "A")
    file = tmp_path / "out" / "results.jsonl"
    command = [sys.executable, "-m", "rankcode", "compare", "--data", str(tmp_path / "data"), "--seeds", "30"]
    command += ["--methods", "kernels", "--output", str(file.parent), "--no-progress"]
    source = str(Path(__file__).parents[3] / "src")
    running = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"})
    until = time.monotonic() + 120
    while time.monotonic() < until and not (file.exists() and file.read_bytes().count(b"\n") >= 2):
        time.sleep(0.02)
    running.send_signal(signal.SIGKILL)
    assert running.wait() == -signal.SIGKILL
    kept = file.read_bytes()
    kept = kept[: kept.rfind(b"\n") + 1]
    lines = kept.count(b"\n")
    assert 2 <= lines < 90
    seeds = (lines - 1) // 3 + 2
    command[command.index("30")] = str(seeds)
    subprocess.run(command, env={**os.environ, "PYTHONPATH": source}, check=True, capture_output=True)
    whole = file.read_bytes()
    assert whole.startswith(kept)
    keys = [key_of(json.loads(line)) for line in whole.splitlines()]
    assert sorted(keys) == sorted(("A", "kernels", seed, alpha) for seed in range(seeds) for alpha in (0.1, 0.5, 1.0))
    assert (file.parent / "table.md").exists() and (file.parent / "ranks.png").exists()
