"""Sweeps as processes: the driver is killed at random moments, and a cluster of two nodes shares the work."""

import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import rankcode as rc
from new_process import ENVIRONMENT
from rankcode.cli.main import main
from rankcode.saving.run_folder import RunFolder
from rankcode.sweeps import SweepFolder

pytestmark = pytest.mark.slow

ray = pytest.importorskip("ray", reason="sweeps need ray")
pandas = pytest.importorskip("pandas")

WITH_RAY = {**ENVIRONMENT, "RAY_USAGE_STATS_ENABLED": "0"}
FLAGS = ["--hidden-size", "4", "--batch-size", "16", "--epochs", "60", "--device", "cpu", "--no-progress"]
BETAS = ("0", "0.05", "0.1", "0.2")


def command(levels, *more):
    over = ["--over", f"beta={','.join(BETAS)}", "--folder", "sweep"]
    return [sys.executable, "-m", "rankcode", "sweep", levels, *FLAGS, *over, *more]


def lines():
    return sum(file.read_bytes().count(b"\n") for file in Path("sweep/runs").glob("*/metrics.jsonl"))


def parts_of_ray(folder):
    """Processes of a Ray that has its files in a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            text = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except OSError:
            continue
        if folder.encode() in text:
            found.append(process.name)
    return found


def weights(path):
    return {name: tensor.tolist() for name, tensor in rc.load(path).state_dict().items()}


@pytest.mark.parametrize("seed", [0, 1])
def test_a_driver_that_is_killed_loses_nothing_and_trains_nothing_twice(levels, seed, tmp_path):
    moments, ended = random.Random(seed), {}
    for _ in range(3):
        driver = subprocess.Popen(command(levels), env=WITH_RAY, stdout=subprocess.DEVNULL)
        more = lines() + moments.randrange(1, 4 * 60 // 3)
        early = moments.random() < 0.2  # before or while Ray starts
        until = time.monotonic() + (moments.uniform(1, 8) if early else 120)
        while driver.poll() is None and time.monotonic() < until and lines() < more:
            time.sleep(0.01)
        driver.kill()
        driver.wait()
        temporary = Path("sweep/.ray").read_text() if Path("sweep/.ray").exists() else "none"
        for number in range(1, 5):
            if SweepFolder("sweep").has_ended(number):
                run = SweepFolder("sweep").run(number)
                ended.setdefault(number, {file: file.stat().st_mtime_ns for file in run.iterdir()})
    done = subprocess.run(command(levels), env=WITH_RAY, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0 and "4 runs: 4 finished" in done.stdout, done.stderr
    assert "Traceback" not in done.stderr and "ray" not in done.stderr.lower(), done.stderr
    for number, beta in enumerate(BETAS, 1):
        run = SweepFolder("sweep").run(number)
        if number in ended:
            assert ended[number] == {file: file.stat().st_mtime_ns for file in run.iterdir()}, "trained twice"
        main(["train", levels, *FLAGS, "--beta", beta, "--folder", str(tmp_path / f"hand-{beta}")])
        assert weights(run) == weights(tmp_path / f"hand-{beta}")
        batches = [record["batch"] for record in RunFolder(run).records()]
        assert batches == [5 * epoch for epoch in range(1, 61)]
    assert not Path("sweep/.ray").exists() and not Path(temporary).exists()
    assert parts_of_ray(temporary) == []


def test_both_nodes_of_a_cluster_train_and_predict(levels):
    """Two nodes on this machine with a CPU each: one worker fits on either."""
    np.savez("many.npz", X=np.random.default_rng(0).normal(size=(20_000, 12)).astype(np.float32))
    # A token for this cluster alone, whatever the user's own clusters have.
    environment = {**WITH_RAY, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    port, started, temporary = 26379, [], tempfile.mkdtemp(prefix="rankcode-ray-")
    start = [sys.executable, "-m", "ray.scripts.scripts", "start", "--num-cpus=1", "--block", "--disable-usage-stats"]
    head = ["--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={temporary}"]
    small = ["--object-store-memory=100000000"]
    try:
        nowhere = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        quiet = {**nowhere, "start_new_session": True, "env": environment}
        started.append(subprocess.Popen([*start, *head, *small], **quiet))
        time.sleep(8)
        started.append(subprocess.Popen([*start, f"--address=127.0.0.1:{port}", *small], **quiet))
        time.sleep(8)
        nodes = command(levels, "--address", f"127.0.0.1:{port}")
        done = subprocess.run(nodes, env=environment, capture_output=True, text=True, timeout=250)
        assert done.returncode == 0 and "4 runs: 4 finished" in done.stdout, done.stderr
        model = ["sweep/runs/001", "many.npz", "--device", "cpu"]
        predict = [sys.executable, "-m", "rankcode", "predict", *model, "--output"]
        alone = subprocess.run([*predict, "alone.parquet"], env=environment, capture_output=True, text=True)
        both = [*predict, "both.parquet", "--address", f"127.0.0.1:{port}"]
        together = subprocess.run(both, env=environment, capture_output=True, text=True, timeout=100)
        assert "2 workers on 2 machines" in together.stderr, alone.stderr + together.stderr
        assert pandas.read_parquet("alone.parquet").equals(pandas.read_parquet("both.parquet"))
    finally:
        for sent in (signal.SIGTERM, signal.SIGKILL):  # the first lets Ray stop its own processes
            for process in started:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, sent)
            time.sleep(5)
        for process in started:
            process.wait(10)
        shutil.rmtree(temporary, ignore_errors=True)
    results = [SweepFolder("sweep").result(number) for number in range(1, 5)]
    assert len({result["node"] for result in results}) == 2
