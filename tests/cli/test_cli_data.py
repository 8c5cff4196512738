"""The command line on data: a person's own, and the public data sets."""

import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
import threading
import wave
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch

import rankcode as rc
from rankcode.cli import arguments, commands, names
from rankcode.cli import main as cli
from rankcode.cli.commands import COMMANDS
from rankcode.cli.main import main
from rankcode.data import downloads
from rankcode.saving.run_folder import RunFolder
from rankcode.tasks import OwnData, SpeechCommands, Spotting, TemporalMNIST, temporal_mnist

UCR = Path(__file__).parents[3] / "shared" / "data" / "ucr"
QUICK = ["--batch-size", "16", "--hidden-size", "4", "--learning-rate", "0.01", "--device", "cpu", "--no-progress"]
CPU = ["--device", "cpu"]


@pytest.fixture(autouse=True)
def everything_is_kept_here(monkeypatch, tmp_path):
    """A test may write nowhere else."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("RANKCODE_DATA", str(tmp_path / "kept"))


def two_levels(path, rows=60, names=("low", "high"), offset=0.0):
    """Series of 8 steps: of the first class about 0, of the second about 4."""
    random = np.random.default_rng(0)
    labels = np.array(list(names) * (rows // len(names)))
    values = random.normal(size=(rows, 8)) + 4 * (labels == names[1])[:, None] + offset
    np.savez(path, X=values.astype(np.float32), y=labels)
    return str(path)


def tone(path, hertz, seconds=0.3):
    path.parent.mkdir(parents=True, exist_ok=True)
    samples = 0.3 * np.sin(2 * math.pi * hertz * np.arange(round(16_000 * seconds)) / 16_000)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes((samples * 32767).astype("<i2").tobytes())
    return path


def tones(folder, words=("deep", "high"), count=10):
    for word in words:
        for number in range(count):
            tone(folder / word / f"{number}.wav", (300 if word == "deep" else 3000) + 20 * number)
    return str(folder)


def says(arguments, *parts):
    """The command stops, and says why in one line."""
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    message = str(stop.value)
    assert stop.value.code not in (0, None)
    assert message.startswith("rankcode: ") and "\n" not in message and "RANKCODE_TRACEBACK" not in message, message
    assert all(part in message for part in parts), message


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with series and sound, and a run on each."""
    place = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANKCODE_DATA", str(place / "kept"))
        series, sound = two_levels(place / "levels.npz"), tones(place / "sounds")
        main(["train", series, *QUICK, "--epochs", "40", "--folder", str(place / "series-run"), "--threshold", "0.9"])
        main(["train", sound, *QUICK, "--epochs", "15", "--folder", str(place / "sound-run"), "--objective", "at-end"])
    return place


# Training on data of one's own


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
        "fingerprint": written["task"]["fingerprint"],
    }
    assert written["network"]["label_names"] == ["high", "low"]
    task = OwnData(str(trained / "levels.npz"))
    again = RunFolder(trained / "series-run").task()
    assert task != again
    assert task.num_classes == 2 and task == again  # it is known once it was read
    main(["evaluate", str(trained / "series-run"), *CPU])
    text = capsys.readouterr().out
    assert "on 12 test rows" in text and "high " in text and "low " in text and "heard" not in text
    main(["evaluate", str(trained / "series-run"), *CPU, "--json"])
    report = json.loads(capsys.readouterr().out)["report"]
    assert [each["name"] for each in report["classes"]] == ["high", "low"]
    assert report["accuracy"] > 0.9 and report["mean_steps"] < 8 and report["milliseconds"] is None


def test_a_run_on_sound_tells_milliseconds(trained, capsys, monkeypatch):
    monkeypatch.setenv("RANKCODE_DATA", str(trained / "kept"))
    main(["evaluate", str(trained / "sound-run"), *CPU])
    text = capsys.readouterr().out
    assert "heard          300 ms" in text and "deep " in text and "high " in text
    main(["tradeoff", str(trained / "sound-run"), *CPU, "--thresholds", "0.6", "0.9"])
    curve = json.loads(Path("tradeoff.json").read_text())["curves"][str(trained / "sound-run")]
    assert len(curve["milliseconds"]) == 2 and all(212.5 <= each <= 300 for each in curve["milliseconds"])


