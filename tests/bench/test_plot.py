"""Pictures of the measurements."""

import json
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from rankcode.bench import plot
from rankcode.bench.epochs import Epoch
from rankcode.bench.steps import Measured
from rankcode.bench.streams import Streams

RESULTS = Path(__file__).parents[2] / "results" / "bench"


def test_epochs_are_drawn_as_shares_of_conventional_ones():
    coded = [Epoch(2.0 / n, 40.0 / n, 0.9) for n in (1, 2, 4)]
    usual = [Epoch(seconds, 40.0, 0.9) for seconds in (9.0, 2.0, 2.0, 2.0)]
    figure = plot.plot_epochs({512: {"rank-coded": coded, "conventional": usual}})
    time, read = figure.axes[0].lines[:2]
    assert list(time.get_ydata()) == [1, 0.5, 0.25] and list(read.get_ydata()) == [1, 0.5, 0.25]
    assert figure.axes[0].get_title() == "batch size 512: conventional 2 s"


def test_latencies_are_drawn_against_the_number_of_streams():
    found = [Streams(count, 10, 99, 0.1 * count, 0.3 * count, 90.0, 0.5) for count in (100, 200)]
    median, late, limit = plot.plot_streams(found).axes[0].lines
    assert list(median.get_ydata()) == [10, 20] and list(late.get_ydata()) == [30, 60]
    assert set(limit.get_ydata()) == {50}


@pytest.mark.parametrize(("file", "panels", "bars"), [("cpu", 2, 3), ("h200", 4, 5)])
def test_steps_are_drawn_with_a_bar_for_each_engine_and_precision(file, panels, bars):
    kept = [Measured(**each) for each in json.loads((RESULTS / f"{file}.json").read_text())["measured"]]
    axes = plot.plot_bench(kept).axes
    assert len(axes) == panels
    labels = axes[0].get_legend_handles_labels()[1]
    assert len(labels) == bars and ("triton, tf32 (captured)" in labels) == (file == "h200")
    heights = [patch.get_height() for patch in axes[0].patches]
    assert len(heights) == 4 * bars
    size = min(each.batch_size for each in kept if each.mode == "training")
    (own,) = [
        each.ratio for each in kept
        if (each.mode, each.batch_size, each.spikes, each.engine, each.precision)
        == ("training", size, "all at T/4", "whole", "tf32" if file == "h200" else "float32")
    ]  # fmt: skip
    assert own in heights
