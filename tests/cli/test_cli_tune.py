"""`rankcode train` of series without further options, and `rankcode tune`."""

import json
import shutil

import numpy as np
import pytest
import torch
from small_data import QUICK, evaluated, says, train, two_levels

from rankcode import OptimalStopping, Threshold, load
from rankcode.cli.main import main
from rankcode.saving.run_folder import RunFolder
from rankcode.stopping import Wish
from rankcode.tasks import OwnData
from rankcode.training.series_model import LabelledSeries, fit_series


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fitted")
    main(["train", two_levels(folder / "levels.npz"), "--folder", str(folder / "run"), "--no-progress"])
    return folder


def test_series_are_fitted_at_once(fitted, capsys):
    run = fitted / "run"
    assert {file.name for file in run.iterdir()} == {"best.safetensors", "config.json", "held_out.pt"}
    config = RunFolder(run).config()
    assert config["fit"] == {"model": "kernels", "wish": {"alpha": 0.2}, "seed": 0}
    assert isinstance(load(run).rule, OptimalStopping)
    report = evaluated(capsys, run)
    assert report["accuracy"] == 1.0 and report["earliness"] < 0.6
    main(["predict", str(run), str(fitted / "levels.npz"), "--device", "cpu", "--json"])
    assert len(capsys.readouterr().out.splitlines()) == 60
    main(["tradeoff", str(run), "--device", "cpu"])
    assert (run / "tradeoff.png").exists()
    says(["resume", str(run)], "fitted without checkpoints", status=2)


def test_the_end_of_a_fit_says_how_good_it_is(tmp_path, capsys):
    main(["train", two_levels(tmp_path / "levels.npz"), "--accuracy", "0.9", "--folder", str(tmp_path / "run")])
    said = capsys.readouterr().out
    assert "fitted kernels to 48 rows" in said and "the nearest neighbour 100.0 %" in said
    assert RunFolder(tmp_path / "run").config()["fit"]["wish"] == {"accuracy": 0.9}
    says(["train", str(tmp_path / "levels.npz"), "--folder", str(tmp_path / "run")], "holds a run already")


def test_the_same_wish_gives_the_same_rule_to_kernels_again(tmp_path, capsys):
    data, run = two_levels(tmp_path / "levels.npz"), str(tmp_path / "run")
    main(["train", data, "--accuracy", "0.9", "--folder", run, "--device", "cpu", "--no-progress"])
    fitted = load(run).rule
    (suggested,) = (line.split("#")[0].split()[3:] for line in capsys.readouterr().out.splitlines() if " tune " in line)
    main(["tune", run, "--accuracy", "0.9", "--device", "cpu"])
    again = load(run).rule
    assert isinstance(again, OptimalStopping) and again.steps == fitted.steps
    np.testing.assert_allclose(again.gains, fitted.gains, atol=1e-3)  # held-out predictions are kept in float32
    main(["tune", run, *suggested, "--device", "cpu"])  # what `train` recommends can be met
    main(["tune", run, "--accuracy", "0.9", "--kind", "threshold", "--device", "cpu"])
    assert isinstance(load(run).rule, Threshold)


def test_an_ensemble_by_name(tmp_path, capsys, few_updates):
    data, run = two_levels(tmp_path / "levels.npz"), str(tmp_path / "run")
    main(["train", data, "--model", "ensemble", "--folder", run, "--device", "cpu", "--no-progress"])
    assert "fitted ensemble to 48 rows" in capsys.readouterr().out
    main(["tune", run, "--accuracy", "0.9", "--device", "cpu"])
    assert "from 10 rows" in capsys.readouterr().out
    assert evaluated(capsys, run)["accuracy"] > 0.9
    main(["predict", run, data, "--device", "cpu", "--json", "--plot", str(tmp_path / "answers.png")])
    assert len(capsys.readouterr().out.splitlines()) == 60 and (tmp_path / "answers.png").exists()
    main(["tradeoff", run, "--device", "cpu"])
    main(["export", run, "--output", str(tmp_path / "run.onnx")])
    assert (tmp_path / "run.onnx").exists()
    says(["train", "two-sequence", "--model", "ensemble"], "--model ensemble is for series", status=2)