@pytest.mark.parametrize("how", ["absolute", "relative", "from below"])
def test_the_default_folder_is_among_the_runs_here_and_not_beside_the_data(tmp_path, how):
    (tmp_path / "data").mkdir()
    two_levels(tmp_path / "data" / "levels.npz")
    before = sorted((tmp_path / "data").iterdir())
    path = {"absolute": str(tmp_path / "data" / "levels.npz"), "from below": "../data/levels.npz"}.get(how)
    if path is None:
        shutil.copytree(tmp_path / "data", "data")
        path = "data/levels.npz"
    for number in (1, 2):
        main(["train", path, *QUICK, "--examples", "32"])
        runs = list(Path("runs").glob("*/config.json"))
        assert len(runs) == number and all("levels" in run.parent.name for run in runs)
    assert sorted((tmp_path / "data").iterdir()) == before


def test_a_relative_path_can_be_used_from_another_folder(tmp_path, monkeypatch, capsys):
    two_levels("levels.npz")
    main(["train", "levels.npz", *QUICK, "--examples", "32", "--folder", "run"])
    monkeypatch.chdir(tmp_path)
    main(["evaluate", "here/run", *CPU])
    assert "12 test rows" in capsys.readouterr().out


def test_a_run_that_was_cut_off_goes_on(tmp_path, monkeypatch):
    from rankcode.training import loop as training

    path = two_levels(tmp_path / "levels.npz")
    settings = [*QUICK, "--examples", "320", "--validate-every", "5", "--folder"]
    main(["train", path, *settings, "whole"])
    real, calls = training.evaluate, []

    def cut_off(*arguments, **options):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(training, "evaluate", cut_off)
        says(["train", path, *settings, "cut"], "rankcode resume cut")
    assert not Path("cut/last.safetensors").exists()
    main(["resume", "cut", *CPU])
    assert Path("cut/last.safetensors").read_bytes() == Path("whole/last.safetensors").read_bytes()


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


def test_a_hidden_layer(tmp_path):
    path = two_levels(tmp_path / "levels.npz")
    main(["train", path, *QUICK, "--examples", "32", "--readout-layer-size", "7", "--cell", "gru", "--folder", "run"])
    readout = RunFolder("run").model().readout
    assert [type(layer).__name__ for layer in readout] == ["Linear", "ReLU", "Linear"]
    assert (readout[0].in_features, readout[0].out_features, readout[2].out_features) == (4, 7, 1)
    main(["evaluate", "run", *CPU])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", "nonsense"], "there is no task and no data 'nonsense': name a path, or one of spotting"),
        (["train", "nonsense.npz"], "no data 'nonsense.npz'"),
        (["train", "."], "is no data that rankcode reads"),
        (["train", "spotting", "--data", "x"], "--data means nothing for spotting"),
        (["train", "two-sequence", "--augment"], "--augment means nothing for two-sequence"),
        (["train", "temporal-digits", "--skip-bad"], "--skip-bad means nothing for temporal-digits"),
        (["train", "temporal-digits", "--augment"], "--augment means nothing for temporal-digits"),
        (["train", "temporal-mnist", "--data", "none"], "rankcode data mnist --to"),
        (["train", "temporal-mnist"], "rankcode data mnist --to"),
        (["train", "speech-commands", "--data", "none"], "rankcode data speech-commands --to"),
        (
            ["train", "spotting", "--readout-layer-size", "4", "--cell", "lif"],
            "for lstm and gru, not for lif",
        ),
        (["evaluate", "nowhere", "--on", "x"], "nowhere is not a run folder"),
        (["predict", "nowhere", "x.wav"], "no model file nowhere"),
        (["predict", ".", "x.wav"], "not a run folder"),
        (["data", "imagenet"], "imagenet"),
    ],
)
def test_a_mistake_is_one_line(arguments, said, capsys):
    says(arguments, said)
    assert capsys.readouterr().out == "" and list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--data", "x"], "--data means nothing for"),
        (["--augment"], "--augment is for sound"),
        (["--cell", "conv-lstm"], "reads images"),
    ],
)
def test_what_means_nothing_for_series(options, said, tmp_path):
    says(["train", two_levels(tmp_path / "levels.npz"), *QUICK, "--examples", "32", *options], said)
    assert not list(Path().rglob("*.safetensors"))


