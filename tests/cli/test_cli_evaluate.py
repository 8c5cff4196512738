"""`rankcode evaluate`."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from small_data import CPU, QUICK, answers, evaluated, says, tones, two_levels

import rankcode as rc
from rankcode.cli.main import main
from rankcode.saving.run_folder import RunFolder
from rankcode.tasks import OwnData


@pytest.mark.parametrize(
    ("config", "said"),
    [("{", "config.json is damaged"), ("[]", "config.json is damaged"), ('{"format": 99}', "format 99")],
)
def test_a_run_folder_that_cannot_be_read(config, said):
    Path("run").mkdir()
    Path("run/config.json").write_text(config)
    says(["evaluate", "run"], said, status=1)


def test_a_run_on_sound_tells_milliseconds(trained, capsys, monkeypatch):
    monkeypatch.setenv("RANKCODE_DATA", str(trained / "kept"))
    main(["evaluate", str(trained / "sound-run"), *CPU])
    text = capsys.readouterr().out
    assert "heard          300 ms" in text and "deep " in text and "high " in text
    main(["tradeoff", str(trained / "sound-run"), *CPU, "--thresholds", "0.6", "0.9", "--output", "curve"])
    curve = json.loads(Path("curve.json").read_text())["curves"][str(trained / "sound-run")]
    assert len(curve["milliseconds"]) == 2 and all(212.5 <= each <= 300 for each in curve["milliseconds"])


def test_evaluate_where_the_data_is_now(trained, tmp_path, capsys):
    shutil.copytree(trained / "series-run", "run")
    written = json.loads(Path("run/config.json").read_text())
    written["task"]["path"] = str(tmp_path / "gone.npz")
    Path("run/config.json").write_text(json.dumps(written))
    says(["evaluate", "run", *CPU], "gone.npz")
    shutil.copy(trained / "levels.npz", "moved.npz")
    reports = []
    for run in (["run", "--data", "moved.npz"], [str(trained / "series-run")]):
        main(["evaluate", *run, *CPU, "--json"])
        reports.append(json.loads(capsys.readouterr().out))
    assert reports[0] == reports[1] and reports[0]["report"]["rows"] == 12
    says(["tradeoff", "run", *CPU], "gone.npz")
    main(["tradeoff", "run", "--data", "moved.npz", *CPU, "--thresholds", "0.9"])
    curve = json.loads(Path("run/tradeoff.json").read_text())["curves"]["run"]
    assert curve["accuracy"] == pytest.approx([reports[0]["report"]["accuracy"]])


def test_evaluate_on_other_data(trained, capsys):
    two_levels("other.npz", rows=30, names=("high", "low"))
    main(["evaluate", str(trained / "series-run"), "--on", "other.npz", *CPU])
    text = capsys.readouterr().out
    assert "on 30 rows of other.npz" in text and "high " in text
    report = evaluated(capsys, trained / "series-run", "--on", "other.npz")
    network = RunFolder(trained / "series-run").model()
    found = rc.predict(network, "other.npz", rc.Threshold(0.9))
    labels = np.load("other.npz")["y"].tolist()
    assert report["accuracy"] == sum(each.label == label for each, label in zip(found, labels, strict=True)) / 30 < 0.2
    assert report["mean_steps"] == pytest.approx(sum(each.steps for each in found) / 30)


def test_other_data_is_on_the_scale_of_the_training(trained, capsys):
    """The same rows, all higher: a scale of its own would not notice."""
    accuracies = []
    for offset in (0.0, 40.0):
        two_levels("other.npz", offset=offset)
        accuracies.append(evaluated(capsys, trained / "series-run", "--on", "other.npz")["accuracy"])
    assert accuracies[0] > 0.9 and accuracies[1] == 0.5  # all of them seem high


def test_labels_the_network_was_not_taught(trained, capsys):
    two_levels("other.npz", names=("low", "high", "other"))
    arguments = ["evaluate", str(trained / "series-run"), "--on", "other.npz", *CPU]
    says(arguments, "other.npz", "not trained on the label 'other'", "--skip-bad")
    main([*arguments, "--skip-bad"])
    said = capsys.readouterr()
    assert "on 40 rows of other.npz" in said.out
    assert "left out: " in said.err and "'other'" in said.err


def test_broken_files_of_other_data(trained, capsys):
    folder = tones(Path("sounds"), count=3)
    Path(folder, "deep", "1.wav").write_bytes(b"")
    arguments = ["evaluate", str(trained / "sound-run"), "--on", "sounds", *CPU]
    says(arguments, "deep/1.wav is empty", "--skip-bad")
    main([*arguments, "--skip-bad"])
    said = capsys.readouterr()
    assert "on 5 rows of sounds, at the end" in said.out and "heard          300 ms" in said.out
    assert "left out: " in said.err and "deep/1.wav is empty" in said.err


def test_other_data_of_another_kind(trained):
    tones(Path("sounds"), count=2)
    says(["evaluate", str(trained / "series-run"), "--on", "sounds", *CPU], "reads series", "sounds holds sound")
    says(["evaluate", str(trained / "series-run"), "--on", "nowhere", *CPU], "no file or folder nowhere")


def test_a_task_without_data_has_it_nowhere_else():
    main(["train", "spotting", *QUICK, "--examples", "32", "--folder", "run"])
    says(["evaluate", "run", "--data", "x", *CPU], "the task of run has no setting data")
    says(["evaluate", "run", "--on", "x.npz", *CPU], "no front end for raw data")


def test_classes_are_compared_by_name(trained, tmp_path, capsys):
    """Data with other classes is never scored as if they were the network's."""
    with np.load(trained / "levels.npz") as arrays:
        content = dict(arrays)
    content["y"] = np.char.add("my_", content["y"])
    np.savez(tmp_path / "renamed.npz", **content)
    run = str(trained / "series-run")
    says(
        ["evaluate", run, *CPU, "--data", str(tmp_path / "renamed.npz")], "renamed.npz is no longer what was trained on"
    )
    says(["evaluate", run, *CPU, "--on", str(tmp_path / "renamed.npz")], "was not trained on the label 'my_")
    network = rc.load(trained / "series-run")
    with pytest.raises(ValueError, match="the classes of the network are high, low, those of the data my_high, my_low"):
        rc.evaluate(network, OwnData(str(tmp_path / "renamed.npz")))


