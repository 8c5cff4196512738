"""`checkpoint_cost.py`: it learns, reads unequal rows, and answers early if waiting is dear."""

import numpy as np
import pytest
from small_sets import splits, write_set

pytest.importorskip("sklearn")

from rankcode.data.series import series_of
from rankcode.experiments.compare.checkpoint_cost import CheckpointCost
from rankcode.experiments.compare.running import measured


def test_a_price_makes_it_earlier(tmp_path):
    train, test = splits(write_set(tmp_path))
    cheap, dear = (measured(each, test) for each in CheckpointCost(train, test, 0).answers([0.01, 10.0]))
    assert cheap["accuracy"] > 0.9 and cheap["earliness"] > dear["earliness"] and dear["earliness"] < 0.2
    assert 0.7 < cheap["area"] <= 1


def test_no_row_is_read_past_its_end():
    random = np.random.default_rng(0)
    rows = [random.normal(size=length) + 3 * (n % 2) for n, length in enumerate([20, 12] * 8)]
    series = series_of(rows, ["a", "b"] * 8)
    (found,) = CheckpointCost(series, series, 0).answers([0.001])
    assert (found.steps <= series.lengths).all() and (found.labels == np.array(series.labels)).mean() > 0.8