def test_only_one_class(tmp_path):
    says(["train", two_levels(tmp_path / "one.npz", names=("same", "same"))], "only one class, 'same'")


# Evaluating on data that is elsewhere


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
    curve = json.loads(Path("tradeoff.json").read_text())["curves"]["run"]
    assert curve["accuracy"] == pytest.approx([reports[0]["report"]["accuracy"]])


def test_evaluate_on_other_data(trained, capsys):
    two_levels("other.npz", rows=30, names=("high", "low"))
    main(["evaluate", str(trained / "series-run"), "--on", "other.npz", *CPU])
    text = capsys.readouterr().out
    assert "on 30 rows of other.npz" in text and "high " in text
    main(["evaluate", str(trained / "series-run"), "--on", "other.npz", *CPU, "--json"])
    report = json.loads(capsys.readouterr().out)["report"]
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
        main(["evaluate", str(trained / "series-run"), "--on", "other.npz", *CPU, "--json"])
        accuracies.append(json.loads(capsys.readouterr().out)["report"]["accuracy"])
    assert accuracies[0] > 0.9 and accuracies[1] == 0.5  # all of them seem high


def test_labels_the_network_was_not_taught(trained, capsys):
    two_levels("other.npz", names=("low", "high", "other"))
    arguments = ["evaluate", str(trained / "series-run"), "--on", "other.npz", *CPU]
    says(arguments, "other.npz", "not taught the label 'other'", "--skip-bad")
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
    says(["evaluate", "run", "--data", "x", *CPU], "the task spotting has no setting data")
    says(["evaluate", "run", "--on", "x.npz", *CPU], "does not know how raw data")


# Predicting


def lines(capsys):
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_predict_sound_files_and_folders(trained, capsys):
    one, run = tone(Path("one.wav"), 320), str(trained / "sound-run")
    main(["predict", run, "one.wav", *CPU])
    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == ["answer", "probability", "steps", "heard", "from"]
    assert row.split()[0] == "deep" and " ms " in row and row.split()[5] == "one.wav"
    tones(Path("folder"), count=2)
    main(["predict", run, "folder", "one.wav", *CPU, "--json"])
    found = lines(capsys)
    assert [each["from"] for each in found] == [
        *(f"folder/{word}/{k}.wav" for word in ("deep", "high") for k in (0, 1)),
        "one.wav",
    ]
    assert [each["label"] for each in found] == ["deep", "deep", "high", "high", "deep"]
    (expected,) = rc.predict(RunFolder(run).model(), one)
    assert found[-1] == {"from": "one.wav", **expected._asdict()}


def test_predict_with_a_threshold_of_ones_own(trained, capsys):
    tone(Path("one.wav"), 320)
    for threshold, fired in ((0.5, True), (1.0, False)):
        main(["predict", str(trained / "sound-run"), "one.wav", *CPU, "--threshold", str(threshold), "--json"])
        (found,) = lines(capsys)
        steps = 1 if fired else 11
        assert (found["fired"], found["steps"]) == (fired, steps)
        assert found["milliseconds"] == min(300, 10 * (steps - 1) + 212.5)
    main(["predict", str(trained / "sound-run"), "one.wav", *CPU, "--threshold", "1.0"])
    assert "(did not fire)" in capsys.readouterr().out


