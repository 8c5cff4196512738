"""`peers.py`: what it computes itself; its methods run where aeon and tslearn are installed."""

import importlib.util

import numpy as np
import pytest
from small_sets import splits, write_set

pytest.importorskip("sklearn")

from rankcode.experiments.compare import peers
from rankcode.experiments.compare.methods import methods
from rankcode.experiments.compare.running import measured
from rankcode.metrics import area


def test_the_area_is_that_of_the_metrics():
    random = np.random.default_rng(0)
    for size in (1, 2, 9):
        right, earliness = random.random(size), random.random(size).round(1)
        assert peers.area(right, earliness, 0.3) == pytest.approx(area(earliness, right, 0.3), abs=1e-12)


def test_rows_stop_at_the_first_point_that_reaches_the_threshold():
    probabilities = np.array([[[0.6, 0.4], [0.5, 0.5]], [[0.9, 0.1], [0.5, 0.5]], [[0.2, 0.8], [0.5, 0.5]]])
    assert peers.first(probabilities, 0.6).tolist() == [0, 2]
    assert peers.first(probabilities, 0.7).tolist() == [1, 2]
    right, earliness = peers.curve(probabilities, np.array([2, 4, 8]), probabilities.argmax(2) == 1, 8)
    assert len(right) == len(peers.THRESHOLDS)
    assert (right[0], earliness[0]) == (0.0, 0.25) and (right[-1], earliness[-1]) == (0.5, 1.0)


@pytest.mark.parametrize("name", ["teaser", "probability-threshold", "non-myopic"])
def test_a_peer_learns(name, tmp_path):
    if not all(importlib.util.find_spec(each) for each in ("aeon", "tslearn")):
        pytest.skip("aeon and tslearn are not installed here: pip install 'rankcode[compare]'")
    train, test = splits(write_set(tmp_path, rows=32, steps=24))
    found = [measured(each, test) for each in methods()[name](train, test, 0).answers([0.1, 1.0])]
    assert found[0]["accuracy"] > 0.8 and found[0]["earliness"] >= found[1]["earliness"]
