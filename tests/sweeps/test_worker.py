"""One run of a sweep, without Ray: it resumes bit for bit, ends once, and is stopped early."""

import time

import pytest

from rankcode.saving.run_folder import RunFolder
from rankcode.sweeps.early_stopping import among_best
from rankcode.sweeps.plan import make_plan
from rankcode.sweeps.sweep_folder import SweepFolder
from rankcode.sweeps.worker import train_run

QUICK = {"hidden_size": 3, "batch_size": 16, "epochs": 9}
CPU = {"device": "cpu"}


def folder_of(levels, path, over=None, **limits):
    folder = SweepFolder(path)
    folder.write_plan(make_plan(levels, over or {"beta": [0, 0.1]}, QUICK, thresholds=[0.6, 0.9], **limits))
    return folder


def weights(folder, number):
    return (folder.run(number) / "best.safetensors").read_bytes(), (
        folder.run(number) / "last.safetensors"
    ).read_bytes()


def test_a_run_that_was_out_of_time_goes_on_bit_for_bit_and_ends_once(levels, tmp_path):
    whole, cut = folder_of(levels, tmp_path / "whole"), folder_of(levels, tmp_path / "cut")
    train_run(whole, 1, None, CPU)
    train_run(cut, 1, time.time(), CPU)
    assert cut.result(1)["status"] == "unfinished" and not cut.has_ended(1)
    assert [record["batch"] for record in RunFolder(cut.run(1)).records()] == [5]
    train_run(cut, 1, None, CPU)
    assert cut.has_ended(1) and weights(cut, 1) == weights(whole, 1)
    assert cut.result(1) | {"seconds": 0} == whole.result(1) | {"seconds": 0}
    assert [record["batch"] for record in RunFolder(cut.run(1)).records()] == [5 * n for n in range(1, 10)]
    before = (cut.run(1) / "checkpoint.pt").stat().st_mtime_ns
    train_run(cut, 1, None, CPU)
    assert (cut.run(1) / "checkpoint.pt").stat().st_mtime_ns == before


def test_the_area_of_a_hopeless_run_stops_it_at_a_rung(levels, tmp_path):
    folder = folder_of(levels, tmp_path / "sweep", {"learning_rate": [0.01, 1e-9]}, early_stopping=True)
    train_run(folder, 1, None, CPU)
    assert folder.result(1)["status"] == "finished" and set(folder.rungs(1)) == {"1/9", "1/3"}
    folder.write_rungs(3, {"1/9": 0.1, "1/3": 0.9})
    train_run(folder, 2, None, CPU)
    assert folder.result(2)["status"] == "stopped" and folder.has_ended(2)
    assert len(RunFolder(folder.run(2)).records()) in (1, 3)
    assert folder.rungs(2)["1/9"] < folder.rungs(1)["1/9"]


@pytest.mark.parametrize(
    ("area", "areas", "good"),
    [(1, [1], True), (1, [1, 2], True), (1, [1, 2, 3], False), (3, [1, 2, 3], True), (3, [1, 2, 3, 4], True)],
)
def test_the_best_third_goes_on(area, areas, good):
    assert among_best(area, areas) == good


def test_an_error_is_a_result(levels, tmp_path):
    folder = folder_of(levels, tmp_path / "sweep")
    folder.run(1).mkdir(parents=True)
    (folder.run(1) / "notes.txt").write_text("mine")
    train_run(folder, 1, None, CPU)
    assert folder.result(1)["status"] == "failed" and "is not a run folder" in folder.result(1)["reason"]
    assert not folder.has_ended(1)