def test_predict_the_rows_of_a_file(trained, capsys):
    two_levels("other.npz", rows=6)
    main(["predict", str(trained / "series-run"), "other.npz", *CPU, "--json"])
    found = lines(capsys)
    assert [each["from"] for each in found] == [f"other.npz, row {row}" for row in range(1, 7)]
    expected = rc.predict(RunFolder(trained / "series-run").model(), "other.npz", rc.Threshold(0.9))
    assert [{**each, "from": ""} for each in found] == [{"from": "", **each._asdict()} for each in expected]
    main(["predict", str(trained / "series-run"), "other.npz", *CPU])
    assert len(capsys.readouterr().out.splitlines()) == 7


def test_predict_with_a_model_file(trained, capsys):
    shutil.copy(trained / "series-run" / "best.safetensors", "model.safetensors")
    two_levels("other.npz", rows=6)
    main(["predict", "model.safetensors", "other.npz", *CPU, "--json"])
    network = rc.load("model.safetensors")
    assert network.rule == rc.load(trained / "series-run").rule == rc.Threshold(0.9)
    expected = rc.predict(network, "other.npz", rc.Threshold(0.9))
    assert [each["probability"] for each in lines(capsys)] == [each.probability for each in expected]


def test_a_broken_file_among_good_ones(trained, capsys):
    for name in ("a", "c"):
        tone(Path("folder", f"{name}.wav"), 320)
    Path("folder", "b.wav").write_bytes(tone(Path("b.wav"), 320).read_bytes()[:-100])
    arguments = ["predict", str(trained / "sound-run"), "folder", *CPU, "--json"]
    says(arguments, "folder/b.wav is cut short", "--skip-bad")
    capsys.readouterr()
    main([*arguments, "--skip-bad"])
    said = capsys.readouterr()
    assert [json.loads(line)["from"] for line in said.out.splitlines()] == ["folder/a.wav", "folder/c.wav"]
    assert said.err.count("left out: ") == 1 and "folder/b.wav is cut short" in said.err


def test_many_files_one_of_them_broken(trained, capsys):
    files = [tone(Path("folder", f"{number:03}.wav"), 300 + 40 * number, 0.23) for number in range(140)]
    files.pop(70).write_bytes(b"")
    main(["predict", str(trained / "sound-run"), "folder", *CPU, "--json", "--skip-bad"])
    found = lines(capsys)
    assert [each["from"] for each in found] == [str(file) for file in files]
    expected = rc.predict(RunFolder(trained / "sound-run").model(), files)
    assert [each["label"] for each in found] == [each.label for each in expected]
    assert {each.label for each in expected} == {"deep", "high"}
    assert [each["steps"] for each in found] == [each.steps for each in expected]


def test_what_a_folder_hides_is_not_asked_for(trained, capsys):
    tone(Path("folder", "a.wav"), 320)
    Path("folder", "._a.wav").write_bytes(b"what another system keeps beside it")
    main(["predict", str(trained / "sound-run"), "folder", *CPU, "--json"])
    assert [each["from"] for each in lines(capsys)] == ["folder/a.wav"]


def test_nothing_to_predict(trained):
    Path("empty").mkdir()
    says(["predict", str(trained / "sound-run"), "empty", *CPU], "no sound file in empty")
    says(["predict", str(trained / "sound-run"), "none.wav", *CPU], "no file none.wav")
    says(["predict", str(trained / "sound-run"), *CPU])
    two_levels("levels.npz")
    says(["predict", str(trained / "sound-run"), "levels.npz", *CPU], "levels.npz is not sound")
    tone(Path("one.wav"), 300)
    says(["predict", str(trained / "series-run"), "one.wav", *CPU], "one.wav")


def test_a_run_on_a_task_without_raw_data():
    main(["train", "spotting", *QUICK, "--examples", "32", "--folder", "run"])
    says(["predict", "run", "x.wav", *CPU], "x.wav")


# The public data sets


