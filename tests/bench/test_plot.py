"""Pictures of the measurements."""

import pytest

pytest.importorskip("matplotlib")

from rankcode.bench import plot
from rankcode.bench.epochs import Epoch
from rankcode.bench.serving import Served
from rankcode.bench.steps import Measured
from rankcode.bench.streams import Streams


def test_epochs_are_drawn_as_shares_of_conventional_ones():
    coded = [Epoch(2.0 / n, 40.0 / n, 0.9) for n in (1, 2, 4)]
    usual = [Epoch(seconds, 40.0, 0.9) for seconds in (9.0, 2.0, 2.0, 2.0)]
    figure = plot.plot_epochs({512: {"rank-coded": coded, "conventional": usual}})
    time, read = figure.axes[0].lines[:2]
    assert list(time.get_ydata()) == [1, 0.5, 0.25] and list(read.get_ydata()) == [1, 0.5, 0.25]
    assert figure.axes[0].get_title() == "batch size 512: conventional 2 s" and figure.axes[0].get_ylim() == (0, 1.1)
    slow = [Epoch(seconds, 40.0, 0.9) for seconds in (100.0, 6.0, 5.0)]
    axes = plot.plot_epochs({512: {"rank-coded": slow, "conventional": usual}}).axes[0]
    assert axes.get_ylim() == pytest.approx((0, 3.3)), "a slow training is shown, but for its first epoch"
    assert all(tick == int(tick) for tick in axes.get_xticks())


def test_the_service_is_drawn_with_a_colour_for_each_number_of_streams_on_a_connection():
    rest = (8, 900, 0, 0, 0, 30.0, 60.0, 80.0, 250, 0.5, 0.1)
    found = [Served(100, 100, *rest), Served(300, 300, *rest[:3], 50, *rest[4:]), Served(300, 6, *rest)]
    latency, served = plot.plot_serving(found).axes
    assert [line.get_ydata()[0] for line in latency.lines] == [60, 30, 60, 30, 100]
    assert [list(line.get_ydata()) for line in served.lines] == [[100, 250], [300], [250, 250]]


def test_latencies_are_drawn_against_the_number_of_streams():
    found = [Streams(count, 10, 99, 0.1 * count, 0.3 * count, 90.0, 0.5) for count in (100, 200)]
    median, late, limit = plot.plot_streams(found).axes[0].lines
    assert list(median.get_ydata()) == [10, 20] and list(late.get_ydata()) == [30, 60]
    assert set(limit.get_ydata()) == {50}


def test_time_and_memory_of_long_rows_are_drawn_against_the_steps_read():
    def step(mode, engine, ideal, ms):
        return Measured(mode, 16, "", engine, "float32", False, ms, ms, ms, 2 * ms, None, 1, None, ideal)

    found = {
        steps: [
            step("training", "conventional", 1.0, 0.1 * steps),
            step("training", "auto", 0.25, 0.02 * steps),
            step("training", "auto", 1.0, 0.11 * steps),
            step("inference", "auto", 1.0, 7.0),
        ]
        for steps in (100, 1000)
    }
    time, memory = plot.plot_lengths(found).axes
    assert [list(line.get_xdata()) for line in time.lines] == [[100, 1000], [25, 100, 250, 1000]]
    assert list(time.lines[0].get_ydata()) == pytest.approx([10, 100])
    assert list(memory.lines[1].get_ydata()) == pytest.approx([4, 22, 40, 220])


def _measured(batch_size, spikes, engine, precision, captured, ratio, gpu_ratio=None):
    times = (10 * ratio, 9 * ratio, 11 * ratio)
    return Measured(
        "training", batch_size, spikes, engine, precision, captured, *times, 1.0, gpu_ratio, ratio, gpu_ratio, 0.25
    )


def test_steps_are_drawn_with_a_bar_for_each_engine_and_a_panel_for_each_batch_size():
    found = [
        _measured(size, spikes, engine, "float32", False, ratio)
        for size in (128, 512)
        for spikes in ("all at T", "all at T/4")
        for engine, ratio in (("conventional", 1.0), ("cpu", 0.3), ("whole", 0.5))
    ]
    axes = plot.plot_bench(found).axes
    assert [each.get_title() for each in axes] == ["batch size 128", "batch size 512"]
    assert axes[0].get_legend_handles_labels()[1] == ["steps read", "cpu", "whole"]
    assert sorted(patch.get_height() for patch in axes[0].patches) == [0.3, 0.3, 0.5, 0.5]


def test_a_captured_step_is_drawn_instead_of_the_launched_one_with_its_precision():
    found = [
        _measured(128, "all at T", "triton", precision, captured, ratio, 0.2)
        for precision, captured, ratio in (("tf32", False, 0.9), ("tf32", True, 0.4), ("bfloat16", False, 0.7))
    ]
    axes = plot.plot_bench(found).axes[0]
    names = ["the same for the time in kernels", "steps read", "triton, bfloat16", "triton, tf32 (captured)"]
    assert axes.get_legend_handles_labels()[1] == names
    assert sorted(patch.get_height() for patch in axes.patches) == [0.4, 0.7]