def test_what_is_left_out_of_the_runs_own_data_is_said(tmp_path, capsys):
    path = tmp_path / "levels.npz"
    two_levels(path)
    with np.load(path) as arrays:
        content = dict(arrays)
    content["X"][5, 2] = np.inf
    np.savez(path, **content)
    few = ["--hidden-size", "2", "--epochs", "1", "--no-progress", *CPU]
    main(["train", str(path), *few, "--skip-bad", "--folder", str(tmp_path / "run")])
    capsys.readouterr()
    main(["evaluate", str(tmp_path / "run"), *CPU])
    assert "left out: " in (said := capsys.readouterr().err) and "X[5] of train" in said


def test_what_does_not_go_together_is_said_of_the_right_thing(trained):
    run, data = str(trained / "series-run"), str(trained / "levels.npz")
    says(["evaluate", run, "--on", data, "--split", "validation", *CPU], "--on uses all rows of its data")
    says(["evaluate", run, "--alpha", "-2", *CPU], "--alpha must be at least 0")
    with pytest.raises(SystemExit) as stop:
        main(["predict", run, data, "--threshold", "7", *CPU])
    assert "threshold 7 is outside" in str(stop.value) and "levels.npz" not in str(stop.value)


class Lead(rc.Never):
    """A rule that is not part of rankcode."""


