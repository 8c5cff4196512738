"""The command line as a person uses it."""

import json
import os
import subprocess
import sys

import pytest
import torch

import rankcode as rc
from rankcode.cli.main import main

SMALL = [
    "--examples",
    "256",
    "--batch-size",
    "32",
    "--hidden-size",
    "4",
    "--device",
    "cpu",
    "--no-progress",
    "--validate-every",
    "4",
]


def train(folder, *more, task="two-sequence"):
    main(["train", task, *SMALL, "--folder", str(folder), *more])


@pytest.mark.parametrize("command", ["demo", "train", "resume", "evaluate", "tradeoff"])
def test_every_command_explains_its_arguments(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert not stop.value.code
    text = " ".join(capsys.readouterr().out.split())
    assert {"train": "Learning rate", "demo": "side by side"}.get(command, "Folder") in text


def test_train_evaluate_tradeoff(tmp_path, capsys):
    train(tmp_path / "coded")
    train(tmp_path / "plain", "--objective", "at-end")
    for name in (
        "config.json",
        "metrics.jsonl",
        "checkpoint.pt",
        "best.safetensors",
        "last.safetensors",
        "training.png",
    ):
        assert (tmp_path / "coded" / name).stat().st_size > 0
    capsys.readouterr()

    few = ["--device", "cpu", "--test-rows", "200"]
    main(["evaluate", str(tmp_path / "plain"), "--json", *few])
    reports = json.loads(capsys.readouterr().out)
    assert set(reports) == {"at the end", "first spike, θ = 0.95"}
    assert reports["at the end"]["mean_steps"] == 40 and reports["at the end"]["rows"] == 200

    main(["evaluate", str(tmp_path / "coded"), "--threshold", "0.5", *few])
    text = capsys.readouterr().out
    assert "mean steps     1.00" in text and "negative" in text and "positive" in text

    output = tmp_path / "pictures" / "curve"
    main(["tradeoff", str(tmp_path / "coded"), str(tmp_path / "plain"), "--output", str(output), *few])
    written = json.loads((tmp_path / "pictures" / "curve.json").read_text())
    assert len(written["curves"]) == 2 and "optimal stopping" in written["limits"]
    assert (tmp_path / "pictures" / "curve.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("cell", "units"), [("lstm", 4), ("gru", 4), ("conv-lstm", 2), ("lif", 8), ("conv-lif", 2)])
def test_every_cell_trains_on_images(tmp_path, cell, units, capsys):
    arguments = ["--epochs", "1", "--device", "cpu", "--no-progress", "--hidden-size", str(units), "--cell", cell]
    main(["train", "temporal-digits", *arguments, "--folder", str(tmp_path / "run"), "--beta", "0:0.4,0.5:0.1"])
    main(["evaluate", str(tmp_path / "run"), "--device", "cpu"])
    assert "359 test rows" in capsys.readouterr().out


@pytest.mark.parametrize("cell", ["conv-lstm", "conv-lif"])
def test_the_width_of_convolutions(tmp_path, cell):
    few = ["--epochs", "0.1", "--device", "cpu", "--no-progress", "--hidden-size", "2", "--kernel-size", "5"]
    main(["train", "temporal-digits", *few, "--cell", cell, "--folder", str(tmp_path)])
    network = rc.load(tmp_path / "last.safetensors")
    convolutions = [part for part in network.modules() if isinstance(part, torch.nn.Conv2d)]
    assert convolutions and {part.kernel_size for part in convolutions} == {(5, 5)}


def test_default_folders_are_never_written_over(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        main(["train", "spotting", *SMALL])
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["spotting-at-spike", "spotting-at-spike-2"]


def test_resume_goes_on_from_the_folder_alone(tmp_path, monkeypatch):
    from rankcode.training import loop as training

    train(tmp_path / "whole", "--beta", "0.1", "--ema-decay", "0.9")
    real, calls = training.evaluate, []

    def cut_off(*arguments, **options):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*arguments, **options)

    monkeypatch.setattr(training, "evaluate", cut_off)
    with pytest.raises(SystemExit, match="rankcode resume"):
        train(tmp_path / "cut", "--beta", "0.1", "--ema-decay", "0.9")
    monkeypatch.undo()
    assert not (tmp_path / "cut" / "last.safetensors").exists()
    main(["resume", str(tmp_path / "cut"), "--device", "cpu"])
    whole, cut = (tmp_path / name / "last.safetensors" for name in ("whole", "cut"))
    assert cut.read_bytes() == whole.read_bytes()


def run_folder(tmp_path, config):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text(config)
    return str(tmp_path / "run")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "demo, train"),
        (["tarin"], "tarin"),
        (["train"], "What to learn"),
        (["train", "mnist"], "no task and no data 'mnist': name a path, or one of spotting"),
        (["train", "spotting", "--raet", "1"], "--raet"),
        (["train", "spotting", "--learning-rate", "fast"], "--learning-rate"),
        (["train", "spotting", "--learning-rate", "-1"], "rate must be a number above 0"),
        (["train", "spotting", "--threshold", "1.5"], "threshold 1.5 is outside"),
        (["train", "spotting", "--beta", "much"], "beta must be a number"),
        (["train", "spotting", "--beta", "nan"], "beta must be a number"),
        (["tradeoff"], "at least one run"),
        (["demo", "--test-rows", "0"], "at least 1"),
        (["train", "spotting", "--cell", "conv-lstm"], "reads images"),
        (["train", "temporal-digits", "--cell", "lif", "--num-layers", "2"], "layers is for"),
        (
            ["train", "temporal-digits", "--cell", "lif", "--kernel-size", "5"],
            "kernel_size is for conv-lstm and conv-lif",
        ),
        (["train", "temporal-digits", "--cell", "conv-lif", "--kernel-size", "4"], "kernel_size must be odd"),
        (["train", "temporal-digits", "--cell", "conv-lstm", "--kernel-size", "-1"], "kernel_size must be odd"),
        (["train", "spotting", "--decay", "0.5"], "decay is for lif and conv-lif, not for lstm"),
        (["train", "temporal-digits", "--cell", "lif", "--decay", "3"], "must be within 0…1, not 3"),
        (["train", "spotting", "--readout-layer-size", "-3"], "readout_layer_size must be at least 1, not -3"),
        (["train", "spotting", "--seed", "9" * 30], "seed must be a whole number"),
        (["train", "spotting", "--device", "abacus"], "no device 'abacus'"),
        (["train", "spotting", "--engine", "steam"], "not 'steam'"),
        (["train", "spotting", "--resume"], "resume needs a folder"),
        (["evaluate", "nowhere"], "nowhere is not a run folder"),
        (["resume", "nowhere"], "nowhere is not a run folder"),
        (["tradeoff", "nowhere"], "nowhere is not a run folder"),
    ],
)
def test_a_mistake_is_one_line(arguments, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    message = str(stop.value)
    assert stop.value.code not in (0, None)
    assert message.startswith("rankcode: ") and said in message and "\n" not in message
    assert capsys.readouterr().out == ""
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.parametrize(
    ("config", "said"),
    [("{", "config.json is damaged"), ("[]", "config.json is damaged"), ('{"format": 99}', "format 99")],
)
def test_a_run_folder_that_cannot_be_read(config, said, tmp_path):
    with pytest.raises(SystemExit, match=said):
        main(["evaluate", run_folder(tmp_path, config)])


def test_without_tyro_the_same_arguments_work(tmp_path):
    """On a machine with the core alone."""
    blocked = "import sys; [sys.modules.__setitem__(name, None) for name in ('tyro', 'matplotlib', 'sklearn')]; "
    code = blocked + "from rankcode.cli.main import main; main(sys.argv[1:])"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def call(*arguments):
        return subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=environment, cwd=tmp_path
        )

    done = call("train", "spotting", *SMALL, "--folder", "run", "--objective", "until-spike", "--max-grad-norm", "0.5")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run" / "config.json").read_text())["training"]["max_grad_norm"] == 0.5
    assert call("train", "--help").returncode == 0
    missing = call("demo")
    assert missing.returncode == 1 and missing.stderr.strip().endswith("pip install 'rankcode[plots]'")


def test_demo_writes_a_page_that_stands_alone(tmp_path, capsys):
    folder = tmp_path / "demo"
    main(["demo", "--folder", str(folder), "--examples", "640", "--hidden-size", "4", "--test-rows", "200"])
    text = capsys.readouterr().out
    assert "rank-coded" in text and "at the end" in text and str(folder / "report.html") in text
    page = (folder / "report.html").read_text()
    assert page.count("<svg") == 3 and "optimal stopping" in page
    assert not any(outside in page for outside in ("<script", "<link", 'src="http', "@import"))
    records = (folder / "rank-coded" / "metrics.jsonl").read_text().splitlines()
    assert all(len(json.loads(line)["first_spike"]["steps_histogram"]) <= 40 for line in records)


def test_version(capsys):
    main(["--version"])
    assert capsys.readouterr().out.startswith("rankcode ")