def test_the_command_line_fits_what_python_fits(fitted):
    task, network = OwnData(str(fitted / "levels.npz")), load(fitted / "run")
    parts = [split.take(torch.arange(split.size), "cpu") for split in (task.train, task.validation)]
    columns = [[getattr(part, name) for part in parts] for name in ("inputs", "lengths", "labels")]
    rows = LabelledSeries(*map(torch.cat, columns))
    same = fit_series(rows, task.label_names, Wish()).network
    for name, value in same.state_dict().items():
        torch.testing.assert_close(value, network.state_dict()[name])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--accuracy", "0.9", "--mean-steps", "3"], "one quantity, not 2: --accuracy, --mean-steps"),
        (["--accuracy", "95"], "between 0 and 1"),
        (["--model", "recurrent", "--accuracy", "0.9"], "rankcode tune RUN --accuracy"),
        (["--accuracy", "0.9", "--epochs", "3"], "conflicts with options of a recurrent network"),
        (["--model", "kernels", "--cell", "gru"], "--model kernels conflicts with options of a recurrent network"),
        (["--model", "ensemble", "--epochs", "3"], "--model ensemble conflicts with options of a recurrent network"),
    ],
)
def test_wishes_that_cannot_be(fitted, arguments, message):
    says(["train", str(fitted / "levels.npz"), *arguments], message, status=2)


def test_a_wish_is_for_series(tmp_path):
    says(["train", "two-sequence", "--accuracy", "0.9"], "--accuracy is for series", status=2)


def test_tune_keeps_the_rule_and_its_promise(fitted, capsys):
    run = fitted / "run"
    main(["tune", str(run), "--accuracy", "0.9", "--kind", "threshold", "--device", "cpu"])
    said = capsys.readouterr().out
    assert "accuracy 0.9" in said and "from 48 rows" in said
    assert isinstance(load(run).rule, Threshold)
    promise = json.loads((run / "tuning.json").read_text())
    assert promise["wish"] == {"accuracy": 0.9} and promise["expected"]["accuracy"] >= 0.9
    assert (run / "tuning.png").stat().st_size > 5000
    main(["tune", str(run), "--kind", "optimal", "--device", "cpu"])
    assert isinstance(load(run).rule, OptimalStopping)
    says(["tune", str(run), "--mean-steps", "0.2"], "at least 1", status=2)
    says(["tune", str(run), "--false-alarms-per-hour", "1"], "--seconds-per-step", status=2)


def test_left_out_predictions_that_are_missing_or_damaged(fitted, tmp_path):
    shutil.copytree(fitted / "run", tmp_path / "run")
    kept = (tmp_path / "run" / "held_out.pt").read_bytes()
    before = (tmp_path / "run" / "best.safetensors").read_bytes()
    for content in (kept[:-20], kept[:-40] + bytes([kept[-40] ^ 64]) + kept[-39:], b""):
        (tmp_path / "run" / "held_out.pt").write_bytes(content)
        says(["tune", str(tmp_path / "run")], "held_out.pt is damaged", status=1)
    (tmp_path / "run" / "held_out.pt").unlink()
    says(["tune", str(tmp_path / "run")], "held_out.pt", "train again", status=1)
    assert (tmp_path / "run" / "best.safetensors").read_bytes() == before


def test_a_class_with_one_row_needs_a_recurrent_network(tmp_path):
    np.savez(tmp_path / "one.npz", X=np.random.default_rng(0).normal(size=(18, 12)), y=np.arange(18))
    says(["train", str(tmp_path / "one.npz")], "one.npz", "single row", "--model recurrent", status=1)


def test_tune_a_recurrent_network_on_its_validation_data(tmp_path, capsys):
    data = two_levels(tmp_path / "levels.npz")
    main(["train", data, "--model", "recurrent", "--epochs", "8", "--folder", str(tmp_path / "run"), *QUICK])
    main(["tune", str(tmp_path / "run"), "--alpha", "0.1", "--device", "cpu"])
    tuned = load(tmp_path / "run").rule
    report = evaluated(capsys, tmp_path / "run")
    assert tuned is not None and report["rows"] == 12
    train(tmp_path / "generated")
    main(["tune", str(tmp_path / "generated"), "--mean-steps", "20", "--kind", "threshold", "--device", "cpu"])
    assert isinstance(load(tmp_path / "generated").rule, Threshold)
