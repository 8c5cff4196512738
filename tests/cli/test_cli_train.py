"""`rankcode train`."""

import json
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import csv, parquet
from small_data import CPU, QUICK, SMALL, answers, evaluated, says, tones, two_levels

from rankcode.cli.main import main
from rankcode.saving.run_folder import RunFolder
from rankcode.tasks import OwnData

UCR = Path(__file__).parents[3] / "shared" / "data" / "ucr"


@pytest.mark.parametrize(("cell", "units"), [("lstm", 4), ("gru", 4), ("conv-lstm", 2), ("lif", 8), ("conv-lif", 2)])
def test_every_cell_trains_on_images(tmp_path, cell, units, capsys):
    arguments = ["--epochs", "1", "--device", "cpu", "--no-progress", "--hidden-size", str(units), "--cell", cell]
    main(["train", "temporal-digits", *arguments, "--folder", str(tmp_path / "run"), "--beta", "0:0.4,0.5:0.1"])
    main(["evaluate", str(tmp_path / "run"), "--device", "cpu"])
    assert "359 test rows" in capsys.readouterr().out


def test_a_run_on_own_data_is_a_run_like_any_other(trained, capsys):
    written = RunFolder(trained / "series-run").config()
    assert written["task"] == {
        "kind": "OwnData",
        "path": str(trained / "levels.npz"),
        "validation_share": 0.2,
        "test_share": 0.2,
        "split_seed": 0,
        "augment": False,
        "context": 10,
        "skip_bad": False,
        "layout": "auto",
        "label": None,
        "fingerprint": written["task"]["fingerprint"],
    }
    assert written["network"]["label_names"] == ["high", "low"]
    task = OwnData(str(trained / "levels.npz"))
    again = RunFolder(trained / "series-run").task()
    assert task == again and task.fingerprint == ""
    assert task.num_classes == 2 and task.fingerprint == again.fingerprint  # which is known once the data was read
    main(["evaluate", str(trained / "series-run"), *CPU])
    text = capsys.readouterr().out
    assert "on 12 test rows" in text and "high " in text and "low " in text and "heard" not in text
    report = evaluated(capsys, trained / "series-run")
    assert [each["name"] for each in report["classes"]] == ["high", "low"]
    assert report["accuracy"] > 0.9 and report["mean_steps"] < 8 and report["milliseconds"] is None


@pytest.mark.parametrize("how", ["absolute", "relative"])
def test_the_default_folder_is_among_the_runs_here_and_not_beside_the_data(tmp_path, how, monkeypatch, capsys):
    (tmp_path / "data").mkdir()
    two_levels(tmp_path / "data" / "levels.npz")
    path = str(tmp_path / "data" / "levels.npz") if how == "absolute" else "../data/levels.npz"
    for number in (1, 2):  # an earlier run is not overwritten
        main(["train", path, *QUICK, "--examples", "32"])
        runs = sorted(run.parent.name for run in Path("runs").glob("*/config.json"))
        assert runs == ["levels-until-spike", "levels-until-spike-2"][:number]
    assert [file.name for file in (tmp_path / "data").iterdir()] == ["levels.npz"]
    said = capsys.readouterr().err
    assert "levels.npz: " in said and " training, " in said and "2 classes (high, low)" in said and "steps of" in said
    monkeypatch.chdir(tmp_path)
    main(["evaluate", "here/runs/levels-until-spike", *CPU])  # the data is found from another folder too
    assert "12 test rows" in capsys.readouterr().out


def test_what_is_left_out_is_said(tmp_path, capsys):
    rows = [f"{'ab'[k % 2]}\t{k % 2}\t{k}" for k in range(20)]
    rows[5] = "b\tabc\t1"
    (tmp_path / "rows.tsv").write_text("\n".join(rows))
    arguments = ["train", str(tmp_path / "rows.tsv"), *QUICK, "--examples", "32", "--folder", "run"]
    says(arguments, "rows.tsv, line 6", "'abc'")
    assert not Path("run").exists()
    main([*arguments, "--skip-bad"])
    assert capsys.readouterr().err.count("left out: ") == 1
    assert RunFolder("run").config()["task"]["skip_bad"] is True


