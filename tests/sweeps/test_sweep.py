"""Sweeps on Ray: equal to runs by hand, through deaths of workers and failures."""

import os
import signal
import subprocess
import sys
import threading
from itertools import product
from pathlib import Path

import pytest

import rankcode as rc
from rankcode.cli.main import main
from rankcode.saving.run_folder import RunFolder
from rankcode.sweeps import SweepFolder
from rankcode.sweeps.sweep import frame_of

pytestmark = pytest.mark.usefixtures("ray_on_this_machine")

QUICK = {"hidden_size": 4, "batch_size": 16, "epochs": 8, "learning_rate": 0.03, "device": "cpu"}
FLAGS = ["--no-progress", *(f"--{name.replace('_', '-')}={value}" for name, value in QUICK.items())]
THRESHOLDS = (0.5, 0.52, 0.55, 0.6, 0.7, 0.8, 0.95)


def holder_of(folder):
    """The process that has locked a run folder; None: there is none."""
    if folder.exists():
        for line in Path("/proc/locks").read_text().splitlines():
            _, kind, _, _, process, inode, *_ = line.split()
            if kind == "FLOCK" and int(inode.rpartition(":")[2]) == folder.stat().st_ino:
                return int(process)
    return None


@pytest.fixture(scope="module")
def by_hand(levels, tmp_path_factory):
    """The networks of the paper's Fig. 5, each trained alone: rank coding for every β and θ, conventional training for
    every β. In a new process, as commands are: weights are compared bit for bit."""
    place, runs, commands = tmp_path_factory.mktemp("by-hand"), {}, []
    for beta, threshold, objective in product((0, 0.1), (0.9, 0.99), ("at-spike", "at-end")):
        if (objective, threshold) != ("at-end", 0.99):
            options = {"beta": beta, "threshold": threshold, "objective": objective}
            runs[f"{beta} {threshold} {objective}"] = place / str(len(runs))
            given = [f"--{name}={value}" for name, value in options.items()]
            commands.append(["train", levels, *FLAGS, *given, "--folder", str(place / str(len(runs) - 1))])
    program = "import sys, torch; from rankcode.cli.main import main; torch.set_num_threads(1)"
    program += f"\nfor command in {commands!r}: main(command)"
    subprocess.run([sys.executable, "-c", program], check=True)
    return runs


def says(arguments, part, status=1):
    with pytest.raises(SystemExit, match=part) as stop:
        main(arguments)
    assert stop.value.code == status


def weights(path):
    return {name: tensor.tolist() for name, tensor in rc.load(path).state_dict().items()}