@pytest.fixture
def published(tmp_path, monkeypatch):
    """A server on this machine with the files of a small MNIST."""
    random, folder, files = np.random.default_rng(0), tmp_path / "published", []
    folder.mkdir()
    for split, count in (("train", 40), ("t10k", 20)):
        labels = np.arange(count) % 10
        images = random.integers(0, 40, (count, 28, 28))
        images[np.arange(count), 2 * labels + 2] = 255  # a line that tells the digit
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
            content = bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()
            (folder / f"{split}-{kind}-ubyte").write_bytes(content)

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    monkeypatch.setattr(temporal_mnist, "HELD_OUT", 10)
    monkeypatch.setenv("no_proxy", "*")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        for path in sorted(folder.iterdir()):
            content, address = path.read_bytes(), f"http://127.0.0.1:{server.server_port}/{path.name}"
            checksum = hashlib.sha256(content).hexdigest()
            files.append(downloads.PublishedFile(path.name, (address,), len(content), checksum))
        monkeypatch.setitem(downloads.DATA_SETS, "mnist", downloads.DataSet(tuple(files)))
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield folder
        server.shutdown()
        thread.join()


def test_data_is_downloaded_and_trained_on(published, tmp_path, capsys):
    main(["data", "mnist"])
    assert capsys.readouterr().out == f"mnist is in {tmp_path / 'kept' / 'mnist'}\n"
    assert len(list((tmp_path / "kept" / "mnist").iterdir())) == 4
    main(["train", "temporal-mnist", *QUICK, "--examples", "30", "--folder", "run"])
    main(["evaluate", "run", *CPU])
    assert "on 20 test rows" in capsys.readouterr().out
    written = RunFolder("run").config()
    assert written["task"] == {"kind": "TemporalMNIST", "data": None, "steps": 10, "flat": True, "augment": False}
    network = RunFolder("run").model()
    images = TemporalMNIST().test.inputs
    assert len(rc.predict(network, images)) == 20
    assert {each.label for each in rc.predict(network, images)} <= set("0123456789")


def test_data_is_put_where_it_is_asked_for_and_found_there(published, tmp_path, capsys):
    main(["data", "mnist", "--to", "digits"])
    assert capsys.readouterr().out == f"mnist is in {tmp_path / 'here' / 'digits'}\n"
    arguments = ["--cell", "conv-lstm", *QUICK, "--examples", "16", "--hidden-size", "2"]
    main(["train", "temporal-mnist", "--data", "digits", *arguments, "--folder", "run"])
    written = RunFolder("run").config()["task"]
    assert written["data"] == str(tmp_path / "here" / "digits") and written["flat"] is False
    Path("digits").rename("moved")
    says(["evaluate", "run", *CPU], "rankcode data mnist --to", "digits")
    capsys.readouterr()
    main(["evaluate", "run", "--data", "moved", *CPU])
    assert "on 20 test rows" in capsys.readouterr().out


def test_data_that_cannot_be_had_is_one_line(published, monkeypatch):
    monkeypatch.setattr(downloads, "PAUSE", 0.0)
    (published / "t10k-labels-idx1-ubyte").unlink()
    says(["data", "mnist"], "t10k-labels-idx1-ubyte", "404")


# Arguments with and without tyro


ARGUMENTS = [
    "train data/rows.npz",
    "train speech-commands --data somewhere --augment --skip-bad --readout-layer-size 256 --cell gru --num-layers 2",
    "train x --no-augment --no-skip-bad --threshold 0.9 --beta 0:0.4,0.5:0.1 --epochs 3 --batch-size 7 --no-progress",
    "evaluate run",
    "evaluate run --data moved --skip-bad --json --device cpu --threshold 0.8 --split validation",
    "evaluate run --on other.npz --model last --alpha 0.1",
    "tradeoff run other --data moved --thresholds 0.5 0.9 --device cpu",
    "predict run a.wav",
    "predict run a.wav b.wav folder --threshold 0.9 --json --skip-bad --device cpu",
    "predict model.safetensors rows.tsv",
    "data mnist",
    "data speech-commands --to somewhere",
    "data speech-commands-v0.02",
]


@pytest.mark.parametrize("line", ARGUMENTS)
def test_the_standard_library_reads_the_same_arguments_as_tyro(line):
    pytest.importorskip("tyro")
    one, other = cli._parse(line.split()), arguments.parse(COMMANDS, line.split())
    assert one == other and type(one) is type(other) is COMMANDS[line.split()[0]]


