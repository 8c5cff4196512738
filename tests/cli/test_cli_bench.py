"""`rankcode bench`."""

import json
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from rankcode.bench import grid
from rankcode.cli.bench import Bench
from rankcode.cli.main import main
from spoken_words import spoken_words

pytest.importorskip("matplotlib")
SMALL = ["--hidden-size", "4", "--device", "cpu", "--output", "kept/bench"]


def written():
    assert Path("kept/bench.png").read_bytes()[:4] == b"\x89PNG"
    return json.loads(Path("kept/bench.json").read_text())


def test_steps_are_measured(capsys):
    shape = ["--batch-sizes", "4", "6", "--steps", "8", "--input-size", "3"]
    main(["bench", *SMALL, *shape, "--repeats", "1", "--engines", "cpu", "stepwise"])
    content = written()
    assert {each["batch_size"] for each in content["measured"]} == {4, 6, 1} and content["machine"]["torch"]
    assert "conventional" in capsys.readouterr().out


def test_steps_are_measured_while_another_program_keeps_a_core_busy(monkeypatch):
    started, start = [], subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *given: started.append(start(*given)) or started[-1])
    shape = ["--batch-sizes", "4", "--steps", "8", "--input-size", "3"]
    main(["bench", *SMALL, *shape, "--repeats", "1", "--engines", "cpu", "--busy", "1"])
    assert written()["busy"] == 1
    assert [each.poll() for each in started] == [-signal.SIGKILL], "it ran until the end"


def test_layers_are_measured_in_a_grid_that_is_kept_if_it_is_interrupted(monkeypatch, capsys):
    measure, given = grid.measure, []

    def interrupted(shape, *more, **options):
        given.append(shape)
        if len(given) == 2:
            raise KeyboardInterrupt
        return measure(replace(shape, batch_size=4, steps=8, input_size=3, hidden_size=4), *more, **options)

    monkeypatch.setattr(grid, "measure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Bench(grid=3, num_layers=2, repeats=1, device="cpu", output="kept/bench").run()
    assert not Path("kept/bench.json").exists()
    content = json.loads(Path("kept/bench-partial.json").read_text())
    assert [row["mode"] for row in content["grid"]] == ["training", "inference"] and content["shapes"] == 3
    assert "stopped after 1 of 3 shapes" in "".join(capsys.readouterr())
    assert {shape.num_layers for shape in given} == {2}


def test_rows_of_several_lengths_are_measured(capsys):
    main(["bench", *SMALL, "--batch-sizes", "4", "--input-size", "3", "--lengths", "8", "20", "--repeats", "1"])
    content = written()
    assert set(content["lengths"]) == {"8", "20"} and content["batch_size"] == 4
    for found in content["lengths"].values():
        assert {each["engine"] for each in found} == {"auto", "conventional"}
        memory = {(each["engine"], each["spikes"]): each["megabytes"] for each in found if each["mode"] == "training"}
        assert 0 < memory["auto", "all at T/4"] <= memory["auto", "all at T"]
    assert "20 steps" in capsys.readouterr().out


def test_whole_trainings_are_measured(capsys):
    main(["bench", *SMALL, "--batch-sizes", "480", "--epochs", "2"])
    content = written()
    assert content["task"] == "tone-sweeps" and content["machine"]["torch"]
    assert [len(run) for run in content["epochs"]["480"].values()] == [2, 2]
    assert capsys.readouterr().out.splitlines()[1].split()[0] == "480"


def test_live_streams_are_measured(capsys):
    main(["bench", *SMALL, "--streams", "3", "2", "--seconds", "1"])
    content = written()
    assert [each["streams"] for each in content["streams"]] == [2, 3] and content["parameters"] > 0
    assert "99 % of the decisions within 50 ms" in capsys.readouterr().out


def test_listening_is_measured(trained, capsys):
    spoken_words(Path("words"))
    arguments = ["bench", "--listen", "test", "--data", "words", "--device", "cpu", "--output", "kept/bench"]
    main(arguments)
    content = written()
    assert content["split"] == "test" and set(content["hours"]) == {"keywords", "other words", "noise"}
    first = content["points"][0]
    assert (first["policy"], first["patience"]) == ("listener", 12) and 0 <= first["recall"] <= 1
    assert capsys.readouterr().out.startswith("policy ")
    with pytest.raises(SystemExit, match="no class of the network is a word of the tracks"):
        main([*arguments, "--model", str(trained / "sound-run")])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--batch-sizes", "0"], "at least 1"),
        (["--lengths", "100", "0"], "--lengths"),
        (["--epochs", "1"], "--epochs must be at least 2"),
        (["--loader-workers", "0"], "--loader-workers needs --epochs"),
        (["--epochs", "2", "--loader-workers", "-1"], "--loader-workers must be from 0 to"),
        (["--epochs", "2", "--loader-workers", "1000000"], "--loader-workers must be from 0 to"),
        (["--grid", "0"], "--grid must be at least 1"),
        (["--num-layers", "0"], "--num-layers and --repeats must be at least 1"),
        (["--num-layers", "2", "--cell", "lif"], "--num-layers needs --cell lstm or gru"),
        (["--num-layers", "2", "--streams", "2"], "--streams does not use --num-layers: leave it out"),
        (["--busy", "-1"], "--busy must be from 0 to"),
        (["--busy", "1000000"], "--busy must be from 0 to"),
        (["--engines", "steam"], "no engine"),
        (["--check", "--engines", "cpu"], "--check and --engines cannot be used together"),
        (["--epochs", "2", "--grid", "2"], "--grid and --epochs cannot be used together"),
        (["--grid", "2", "--input-size", "4"], "--grid does not use --input-size: leave it out"),
        (["--check", "--cell", "gru"], "--check does not use --cell: leave it out"),
        (["--data", "folder"], "--data needs --epochs, --serving or --listen"),
        (["--batch-sizes", "9999999999999"], "there is not enough memory for these measurements"),
        (["--streams", "0"], "--streams, --serving, --per-connection and --seconds must be at least 1"),
        (["--streams", "1", "--model", "no-model"], "no-model"),
        (["--listen", "test", "--data", "nowhere"], "nowhere does not hold Speech Commands"),
        (["--listen", "test", "--share", "0"], "--share must be more than 0"),
    ],
)
def test_a_mistake_is_one_line(arguments, said, capsys):
    with pytest.raises(SystemExit):
        main(["bench", *arguments, "--device", "cpu"])
    error = capsys.readouterr().err.strip()
    assert error.startswith("rankcode: ") and said in error and "\n" not in error
