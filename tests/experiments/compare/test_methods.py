"""`methods.py`: every method of ours on a small set, and what is recorded of one that is not there."""

import sys

import numpy as np
import pytest
from small_sets import splits, write_set

pytest.importorskip("sklearn")

import rankcode as rc
from rankcode.data.series import series_of
from rankcode.experiments.compare.methods import CannotReadError, methods
from rankcode.experiments.compare.running import measured, results


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return write_set(tmp_path_factory.mktemp("sets"))


def test_kernels_are_the_estimator(place):
    train, test = splits(place)
    (found,) = methods()["kernels"](train, test, 3).answers([0.5])
    own = rc.EarlyClassifier(alpha=0.5, model="kernels", random_state=3).fit(train.rows(), np.array(train.labels))
    labels, steps = own.predict_early(test.rows())
    assert (found.labels == labels).all() and (found.steps == steps).all() and 0.5 < found.area <= 1


@pytest.mark.parametrize("name", ["recurrent", "every-step", "conventional"])
def test_recurrent_methods_learn_and_a_price_makes_them_earlier(name, tmp_path, few_updates):
    train, test = splits(write_set(tmp_path, rows=120))
    cheap, dear = (measured(each, test) for each in methods()[name](train, test, 0).answers([0.01, 5.0]))
    assert cheap["accuracy"] > 0.9 and dear["earliness"] <= cheap["earliness"] and dear["earliness"] < 0.5
    assert cheap["area"] == dear["area"] > 0.5


def test_a_library_that_is_missing_is_named(place):
    found = list(results(place, methods(sys.executable)["teaser"], "teaser", 0, [0.1, 1.0]))
    if "error" not in found[0]:
        pytest.skip("aeon is installed here")
    assert [record["alpha"] for record in found] == [0.1, 1.0]
    assert "No module named 'aeon'" in found[0]["error"] and "rankcode[compare]" in found[0]["error"]


def test_rows_of_unequal_length_are_not_for_peers():
    series = series_of([np.zeros(5), np.ones(7)] * 3, ["a", "b"] * 3)
    with pytest.raises(CannotReadError, match="one length"):
        next(methods()["non-myopic"](series, series, 0).answers([0.1]))


def test_a_peer_that_takes_too_long_is_stopped(place):
    found = list(results(place, methods(sys.executable, 0.01)["teaser"], "teaser", 0, [0.1]))
    assert "0.01 s" in found[0]["error"]
