"""The cases that are timed."""

import pytest

import rankcode as rc
from rankcode.bench import cases as bench_cases
from rankcode.bench.cases import CONVENTIONAL, Shape, make_cases, planted, runnable
from rankcode.engines import run

SMALL = Shape(batch_size=6, steps=8, input_size=3, hidden_size=4, readout_layer_size=5)


def test_spikes_are_planted_late_evenly_and_early():
    ways = planted(steps=80, rows=40)
    assert set(ways["all at T"].tolist()) == {80} and set(ways["all at T/4"].tolist()) == {20}
    even = ways["uniform, ordered"].tolist()
    assert even == sorted(even) and (even[0], even[-1]) == (1, 80) and abs(sum(even) / 40 - 40.5) < 0.5
    shuffled = ways["uniform, shuffled"].tolist()
    assert shuffled != even and sorted(shuffled) == even


def test_the_engines_of_a_cpu_are_measured():
    assert set(runnable(SMALL, "cpu")) >= {"stepwise", "whole", "cpu"}


def test_there_is_a_case_for_every_engine_and_way_of_planting():
    cases = make_cases(SMALL, ("cpu", "whole"), "cpu")
    conventional = [case for case in cases if case.engine == CONVENTIONAL]
    assert len(conventional) == 2 * 2 and len(cases) - len(conventional) == 2 * 4 * 2
    for work in cases.values():
        work()


@pytest.mark.parametrize("cell", ["conv-lstm", "lif", "stack", "glimpses"])
def test_other_cells_are_compared_with_whole_sequences(cell):
    shape = Shape(batch_size=3, steps=4, input_size=20, hidden_size=2, cell=cell)
    assert set(runnable(shape, "cpu")) == {"stepwise", "whole"} | ({"cpu"} if cell == "stack" else set())
    cases = make_cases(shape, ("stepwise",), "cpu")
    assert sum(case.engine == CONVENTIONAL for case in cases) == 2
    for work in cases.values():
        work()
    assert shape.step_shape == ((1, 4, 4) if cell in ("conv-lstm", "glimpses") else (20,))


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("sizes", [(40, 30, 3, 8), (7, 5, 1, 1), (9, 20, 12, 30, 0)])
def test_on_a_cpu_a_threshold_fires_at_the_planted_steps(cell, layers, sizes, monkeypatch):
    """A rule that told the engine where rows answer would save the readout of every step."""
    runs, shape = [], Shape(*sizes, cell=cell, num_layers=layers)

    def noted(network, inputs, lengths, rule, *more):
        runs.append((rule, run(network, inputs, lengths, rule, *more)))
        return runs[-1][1]

    monkeypatch.setattr(bench_cases, "run", noted)
    for case, work in make_cases(shape, ("cpu", "reference"), "cpu").items():
        runs.clear()
        work()
        for rule, result in runs:
            assert rule == rc.Threshold(0.95) and result.decision.fired.all()
            assert result.decision.steps.equal(planted(shape.steps, shape.batch_size)[case.spikes])
        assert len(runs) == (case.engine != CONVENTIONAL)
