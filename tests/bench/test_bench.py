"""The benchmark measures what it says, on shapes so small that the figures mean nothing."""

import json

import pytest
import torch

from rankcode.bench.measure import Shape, bench_table, machine, measure, measure_stream, planted, runnable
from rankcode.cli.main import main

CPU = ["--device", "cpu"]
SMALL = Shape(batch_size=6, steps=8, input_size=3, hidden_size=4, readout_layer_size=5)


def test_spikes_are_planted_late_evenly_and_early():
    ways = planted(steps=80, rows=40)
    assert set(ways["all at T"].tolist()) == {80} and set(ways["all at T/4"].tolist()) == {20}
    even = ways["uniform, ordered"].tolist()
    assert even == sorted(even) and (even[0], even[-1]) == (1, 80) and abs(sum(even) / 40 - 40.5) < 0.5
    shuffled = ways["uniform, shuffled"].tolist()
    assert shuffled != even and sorted(shuffled) == even


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_every_engine_is_set_beside_conventional_training(cell):
    shape = Shape(batch_size=6, steps=8, input_size=3, hidden_size=4, readout_layer_size=5, cell=cell)
    engines = tuple(runnable(shape, "cpu"))
    assert set(engines) == {"stepwise", "whole", "cpu"}
    found = measure(shape, engines, "cpu", repeats=3, progress=False)
    ours = [each for each in found if each.engine != "conventional"]
    assert len(ours) == 4 * 3 * 2 and len(found) - len(ours) == 2 * 2
    for mode in ("training", "inference"):
        fastest = [each for each in found if each.mode == mode and each.engine == "conventional"]
        assert min(each.ratio for each in fastest) == 1.0
        reference = min(each.milliseconds for each in fastest)
        for each in (each for each in found if each.mode == mode):
            assert each.ratio == pytest.approx(each.milliseconds / reference)
            assert each.low <= each.milliseconds <= each.high
            assert (each.megabytes is None) == (mode == "inference")
    ideal = {each.spikes: each.ideal for each in ours}
    assert ideal["all at T"] == 1 and ideal["all at T/4"] == 0.25 and 0.5 < ideal["uniform, ordered"] < 0.6


def test_rows_that_answer_early_take_less_memory_where_the_engine_saves():
    shape = Shape(batch_size=64, steps=40, input_size=6, hidden_size=16, readout_layer_size=5)
    found = measure(shape, ("cpu", "whole"), "cpu", repeats=1, progress=False)
    memory = {(each.engine, each.spikes): each.megabytes for each in found if each.mode == "training"}
    assert memory["cpu", "all at T/4"] < 0.3 * memory["cpu", "all at T"]
    assert memory["whole", "all at T/4"] == memory["whole", "all at T"] > 0


def test_a_stream_is_measured_step_by_step():
    measured = measure_stream(SMALL, repeats=1)
    assert measured.mode == "stream" and measured.rows == 1 and 0 < measured.low <= measured.milliseconds


def test_the_machine_is_named():
    assert machine("cpu")["torch"] == torch.__version__ and machine("cpu")["processor"]


def test_the_table_has_a_line_for_each():
    found = measure(SMALL, ("cpu",), "cpu", repeats=1, progress=False)
    lines = bench_table(found).splitlines()
    assert len(lines) == 1 + len(found) and lines[0].split()[:3] == ["mode", "rows", "spikes"]


def test_the_command_writes_figures_and_a_picture(tmp_path, capsys, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    small = [
        "--batch-sizes",
        "4",
        "6",
        "--steps",
        "8",
        "--input-size",
        "3",
        "--hidden-size",
        "4",
        "--repeats",
        "1",
        "--device",
        "cpu",
    ]
    main(["bench", *small, "--engines", "cpu", "stepwise", "--output", "kept/bench"])
    content = json.loads((tmp_path / "kept" / "bench.json").read_text())
    assert {each["rows"] for each in content["measured"]} == {4, 6, 1} and content["machine"]["torch"]
    assert (tmp_path / "kept" / "bench.png").read_bytes()[:4] == b"\x89PNG"
    assert "conventional" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"), [(["--batch-sizes", "0"], "at least 1"), (["--engines", "steam"], "no engine")]
)
def test_nonsense_is_one_line(arguments, said):
    with pytest.raises(SystemExit) as stop:
        main(["bench", *arguments, "--device", "cpu"])
    assert str(stop.value).startswith("rankcode: ") and said in str(stop.value)


def test_epochs_are_drawn_as_shares_of_conventional_ones():
    plots = pytest.importorskip("rankcode.bench.plot")
    records = [{"training_seconds": 2.0 / n, "training": {"mean_steps": 40.0 / n}} for n in (1, 2, 4)]
    usual = [{"training_seconds": seconds, "training": {"mean_steps": 40.0}} for seconds in (9.0, 2.0, 2.0, 2.0)]
    figure = plots.plot_epochs({"here": (records, usual)})
    time, read = figure.axes[0].lines[:2]
    assert list(time.get_ydata()) == [1, 0.5, 0.25] and list(read.get_ydata()) == [1, 0.5, 0.25]
    assert "conventional 2 s" in figure.axes[0].get_title()