def test_what_arguments_mean():
    found = arguments.parse(COMMANDS, ARGUMENTS[1].split())
    assert (found.task, found.data, found.augment, found.skip_bad) == ("speech-commands", "somewhere", True, True)
    assert (found.readout_layer_size, found.cell, found.num_layers, found.training) == (256, "gru", 2, rc.Training())
    found = arguments.parse(COMMANDS, ARGUMENTS[8].split())
    assert found == commands.Predict("run", ("a.wav", "b.wav", "folder"), 0.9, True, "cpu", True)
    assert arguments.parse(COMMANDS, ["data", "mnist", "--to", "x"]) == commands.Data("mnist", "x")


def test_without_tyro_the_commands_run(trained):
    """On a machine with the core alone, in a process of its own: each of its words, one after the other."""
    blocked = ("tyro", "matplotlib", "sklearn", "soundfile", "soxr", "tensorboard")
    code = f"import sys; [sys.modules.__setitem__(name, None) for name in {blocked}]; import json\n"
    code += "from rankcode.cli.main import main\nfor line in json.loads(sys.argv[1]): main(line)"
    two_levels("levels.npz")
    tone(Path("one.wav"), 320)
    words = [
        ["train", "levels.npz", *QUICK, "--examples", "32", "--folder", "run", "--readout-layer-size", "3"],
        ["evaluate", "run", "--on", "levels.npz", *CPU],
        ["predict", "run", "levels.npz", *CPU],
        ["predict", str(trained / "sound-run"), "one.wav", "--json", *CPU],
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(words)], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert "on 60 rows of levels.npz" in done.stdout and "levels.npz, row 60" in done.stdout
    assert json.loads(done.stdout.splitlines()[-1])["label"] == "deep"