def test_the_sweep_of_figure_5_equals_separate_runs(levels, by_hand, capsys):
    over = ["beta=0,0.1", "threshold=0.9,0.99", "objective=at-spike,at-end"]
    command = ["sweep", levels, *FLAGS, "--over", *over, "--folder", "sweep", "--thresholds", *map(str, THRESHOLDS)]
    main(command)
    assert "6 runs: 6 finished" in capsys.readouterr().out
    folder = SweepFolder("sweep")
    runs = {f"{r['beta']} {r['threshold']} {r['objective']}": n for n, r in enumerate(folder.plan()["runs"], 1)}
    assert runs.keys() == by_hand.keys()
    points = []
    for name, path in by_hand.items():
        assert weights(folder.run(runs[name])) == weights(path)
        task = RunFolder(path).task()
        thresholds = {*THRESHOLDS, *([float(name.split()[1])] if "at-spike" in name else [])}
        curves = [rc.tradeoff(rc.load(path), task, thresholds, split) for split in ("validation", "test")]
        for place, theta in enumerate(curves[0].thresholds):
            values = [(curve.accuracy[place], curve.mean_steps[place]) for curve in curves]
            points.append((values[0], theta, runs[name], values[1]))
    best = [
        point
        for point in points
        if not any(a >= point[0][0] and s <= point[0][1] and (a, s) != point[0] for (a, s), *_ in points)
    ]
    front = folder.front()["front"]
    found = [
        (tuple(point["validation"][name] for name in ("accuracy", "mean_steps")), point["threshold"], point["run"])
        for point in front
    ]
    assert [values for values, *_ in found] == sorted({values for values, *_ in best}) and len(found) > 2
    assert set(found) <= {point[:3] for point in best}
    on_test = {point[:3]: point[3] for point in points}
    for point, key in zip(front, found, strict=True):
        assert (point["test"]["accuracy"], point["test"]["mean_steps"]) == on_test[key]
    assert Path("sweep/front.png").stat().st_size > 10_000

    # A sweep that is complete trains nothing, and a network of it can be picked and used.
    before = {path: path.stat().st_mtime_ns for path in Path("sweep/runs").rglob("*")}
    main(command)
    assert before == {path: path.stat().st_mtime_ns for path in Path("sweep/runs").rglob("*")}
    wish = front[len(front) // 2]
    main(["tune", "sweep", "--accuracy", str(wish["validation"]["accuracy"])])
    assert f"picked {wish['folder']}" in capsys.readouterr().out
    assert rc.load("sweep").rule == rc.Threshold(wish["threshold"])
    report = rc.evaluate(rc.load("sweep"), RunFolder("sweep").task())
    assert (report.accuracy, report.mean_steps) == (wish["test"]["accuracy"], wish["test"]["mean_steps"])
    main(["predict", "sweep", levels])
    assert len(capsys.readouterr().out.splitlines()) >= 120


def test_a_worker_that_is_killed_loses_nothing(levels, by_hand):
    """Kill the worker of every run once, at a random moment of its training."""
    killed = set()
    ended = threading.Event()

    def kill():
        while not ended.wait(0.01):
            for run in Path("sweep/runs").glob("*"):
                lines = (run / "metrics.jsonl").read_bytes().count(b"\n") if (run / "metrics.jsonl").exists() else 0
                process = holder_of(run)
                if run.name not in killed and process is not None and lines >= 1 + int(run.name):
                    killed.add(run.name)
                    os.kill(process, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        over = {"beta": [0, 0.1]}
        frame = rc.sweep(levels, over, folder="sweep", threshold=0.9, objective="at-spike", progress=False, **QUICK)
    finally:
        ended.set()
        killer.join()
    assert killed and set(frame.status) == {"finished"} and set(frame.run) == {1, 2}
    for number, beta in ((1, 0), (2, 0.1)):
        assert weights(f"sweep/runs/{number:03}") == weights(by_hand[f"{beta} 0.9 at-spike"])
        batches = [record["batch"] for record in RunFolder(f"sweep/runs/{number:03}").records()]
        assert batches == sorted(set(batches)) and len(batches) == 8


def test_a_failed_run_is_reported_and_the_sweep_goes_on(levels, capsys):
    pytest.importorskip("optuna")
    command = ["sweep", levels, *FLAGS, "--over", "precision=float16,float32", "--search", "bayesian", "--runs", "5"]
    command += ["--folder", "sweep", "--cpus-per-run", "2"]
    says([*command, "--hours", "1e-9"], "no run has ended with a network: the same command goes on$")
    main(command)
    said = capsys.readouterr().out
    assert "2 runs: 1 failed, 1 finished" in said or "2 runs: 1 finished, 1 failed" in said
    failed = 1 + [run["precision"] for run in SweepFolder("sweep").plan()["runs"]].index("float16")
    assert f"  run {failed} failed: precision float16 is for GPUs" in said
    assert {point["run"] for point in SweepFolder("sweep").front()["front"]} == {3 - failed}
    frame = frame_of(SweepFolder("sweep"))
    assert set(frame[frame.on_front].status) == {"finished"} and frame.on_front.sum() == said.count("precision=float32")
    assert next(iter(frame[frame.run == failed].reason)).startswith("precision float16 is for GPUs")
    says(["sweep", levels, *FLAGS, "--over", "beta=0,1", "--folder", "sweep"], "sweep holds another sweep", status=2)