def test_runs_with_parts_from_python_can_be_read_on_the_command_line(trained, tmp_path, capsys):
    task = OwnData(str(trained / "levels.npz"))
    for name, objective in {
        "beta": rc.AtSpike(0.9, beta=lambda progress: 0.1),
        "steps": rc.AtSpike(rule=rc.StepThresholds((0.95, 0.9))),
        "patience": rc.AtSpike(rule=rc.Patience(rc.Threshold(0.6), 2)),
        "lead": rc.AtSpike(rule=Lead()),
    }.items():
        network = rc.Network(rc.cells.GRU(1, 4), 2)
        config = rc.Training(epochs=1, device="cpu", progress=False, folder=str(tmp_path / name))
        rc.fit(network, task, objective, config)
    data = str(trained / "levels.npz")
    for name in ("beta", "steps", "patience"):
        for model in (tmp_path / name, tmp_path / name / "best.safetensors"):
            main(["predict", str(model), data, *CPU, "--json"])
            lines = capsys.readouterr().out.splitlines()
            assert [json.loads(line)["steps"] for line in lines] == [
                each.steps for each in rc.predict(rc.load(tmp_path / name), data)
            ]
        expected = rc.evaluate(rc.load(tmp_path / name), task).mean_steps
        assert evaluated(capsys, tmp_path / name)["mean_steps"] == expected
    for command in (["predict", str(tmp_path / "lead"), data], ["evaluate", str(tmp_path / "lead")]):
        says([*command, *CPU], "names 'Lead' as objective.rule, which is not part of rankcode")
        main([*command, *CPU, "--threshold", "0.9"])


def test_classes_that_must_not_fire_stay_silent_at_another_threshold(trained, capsys):
    """The run answers "low" only at the end: so do evaluate, tradeoff and predict when they are given a threshold."""
    task = OwnData(str(trained / "levels.npz"))
    torch.manual_seed(0)
    network = rc.Network(rc.cells.GRU(1, 8), 2)
    config = rc.Training(epochs=40, batch_size=16, learning_rate=0.01, device="cpu", progress=False, folder="run")
    rc.fit(network, task, rc.AtSpike(rule=rc.Threshold(0.8, classes=(0,))), config)
    reports = []
    for options in ([], ["--threshold", "0.8"]):
        main(["evaluate", "run", *CPU, "--json", *options])
        (report,) = json.loads(capsys.readouterr().out).values()
        reports.append(report)
    assert reports[0] == reports[1] and 0.4 < report["fired"] < 0.6  # half of the rows are high
    assert rc.evaluate(network, task, rc.Threshold(0.8)).fired > 0.9
    main(["tradeoff", "run", *CPU, "--thresholds", "0.8"])
    assert json.loads(Path("run/tradeoff.json").read_text())["curves"]["run"]["fired"] == [report["fired"]]
    capsys.readouterr()
    main(["predict", "run", str(trained / "levels.npz"), *CPU, "--threshold", "0.7", "--json"])
    assert {each["label"] for each in answers(capsys) if each["fired"]} == {"high"}


def test_the_confusion_matrix_as_numbers_and_as_a_picture(trained, capsys):
    pytest.importorskip("matplotlib")
    run = str(trained / "series-run")
    for _ in range(2):  # its own file is replaced
        main(["evaluate", run, *CPU, "--json", "--plot", "confusion.png"])
        captured = capsys.readouterr()
        assert "wrote confusion.png" in captured.err
        report = json.loads(captured.out)["report"]
    assert [sum(row) for row in report["confusion"]] == [each["rows"] for each in report["classes"]]
    right = sum(row[label] for label, row in enumerate(report["confusion"]))
    assert right / report["rows"] == report["accuracy"]
    assert Path("confusion.png").read_bytes().startswith(b"\x89PNG")
    Path("mine.png").write_bytes(b"\x89PNG")
    says(["evaluate", run, *CPU, "--plot", "mine.png"], "did not write it", "--plot", status=2)


def test_simple_classifiers_are_named_beside_a_network_on_series(trained, capsys, monkeypatch):
    monkeypatch.setenv("RANKCODE_DATA", str(trained / "kept"))
    main(["evaluate", str(trained / "series-run"), *CPU])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "to compare" in line]
    assert line.endswith("  the most common class 50.00 %, the nearest neighbour 100.00 %, from whole rows")
    assert evaluated(capsys, trained / "series-run")["baselines"] == {
        "most common class": 0.5,
        "nearest neighbour": 1.0,
    }
    main(["evaluate", str(trained / "sound-run"), *CPU])
    main(["evaluate", str(trained / "series-run"), "--on", str(trained / "levels.npz"), *CPU])
    assert "to compare" not in capsys.readouterr().out
