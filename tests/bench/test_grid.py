"""The grid has many different shapes, and its table counts what it says."""

import pytest

from rankcode.bench.cases import Shape
from rankcode.bench.grid import GridRow, grid_shapes, grid_table, measure_grid


def test_the_shapes_cover_all_sizes_and_stay_the_same():
    shapes = grid_shapes()
    assert len(shapes) == len(set(shapes)) == 64 and shapes == grid_shapes()
    assert {each.hidden_size for each in shapes} >= {8, 16, 32, 64, 128, 256}
    assert min(each.batch_size for each in shapes) == 1 and max(each.batch_size for each in shapes) == 512
    assert min(each.steps for each in shapes) == 20 and max(each.steps for each in shapes) == 2000
    assert min(each.input_size for each in shapes) == 1 and max(each.input_size for each in shapes) == 512


def test_every_shape_is_measured_in_training_and_inference():
    found = list(measure_grid([Shape(4, 6, 2, 3)], repeats=1, progress=False))
    assert [each.mode for each in found] == ["training", "inference"]
    for row in found:
        assert row.milliseconds > 0 and set(row.ratios) >= {"cpu", "whole"} and row.chosen == next(iter(row.ratios))
        assert all(len(ratios) == 3 and min(ratios) > 0 for ratios in row.ratios.values())


def test_the_table_counts_goals_and_how_near_auto_is():
    ratios = {"cpu": (1.05, 0.66, 0.2), "whole": (1.0, 0.55, 1.0)}
    few, many = (GridRow(Shape(batch_size=rows), "training", 5.0, "cpu", ratios) for rows in (32, 64))
    assert few.auto_to_fastest == pytest.approx((1.05, 1.2, 1.0))
    *_, last = grid_table([few, many]).splitlines()
    assert last == "goals reached: 67 %; auto within 1.1 × the fastest engine: 67 %"
