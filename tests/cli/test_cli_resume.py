"""`rankcode resume`."""

import json
import shutil
from pathlib import Path

import pytest
from small_data import CPU, QUICK, says, two_levels

from rankcode.cli.main import main
from rankcode.saving.checkpoint import write_checkpoint
from rankcode.saving.run_folder import RunFolder
from rankcode.training import records


@pytest.mark.parametrize("task", ["two-sequence", "levels.npz"])
def test_a_run_that_was_interrupted_goes_on_from_its_folder_alone(task, monkeypatch):
    two_levels("levels.npz")
    settings = [*QUICK, "--examples", "320", "--validate-every", "5", "--beta", "0.1", "--ema-decay", "0.9", "--folder"]
    main(["train", task, *settings, "whole"])
    real, calls = records.evaluate, []

    def interrupted(*arguments, **options):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(records, "evaluate", interrupted)
        says(["train", task, *settings, "cut"], "stopped; continue with: rankcode resume cut", status=130)
    assert not Path("cut/last.safetensors").exists()
    main(["resume", "cut", *CPU])
    assert Path("cut/last.safetensors").read_bytes() == Path("whole/last.safetensors").read_bytes()


def test_a_run_goes_on_where_its_data_was_moved(trained, tmp_path, monkeypatch, capsys):
    shutil.copytree(trained / "series-run", tmp_path / "run")
    shutil.copy(trained / "levels.npz", tmp_path / "moved.npz")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    config["task"]["path"] = str(tmp_path / "gone.npz")
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    says(["resume", str(tmp_path / "run"), *CPU], "gone.npz", "--data")
    main(["resume", str(tmp_path / "run"), *CPU, "--data", str(tmp_path / "moved.npz")])
    assert RunFolder(tmp_path / "run").config()["task"]["path"] == str(tmp_path / "moved.npz")


def test_data_that_is_not_there_is_not_written_down(trained, tmp_path):
    shutil.copytree(trained / "series-run", tmp_path / "run")
    other = two_levels(tmp_path / "other.npz", rows=40)
    before = (tmp_path / "run" / "config.json").read_bytes()
    says(["resume", str(tmp_path / "run"), *CPU, "--data", str(tmp_path / "none.npz")], "none.npz")
    says(["resume", str(tmp_path / "run"), *CPU, "--data", other], "is no longer what was trained on")
    assert (tmp_path / "run" / "config.json").read_bytes() == before


def test_tensorboard_goes_into_the_default_folder_and_on_with_the_run(tmp_path, monkeypatch):
    few = ["--hidden-size", "2", "--examples", "640", "--validate-every", "1", "--no-progress", *CPU]
    main(["train", "spotting", *few, "--tensorboard"])
    (run,) = Path("runs").iterdir()
    (event,) = run.glob("events.out.tfevents*")
    size = event.stat().st_size
    write_checkpoint(run / "checkpoint.pt", RunFolder(run).checkpoint() | {"batch": 4})
    main(["resume", str(run), *CPU])
    assert sum(each.stat().st_size for each in run.glob("events.out.tfevents*")) > size


def test_a_run_kept_without_its_checkpoint_cannot_go_on(trained, tmp_path):
    shutil.copytree(trained / "series-run", tmp_path / "run")
    (tmp_path / "run" / "checkpoint.pt").unlink()
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    config["network"].pop("label_names")
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    says(["resume", str(tmp_path / "run"), *CPU], "has no checkpoint.pt to continue from")


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


def test_a_finished_run_is_trained_for_longer(tmp_path, capsys):
    settings = [two_levels(tmp_path / "levels.npz"), *QUICK, "--schedule", "constant"]  # a cosine follows the length
    main(["train", *settings, "--epochs", "2", "--folder", "run"])
    main(["train", *settings, "--epochs", "4", "--folder", "at-once"])
    main(["resume", "run", *CPU, "--epochs", "4"])
    assert Path("run/last.safetensors").read_bytes() == Path("at-once/last.safetensors").read_bytes()
    assert RunFolder("run").config()["training"]["epochs"] == 4
    capsys.readouterr()
    main(["resume", "run", *CPU])
    said = capsys.readouterr().out
    assert said.startswith(
        "the run is complete after 4 epochs; to train for longer:\n  rankcode resume run --epochs 8\n"
    )
    says(["resume", "run", *CPU, "--epochs", "3"], "run holds a longer run than --epochs 3: epochs and", status=2)
    main(["resume", "run", *CPU, "--examples", "500"])
    assert RunFolder("run").records()[-1]["examples"] >= 500
    says(["resume", "run", *CPU, "--examples", "100"], "run holds a longer run than --examples 100:", status=2)
    says(["resume", "run", *CPU, "--epochs", "9", "--examples", "900"], "epochs or examples, not both", status=2)
    says(["resume", "run", *CPU, "--epochs", "-1"], "epochs must be a number above 0", status=2)
    says(["resume", "run", *CPU, "--epochs", "1e308"], "--epochs", "too long", status=2)
