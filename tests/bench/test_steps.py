"""The benchmark measures what it says, on shapes so small that the numbers mean nothing."""

import pytest

from rankcode.bench.cases import Case, Shape, runnable
from rankcode.bench.steps import _is_rival, bench_table, measure, measure_stream

SMALL = Shape(batch_size=6, steps=8, input_size=3, hidden_size=4, readout_layer_size=5)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_every_engine_is_compared_with_conventional_training(cell):
    shape = Shape(batch_size=6, steps=8, input_size=3, hidden_size=4, readout_layer_size=5, cell=cell)
    engines = tuple(runnable(shape, "cpu"))
    found = measure(shape, engines, "cpu", repeats=3, progress=False)
    ours = [each for each in found if each.engine != "conventional"]
    assert len(ours) == 4 * len(engines) * 2 and len(found) - len(ours) == 2 * 2
    for mode in ("training", "inference"):
        fastest = [each for each in found if each.mode == mode and each.engine == "conventional"]
        assert min(each.ratio for each in fastest) == 1.0
        reference = min(each.milliseconds for each in fastest)
        for each in (each for each in found if each.mode == mode):
            assert each.ratio == pytest.approx(each.milliseconds / reference)
            assert each.low <= each.milliseconds <= each.high
            assert (each.megabytes is None) == (mode == "inference")
            assert each.batch_size == 6 and not each.captured
    ideal = {each.spikes: each.ideal for each in ours}
    assert ideal["all at T"] == 1 and ideal["all at T/4"] == 0.25 and 0.5 < ideal["uniform, ordered"] < 0.6


def test_rows_that_answer_early_take_less_memory_where_the_engine_saves():
    shape = Shape(batch_size=256, steps=40, input_size=6, hidden_size=16, readout_layer_size=5)
    found = measure(shape, ("cpu", "whole"), "cpu", repeats=1, progress=False)
    memory = {(each.engine, each.spikes): each.megabytes for each in found if each.mode == "training"}
    assert memory["cpu", "all at T/4"] < 0.3 * memory["cpu", "all at T"]
    assert memory["whole", "all at T/4"] == memory["whole", "all at T"] > 0


def test_bfloat16_is_compared_with_the_faster_of_bfloat16_and_tf32():
    def rivals(precision):
        ours = Case("training", "all at T", "triton", precision, captured=True)
        others = ("float32", "tf32", "bfloat16", "tf32, steps first")
        return {each for each in others if _is_rival(Case("training", "all at T", "conventional", each), ours)}

    assert rivals("bfloat16") == {"bfloat16", "tf32", "tf32, steps first"}
    assert rivals("tf32") == {"tf32", "tf32, steps first"} and rivals("float32") == {"float32"}
    ours = Case("training", "all at T", "triton", "tf32")
    assert not _is_rival(Case("inference", "all at T", "conventional", "tf32"), ours)
    assert not _is_rival(Case("training", "all at T", "conventional", "tf32", captured=True), ours)


def test_a_stream_is_measured_step_by_step():
    measured = measure_stream(SMALL, repeats=1)
    assert measured.mode == "stream" and measured.batch_size == 1 and 0 < measured.low <= measured.milliseconds


def test_the_table_has_a_line_for_each_measurement():
    found = measure(SMALL, ("cpu",), "cpu", repeats=1, progress=False)
    lines = bench_table(found).splitlines()
    assert len(lines) == 1 + len(found) and lines[0].split()[:4] == ["mode", "batch", "size", "spikes"]
