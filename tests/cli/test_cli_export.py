"""`rankcode export`."""

import json
import sys

import numpy as np
import pytest
from small_data import QUICK, says, tones, train, two_levels

import rankcode as rc
from rankcode.cli.main import main

ort = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.usefixtures("operators_are_read_once")


def about(path):
    return json.loads(ort.InferenceSession(path).get_modelmeta().custom_metadata_map["rankcode"])


def exported(capsys, *arguments):
    capsys.readouterr()
    main(["export", *map(str, arguments)])
    said = capsys.readouterr()
    return said.out, said.err


def test_a_run_on_its_test_data(tmp_path, capsys):
    data = two_levels(tmp_path / "levels.npz")
    main(["train", data, "--folder", str(tmp_path / "run"), "--no-progress"])
    out, err = exported(capsys, tmp_path / "run", tmp_path / "levels.onnx")
    assert "decisions as in PyTorch on 12 rows of test data" in out and "MB" in out and "ms per step" in out and not err
    known = about(tmp_path / "levels.onnx")
    assert known["labels"] == ["high", "low"] and known["rule"]["kind"] == "OptimalStopping"
    assert known["rankcode"]["source"] == "run" and known["x"] == {"shape": [1], "dtype": "float64", "raw": True}


def test_other_data_than_that_of_the_run(tmp_path, capsys):
    data = two_levels(tmp_path / "levels.npz")
    main(["train", data, "--model", "recurrent", "--epochs", "1", "--folder", str(tmp_path / "run"), *QUICK])
    out, _ = exported(capsys, tmp_path / "run", tmp_path / "levels.onnx", "--threshold", 0.9, "--on", data)
    assert "on 60 rows of the data" in out and about(tmp_path / "levels.onnx")["rule"]["threshold"] == 0.9
    (tmp_path / "levels.npz").unlink()
    out, err = exported(capsys, tmp_path / "run", tmp_path / "levels.onnx")
    assert "on 64 rows of random numbers" in out and "warning: compared on random numbers" in err
    says(["export", str(tmp_path / "run"), str(tmp_path / "x.onnx"), "--data", str(tmp_path / "gone.npz")], "gone.npz")


def test_sound_on_recordings(tmp_path, capsys):
    sounds = tones(tmp_path / "sounds")
    main(["train", sounds, "--epochs", "1", "--folder", str(tmp_path / "run"), *QUICK])
    out, err = exported(capsys, tmp_path / "run", tmp_path / "sound.onnx", "--int8", "--check-rows", 3)
    assert "on 2 rows of test data" in out and "weights in 8 bits change" in out and not err
    known = about(tmp_path / "sound.onnx")
    assert known["x"] == {"shape": [160], "dtype": "float32", "raw": True} and known["warm_up"] == 21
    out, _ = exported(capsys, tmp_path / "run", tmp_path / "frames.onnx", "--from-inputs")
    assert about(tmp_path / "frames.onnx")["x"] == {"shape": [420], "dtype": "float32", "raw": False}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    rc.save(rc.Network(rc.cells.GRU(2, 4), 2), path)
    return path


def test_a_generated_task(tmp_path, capsys):
    train(tmp_path / "run")
    out, _ = exported(capsys, tmp_path / "run", tmp_path / "two.onnx", "--check-rows", 100)
    assert "on 128 rows of test data" in out


@pytest.mark.parametrize(
    ("arguments", "message", "status"),
    [
        (["model.bin"], "must be called something.onnx", 2),
        (["nowhere/model.onnx"], "there is no folder", 1),
        (["model.onnx", "--opset", "12"], "opset must be 18…23, not 12", 2),
        (["model.onnx", "--threshold", "2"], "outside", 2),
        (["other.onnx"], "was not exported by rankcode", 2),
        (["model.onnx", "--check-rows", "0"], "--check-rows", 2),
    ],
)
def test_wrong_arguments(model, tmp_path, monkeypatch, arguments, message, status):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.onnx").write_bytes(b"something else")
    says(["export", str(model), *arguments], message, status=status)
    assert [path.name for path in tmp_path.glob("**/*.onnx")] == ["other.onnx"]


def test_models_that_cannot_be_read(model, tmp_path):
    content = model.read_bytes()
    for name, changed, message in (
        ("short", content[:-9], "is no model file, or a damaged one"),
        ("version", content.replace(b'format\\": 1', b'format\\": 9'), "has format 9"),
    ):
        (tmp_path / name).write_bytes(changed)
        says(["export", str(tmp_path / name), str(tmp_path / "model.onnx")], name, message, status=1)
    says(["export", str(tmp_path / "none"), str(tmp_path / "model.onnx")], "there is no model file", status=1)


def test_a_missing_extra_is_named(model, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    says(["export", str(model), str(tmp_path / "model.onnx")], "pip install 'rankcode[onnx]'", status=1)
    assert np.all([path.suffix != ".onnx" for path in tmp_path.iterdir()])