def test_a_broken_recording_is_left_out_on_request(tmp_path, capsys):
    folder = tones(tmp_path / "sounds", count=5)
    Path(folder, "deep", "2.wav").write_bytes(b"")
    arguments = ["train", folder, *QUICK, "--examples", "32", "--folder", "run"]
    says(arguments, "deep/2.wav is empty", "--skip-bad")
    main([*arguments, "--skip-bad", "--augment"])
    assert "left out: " in (said := capsys.readouterr().err) and "deep/2.wav is empty" in said
    assert RunFolder("run").config()["task"]["augment"] is True


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--data", "x"], "--data does not apply to"),
        (["--augment"], "--augment is for sound"),
        (["--cell", "conv-lstm"], "reads images"),
    ],
)
def test_what_means_nothing_for_series(options, said, tmp_path):
    says(["train", two_levels(tmp_path / "levels.npz"), *QUICK, "--examples", "32", *options], said)
    assert not list(Path().rglob("*.safetensors"))


@pytest.mark.skipif(not UCR.exists(), reason="the UCR archive is not on this machine")
def test_speakers_are_told_apart_early(capsys):
    """Nine speakers of Japanese vowels, 7 to 29 steps of twelve numbers each: one in nine is chance."""
    options = "--cell gru --hidden-size 32 --epochs 40 --batch-size 32 --learning-rate 0.01 --validate-every 20"
    main(["train", str(UCR / "JapaneseVowels"), *options.split(), "--no-progress", "--folder", "run", *CPU])
    report = evaluated(capsys, "run")
    assert [each["name"] for each in report["classes"]] == list("123456789") and report["rows"] == 370
    assert report["accuracy"] > 0.85
    assert report["mean_steps"] < 10 and report["earliness"] < 0.65  # they are 15.6 steps long on average
    assert report["fired"] > 0.7


def test_the_end_of_training_says_what_was_kept_and_what_to_try(trained, capsys):
    for kept in ("best", "last"):
        main(["train", "spotting", *SMALL, "--select", "loss", "--finish-with", kept, "--folder", f"the {kept}"])
        records = RunFolder(f"the {kept}").records()
        record = records[-1] if kept == "last" else min(records, key=lambda each: each["validation"]["loss"])
        accuracy, steps = 100 * record["validation"]["accuracy"], record["validation"]["mean_steps"]
        rows = record["validation"]["rows"]
        text = capsys.readouterr().out
        assert text.startswith(
            f"kept the {kept} model: accuracy {accuracy:.2f} %, mean steps {steps:.2f} on {rows:,} validation rows\n"
        )
        assert f"rankcode evaluate 'the {kept}' " in text and "predict" not in text  # spotting has no files to answer
    few = ["--hidden-size", "2", "--epochs", "1", "--no-progress", *CPU]
    main(["train", str(trained / "levels.npz"), *few, "--threshold", "1", "--folder", "run"])
    text = capsys.readouterr().out
    assert "none of the validation rows fire: train for longer" in text and "rankcode predict run FILE" in text
    main(["train", str(trained / "levels.npz"), *few, "--objective", "at-end"])
    assert "fires" not in capsys.readouterr().out


def test_the_split_can_be_chosen(tmp_path, capsys):
    path = two_levels(tmp_path / "levels.npz")
    few = [*QUICK, "--examples", "32", "--folder"]
    main(["train", path, *few, "one", "--validation-share", "0.5", "--test-share", "0.1", "--split-seed", "3"])
    assert "26 training, 28 validation, 6 test rows" in capsys.readouterr().err
    written = RunFolder("one").config()["task"]
    assert [written[name] for name in ("validation_share", "test_share", "split_seed")] == [0.5, 0.1, 3]
    says(["train", path, *few, "two", "--validation-share", "1.5"], "--validation-share must be between", status=2)
    says(["train", path, *few, "two", "--split-seed", "-1"], "--split-seed must be at least 0, not -1", status=2)