@pytest.mark.parametrize("command", ["predict", "data"])
def test_new_commands_explain_their_arguments(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert not stop.value.code
    text = " ".join(capsys.readouterr().out.split())
    assert {"predict": "Sound files, folders of them", "data": "RANKCODE_DATA"}[command] in text


# Tasks by name


def test_a_name_is_a_task_and_a_path_is_own_data(tmp_path):
    assert names.named_task("spotting") == Spotting()
    Path("spotting").mkdir()
    assert names.named_task("spotting") == Spotting(), "a task comes before a folder of its name"
    assert names.named_task("./spotting") == OwnData(str(tmp_path / "here" / "spotting"))
    assert names.named_task("speech-commands", data="x", augment=True, skip_bad=None) == SpeechCommands(
        str(tmp_path / "here" / "x"), augment=True
    )


@pytest.mark.parametrize(
    ("text", "beta"), [("0", 0.0), ("-0.5", -0.5), ("0:0.4,0.5:0.1", rc.Switch((0, 0.4), (0.5, 0.1)))]
)
def test_beta_is_a_number_or_a_schedule(text, beta):
    assert names.read_beta(text) == beta


@pytest.mark.parametrize("text", ["", "inf", "0:", "0:1:2", "0.5:1,0.2:3", "a:b"])
def test_what_is_no_beta(text):
    with pytest.raises(ValueError, match="beta must be a number"):
        names.read_beta(text)


# The real thing


@pytest.mark.skipif(not UCR.exists(), reason="the UCR archive is not on this machine")
def test_speakers_are_told_apart_early(capsys):
    """Nine speakers of Japanese vowels, 7 to 29 steps of twelve numbers each: one in nine is chance."""
    options = "--cell gru --hidden-size 32 --epochs 40 --batch-size 32 --learning-rate 0.01 --validate-every 20"
    main(["train", str(UCR / "JapaneseVowels"), *options.split(), "--no-progress", "--folder", "run", *CPU])
    capsys.readouterr()
    main(["evaluate", "run", *CPU, "--json"])
    report = json.loads(capsys.readouterr().out)["report"]
    assert [each["name"] for each in report["classes"]] == list("123456789") and report["rows"] == 370
    assert report["accuracy"] > 0.85
    assert report["mean_steps"] < 10 and report["earliness"] < 0.65  # they are 15.6 steps long on average
    assert report["fired"] > 0.7


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
    says(["evaluate", run, *CPU, "--on", str(tmp_path / "renamed.npz")], "was not taught the label 'my_")
    network = rc.load(trained / "series-run")
    with pytest.raises(ValueError, match="the classes of the network are high, low, those of the data my_high, my_low"):
        rc.evaluate(network, OwnData(str(tmp_path / "renamed.npz")))


def test_a_run_goes_on_where_its_data_was_moved(trained, tmp_path, monkeypatch, capsys):
    shutil.copytree(trained / "series-run", tmp_path / "run")
    shutil.copy(trained / "levels.npz", tmp_path / "moved.npz")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    config["task"]["path"] = str(tmp_path / "gone.npz")
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    says(["resume", str(tmp_path / "run"), *CPU], "gone.npz", "--data")
    main(["resume", str(tmp_path / "run"), *CPU, "--data", str(tmp_path / "moved.npz")])
    assert RunFolder(tmp_path / "run").config()["task"]["path"] == str(tmp_path / "moved.npz")


def test_what_training_reads_is_said(trained, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    main(["train", str(trained / "levels.npz"), *CPU, "--hidden-size", "2", "--epochs", "1", "--no-progress"])
    said = capsys.readouterr().err
    assert "levels.npz: " in said and " training, " in said and "2 classes (high, low)" in said and "steps of" in said


def test_a_bad_row_does_not_cost_its_file(trained, tmp_path, capsys):
    rows = np.zeros((3, 8), np.float32)
    rows[1, 2] = np.inf
    np.savez(tmp_path / "new.npz", X=rows)
    run = str(trained / "series-run")
    says(["predict", run, str(tmp_path / "new.npz"), *CPU], "new.npz, X[1]", "--skip-bad")
    main(["predict", run, str(tmp_path / "new.npz"), *CPU, "--skip-bad", "--json"])
    out, err = capsys.readouterr()
    assert "X[1]" in err
    assert [json.loads(line)["from"].rpartition(", ")[2] for line in out.splitlines()] == ["row 1", "row 3"]
    says(["predict", run, str(tmp_path / "none.ts"), *CPU, "--skip-bad"], "nothing to answer to")


def test_a_network_that_never_fires_is_said_to(trained, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    few = ["--hidden-size", "2", "--epochs", "1", "--no-progress", *CPU]
    main(["train", str(trained / "levels.npz"), *few, "--threshold", "1"])
    assert "it never fired on validation data" in capsys.readouterr().out
    main(["train", str(trained / "levels.npz"), *few, "--objective", "at-end"])
    assert "never fired" not in capsys.readouterr().out


def test_data_that_is_not_there_is_not_written_down(trained, tmp_path):
    shutil.copytree(trained / "series-run", tmp_path / "run")
    other = two_levels(tmp_path / "other.npz", rows=40)
    before = (tmp_path / "run" / "config.json").read_bytes()
    says(["resume", str(tmp_path / "run"), *CPU, "--data", str(tmp_path / "none.npz")], "none.npz")
    says(["resume", str(tmp_path / "run"), *CPU, "--data", other], "is no longer what was trained on")
    assert (tmp_path / "run" / "config.json").read_bytes() == before


def test_the_same_file_twice_is_answered_twice(trained, capsys):
    one, other = sorted(str(file) for file in (trained / "sounds" / "deep").iterdir())[:2]
    main(["predict", str(trained / "sound-run"), one, other, one, *CPU, "--json"])
    assert [json.loads(line)["from"] for line in capsys.readouterr().out.splitlines()] == [one, other, one]


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


def test_tensorboard_goes_into_the_default_folder_and_on_with_the_run(tmp_path, monkeypatch):
    few = ["--hidden-size", "2", "--examples", "640", "--validate-every", "1", "--no-progress", *CPU]
    main(["train", "spotting", *few, "--tensorboard"])
    (run,) = Path("runs").iterdir()
    (event,) = run.glob("events.out.tfevents*")
    size = event.stat().st_size
    torch.save(torch.load(run / "checkpoint.pt", weights_only=True) | {"batch": 4}, run / "checkpoint.pt")
    main(["resume", str(run), *CPU])
    assert sum(each.stat().st_size for each in run.glob("events.out.tfevents*")) > size


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
        main(["evaluate", str(tmp_path / name), *CPU, "--json"])
        report = json.loads(capsys.readouterr().out)["report"]
        assert report["mean_steps"] == rc.evaluate(rc.load(tmp_path / name), task).mean_steps
    for command in (["predict", str(tmp_path / "lead"), data], ["evaluate", str(tmp_path / "lead")]):
        says([*command, *CPU], "names 'Lead' as objective.rule, which is not part of rankcode")
        main([*command, *CPU, "--threshold", "0.9"])


def test_cells_that_read_images_differently_are_compared(tmp_path, capsys):
    few = ["--hidden-size", "2", "--epochs", "0.1", "--no-progress", *CPU]
    for cell in ("lstm", "conv-lstm"):
        main(["train", "temporal-digits", *few, "--cell", cell, "--folder", str(tmp_path / cell)])
    main(["tradeoff", str(tmp_path / "lstm"), str(tmp_path / "conv-lstm"), *CPU, "--output", str(tmp_path / "both")])
    assert len(json.loads((tmp_path / "both.json").read_text())["curves"]) == 2


def test_what_does_not_go_together_is_said_of_the_right_thing(trained):
    run, data = str(trained / "series-run"), str(trained / "levels.npz")
    says(["evaluate", run, "--on", data, "--split", "validation", *CPU], "--on takes all of its own data")
    says(["evaluate", run, "--alpha", "-2", *CPU], "alpha, the weight of earliness, must be at least 0")
    with pytest.raises(SystemExit) as stop:
        main(["predict", run, data, "--threshold", "7", *CPU])
    assert "threshold 7 is outside" in str(stop.value) and "levels.npz" not in str(stop.value)


def test_a_run_kept_without_its_checkpoint_cannot_go_on(trained, tmp_path):
    shutil.copytree(trained / "series-run", tmp_path / "run")
    (tmp_path / "run" / "checkpoint.pt").unlink()
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    config["network"].pop("label_names")
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    says(["resume", str(tmp_path / "run"), *CPU], "has no checkpoint.pt: there is nothing to go on from")


def test_the_picture_of_a_trade_off_says_what_it_leaves_out(trained, tmp_path):
    from rankcode.plots import plot_tradeoff

    def said(accuracy):
        few = (0.5, 0.9, 0.99)
        curve = rc.metrics.Curve(few, accuracy, (1.0, 4.0, 6.0), (0.1, 0.4, 0.6), (1.0,) * 3, None, 0.3, 0.5)
        return plot_tradeoff({"run": curve}).axes[0].get_title(loc="left")

    assert said((0.3, 0.8, 0.9)) == "further down: 1 with θ < 0.8" and said((0.8, 0.8, 0.9)) == ""


def test_data_is_not_moved_under_a_run_that_goes_on(trained, tmp_path):
    shutil.copytree(trained / "series-run", tmp_path / "run")
    shutil.copy(trained / "levels.npz", tmp_path / "moved.npz")
    before, held = (tmp_path / "run" / "config.json").read_bytes(), RunFolder(tmp_path / "run")
    held._hold()
    try:
        says(["resume", str(tmp_path / "run"), *CPU, "--data", str(tmp_path / "moved.npz")], "another process")
    finally:
        held.close()
    assert (tmp_path / "run" / "config.json").read_bytes() == before


def test_the_data_of_several_runs_is_read_once(trained, tmp_path, monkeypatch):
    from rankcode.tasks import own_data

    shutil.copytree(trained / "series-run", tmp_path / "again")
    real, reads = own_data.read_collection, []
    monkeypatch.setattr(own_data, "read_collection", lambda *given: reads.append(given) or real(*given))
    main(["tradeoff", str(trained / "series-run"), str(tmp_path / "again"), *CPU, "--output", str(tmp_path / "curve")])
    assert len(reads) == 1
