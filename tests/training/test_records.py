"""Which model is kept, and when a run says that it is not learning."""

import warnings
from types import SimpleNamespace

import pytest
import torch
from test_loop import QUIET, easy, make_network

import rankcode as rc
from rankcode.data.sources import Arrays
from rankcode.training.records import merit, near_majority, problem_of


def test_the_cost_by_default_weighs_a_fifth_of_the_earliness():
    record = {"validation": {"accuracy": 0.9, "earliness": 0.3, "mean_steps": 4.0}}
    assert merit(record, rc.Training()) == (pytest.approx(-0.16), -4.0)


def a_record(validation=0.9, fired=1.0, rows=(30, 10)):
    classes = [{"rows": count} for count in rows]
    report = {"accuracy": validation, "fired": fired, "rows": sum(rows), "classes": classes}
    return {"training": {"accuracy": 0.3}, "validation": report}


SOURCE = Arrays(torch.zeros(10, 2, 1), [0] * 6 + [1] * 4)


@pytest.mark.parametrize(
    ("record", "rule", "said"),
    [
        (a_record(), rc.Threshold(), None),
        (a_record(0.76), rc.Threshold(), None),
        (a_record(0.75), rc.Never(), "answers 75.0 % of the validation data correctly, and 75.0 % are of the most"),
        (a_record(fired=0.0), rc.Threshold(), "none of the validation rows fire: train for longer, or lower"),
        (a_record(fired=0.049), rc.Threshold(), "only 4.9 % of the validation rows fire: train for longer, or lower"),
        (a_record(fired=0.05), rc.Threshold(), None),
        (a_record(fired=0.0), rc.Never(), None),
        ({"training": {"accuracy": 0.6}}, rc.Threshold(), "answers 60.0 % of the training data correctly, and 60.0 %"),
        ({"training": {"accuracy": 0.61}}, rc.Threshold(), None),
    ],
)
def test_what_is_wrong_with_a_model(record, rule, said):
    problem = problem_of(record, rule, SOURCE)
    assert problem is None if said is None else said in problem
    assert said is None or "train for longer" in problem


@pytest.mark.parametrize(
    ("record", "slow"),
    [
        (a_record(0.84), True),
        (a_record(0.86), False),
        (a_record(0.974, rows=(95, 5)), True),  # 0.1 above is out of reach: half of the rest is asked for
        (a_record(0.976, rows=(95, 5)), False),
        (a_record(0.9, fired=0.0), False),  # it may fire later
        ({"training": {"accuracy": 0.69}}, True),
        ({"training": {"accuracy": 0.71}}, False),
    ],
)
def test_a_network_that_learns_is_better_than_the_most_common_class_by_half_of_its_training(record, slow):
    assert (near_majority(record, SOURCE) is not None) == slow


def test_a_run_that_is_not_learning_says_so_once():
    inputs, labels = torch.randn(64, 5, 1), torch.tensor([0, 0, 0, 1] * 16)
    data = SimpleNamespace(train=(inputs, labels), validation=(inputs, labels))
    config = rc.Training(epochs=60, batch_size=8, learning_rate=1e-9, **QUIET)  # 480 batches
    with pytest.warns(UserWarning) as caught:
        history = rc.fit(make_network(), data, rc.AtSpike(0.99), config)
    (warning,) = [str(each.message) for each in caught]
    assert warning.startswith("at half of the training the network answers ")
    assert "train for longer" in warning and "\n" not in warning
    assert history.problem.startswith("none of the validation rows fire: train for longer")


@pytest.mark.parametrize("settings", [{"epochs": 40, "learning_rate": 0.02}, {"epochs": 10, "learning_rate": 1e-9}])
def test_a_run_that_learns_or_is_very_short_says_nothing(settings):
    data = SimpleNamespace(train=easy(64), validation=easy(32, seed=1))
    with warnings.catch_warnings(action="error"):
        history = rc.fit(make_network(), data, rc.AtSpike(0.8), rc.Training(batch_size=8, **settings, **QUIET))
    assert (history.problem is None) == (settings["epochs"] == 40)