def test_wrong_arguments_are_refused_before_data_is_read(tmp_path, capsys):
    path = two_levels(tmp_path / "levels.npz")
    says(["train", path, "--precision", "float16", *CPU], "float16 is for GPUs", status=2)
    says(["train", path, "--decay", "0.5", *CPU], "decay is for lif and conv-lif, not for gru", status=2)
    assert capsys.readouterr().err.count("\n") == 2 and list(Path().iterdir()) == []


def test_a_run_is_named_after_the_data_set(tmp_path):
    for split, rows in (("TRAIN", 20), ("TEST", 10)):
        lines = [f"{k % 2}\t{k}\t{4 * (k % 2)}\t{k % 2}" for k in range(rows)]
        (tmp_path / f"Heart.beats_{split}.tsv").write_text("\n".join(lines))
    main(["train", str(tmp_path / "Heart.beats_TRAIN.tsv"), *QUICK, "--examples", "32"])
    assert [path.name for path in Path("runs").iterdir()] == ["Heart.beats-until-spike"]


def test_data_may_be_a_link(tmp_path):
    Path(two_levels(tmp_path / "levels.npz")).rename(tmp_path / "blob-3f2a")
    Path("link.npz").symlink_to(tmp_path / "blob-3f2a")
    main(["train", "link.npz", *QUICK, "--examples", "32"])
    assert RunFolder("runs/link-until-spike").config()["task"]["path"] == str(Path("link.npz").absolute())


def test_tables_from_the_first_command_to_the_last(tmp_path, capsys):
    """A long .csv trains, a .parquet without labels is answered, and a .csv with other columns is evaluated."""
    random = np.random.default_rng(0)
    ids, steps = np.repeat(np.arange(40), 6), np.tile(np.arange(6), 40)
    table = {"case_id": ids, "step": steps, "noise": random.standard_normal(240), "level": ids % 2 * 4.0}
    named = table | {"kind": np.array(["low", "high"])[ids % 2]}
    csv.write_csv(pyarrow.table(named), tmp_path / "levels.csv")
    arguments = [*QUICK, "--epochs", "30", "--folder", "run", "--objective", "at-end"]
    says(["train", str(tmp_path / "levels.csv"), *arguments], "which column holds the labels: --label names it")
    main(["train", str(tmp_path / "levels.csv"), *arguments, "--label", "kind"])
    form = "long form with id 'case_id', time 'step' and values 'noise', 'level'; label column 'kind'"
    assert form in capsys.readouterr().err
    table["level"], table["note"] = table["level"][::-1], ["text"] * 240
    turned = pyarrow.table({name: table[name] for name in reversed(table)})
    parquet.write_table(turned, tmp_path / "new.parquet")
    main(["predict", "run", str(tmp_path / "new.parquet"), *CPU, "--json"])
    found = answers(capsys)
    assert [each["label"] for each in found] == ["high", "low"] * 20
    assert found[3]["from"] == f"{tmp_path / 'new.parquet'}, id 3"
    main(["predict", "run", str(tmp_path / "levels.csv"), *CPU, "--json"])  # its labels are not read
    assert [each["label"] for each in answers(capsys)] == ["low", "high"] * 20
    csv.write_csv(turned.append_column("class", [np.array(["high", "low"])[ids % 2]]), tmp_path / "others.csv")
    main(["evaluate", "run", "--on", str(tmp_path / "others.csv"), *CPU, "--json"])
    report = json.loads(capsys.readouterr().out)["at the end"]
    assert report["rows"] == 40 and report["accuracy"] == 1


def test_series_are_fitted_by_one_process(monkeypatch):
    two_levels("levels.npz")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    says(["train", "levels.npz", *CPU], "fitted by one process", "--model recurrent", status=2)
