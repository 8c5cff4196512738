"""`rankcode tradeoff`."""

import json
import shutil

from small_data import CPU, train

from rankcode import Threshold, load, save
from rankcode.cli.main import main


def test_train_evaluate_tradeoff(tmp_path, capsys, coarse_limits):
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
    main(["tradeoff", str(tmp_path / "coded"), *few])
    text = capsys.readouterr().out
    for kind in ("png", "json"):  # by default into the folder of the run
        assert (tmp_path / "coded" / f"tradeoff.{kind}").exists() and str(tmp_path / f"coded/tradeoff.{kind}") in text


def test_cells_that_read_images_differently_are_compared(tmp_path, capsys):
    few = ["--hidden-size", "2", "--epochs", "0.1", "--no-progress", *CPU]
    for cell in ("lstm", "conv-lstm"):
        main(["train", "temporal-digits", *few, "--cell", cell, "--folder", str(tmp_path / cell)])
    main(["tradeoff", str(tmp_path / "lstm"), str(tmp_path / "conv-lstm"), *CPU, "--output", str(tmp_path / "both")])
    assert len(json.loads((tmp_path / "both.json").read_text())["curves"]) == 2


def test_the_data_of_several_runs_is_read_once(trained, tmp_path, monkeypatch):
    from rankcode.tasks import own_data

    shutil.copytree(trained / "series-run", tmp_path / "again")
    real, reads = own_data.read_collection, []
    monkeypatch.setattr(own_data, "read_collection", lambda *a, **more: reads.append(a) or real(*a, **more))
    main(["tradeoff", str(trained / "series-run"), str(tmp_path / "again"), *CPU, "--output", str(tmp_path / "curve")])
    assert len(reads) == 1


def test_classes_that_must_not_fire_stay_silent(trained, capsys):
    run = shutil.copytree(trained / "series-run", "run")
    network = load(run)
    network.rule = Threshold(0.9, classes=(1,))
    save(network, f"{run}/best.safetensors")
    main(["evaluate", run, "--threshold", "0.6", "--json", *CPU])
    evaluated = json.loads(capsys.readouterr().out)["θ = 0.6"]
    main(["tradeoff", run, "--thresholds", "0.6", *CPU])
    with open(f"{run}/tradeoff.json") as file:
        (curve,) = json.load(file)["curves"].values()
    assert curve["fired"] == [evaluated["fired"]] and 0 < evaluated["fired"] < 1
    assert curve["mean_steps"] == [evaluated["mean_steps"]]
