"""Which model is kept, and when a run says that it is not learning."""

import warnings
from types import SimpleNamespace

import pytest
import torch
from test_loop import QUIET, easy, make_network
from torch import nn

import rankcode as rc
from rankcode.data.sources import Arrays
from rankcode.training.distributed import Processes
from rankcode.training.records import merit, problem_of
from rankcode.training.state import TrainingState

VALIDATION = {  # of six records: each better downwards only where the winners say so
    "accuracy": [0.8, 0.7, 0.8, 0.9, 0.9, 0.9],
    "loss": [0.5, 0.4, 0.6, 0.4, 0.4, 0.4],
    "harmonic_mean": [0.5, 0.6, 0.55, 0.6, 0.6, 0.6],
    "earliness": [0.9, 0.7, 0.8, 0.9, 0.9, 0.2],
    "mean_steps": [7.0, 6.0, 5.0, 5.0, 4.0, 4.0],
}
FIRST_SPIKE = {"accuracy": [0.3, 0.5, 0.4, 0.5, 0.4, 0.5], "mean_steps": [3.0, 3.0, 2.0, 3.0, 1.0, 2.0]}


@pytest.mark.parametrize(
    ("settings", "winners"),
    [
        ({"select": "accuracy"}, [0, 2, 3, 4, 5]),  # the last two are equal
        ({"select": "first_spike_accuracy"}, [0, 1, 3, 5]),
        ({"select": "loss"}, [0, 1, 3, 4, 5]),
        ({"select": "harmonic_mean"}, [0, 1, 3, 4, 5]),
        ({}, [0, 2, 3, 4, 5]),  # the cost at 0.2: 0.38, 0.44, 0.36, 0.28, 0.28, 0.14
        ({"select": "cost", "select_alpha": 2}, [0, 1, 5]),  # 2.0, 1.7, 1.8, 1.9, 1.9, 0.5
        ({"select": "cost", "select_alpha": 0.0}, [0, 2, 3, 4, 5]),  # errors alone
    ],
    ids=str,
)
def test_the_best_model_is_the_one_with_the_most_merit_then_the_fewest_steps_then_the_later(settings, winners):
    network = make_network()
    state = TrainingState(network, rc.Training(learning_rate=0.1, **settings), Processes(), torch.device("cpu"))
    chosen = []
    for number in range(6):
        nn.init.constant_(network.readout.bias, number)
        report, spikes = ({name: column[number] for name, column in part.items()} for part in (VALIDATION, FIRST_SPIKE))
        if state.add({"batch": number, "examples": number, "validation": report, "first_spike": spikes}):
            chosen.append(number)
    assert chosen == winners
    assert state.best["batch"] == winners[-1] == state.best_weights["readout.bias"].item()


def test_the_cost_by_default_weighs_a_fifth_of_the_earliness():
    record = {"validation": {"accuracy": 0.9, "earliness": 0.3, "mean_steps": 4.0}}
    assert merit(record, rc.Training()) == (pytest.approx(-0.16), -4.0)


def a_record(training=0.9, validation=0.9, fired=1.0, rows=(30, 10)):
    classes = [{"rows": count} for count in rows]
    report = {"accuracy": validation, "fired": fired, "rows": sum(rows), "classes": classes}
    return {"training": {"accuracy": training}, "validation": report}


SOURCE = Arrays(torch.zeros(10, 2, 1), [0] * 6 + [1] * 4)


@pytest.mark.parametrize(
    ("record", "rule", "said"),
    [
        (a_record(), rc.Threshold(), None),
        (a_record(training=0.61, validation=0.76), rc.Threshold(), None),
        (
            a_record(training=0.6),
            rc.Threshold(),
            "answers 60.0 % of the training data correctly, no more than the 60.0 %",
        ),
        (
            a_record(validation=0.75),
            rc.Never(),
            "answers 75.0 % of the validation data correctly, no more than the 75.0 %",
        ),
        (a_record(fired=0.0), rc.Threshold(), "no row of the validation data fires: train for longer, or lower"),
        (a_record(fired=0.0), rc.Never(), None),
        ({"training": {"accuracy": 0.5}}, rc.Threshold(), "answers 50.0 % of the training data"),
        ({"training": {"accuracy": 0.7}}, rc.Threshold(), None),
    ],
)
def test_what_is_wrong_with_a_model(record, rule, said):
    problem = problem_of(record, rule, SOURCE)
    assert problem is None if said is None else said in problem
    assert said is None or "train for longer" in problem


def test_a_run_that_is_not_learning_says_so_once_and_early():
    inputs, labels = torch.randn(64, 5, 1), torch.tensor([0, 0, 0, 1] * 16)
    settings = {"epochs": 50, "batch_size": 8, "learning_rate": 1e-9, **QUIET}  # 400 batches
    with pytest.warns(UserWarning) as caught:
        history = rc.fit(make_network(), (inputs, labels), rc.AtSpike(0.99), rc.Training(**settings))
    (warning,) = [str(each.message) for each in caught]
    assert warning.startswith("after 200 of 400 batches the network answers ")
    assert "train for longer" in warning and "\n" not in warning
    assert history.problem is not None and history.problem in warning
    with pytest.warns(UserWarning, match=r"^after 200 of 400 batches no row of the validation data fires: "):
        data = SimpleNamespace(train=(inputs, labels), validation=(inputs, labels))
        history = rc.fit(make_network(), data, rc.AtSpike(0.99), rc.Training(**settings))
    assert history.problem.startswith("no row of the validation data fires")


@pytest.mark.parametrize("settings", [{"epochs": 40, "learning_rate": 0.02}, {"epochs": 10, "learning_rate": 1e-9}])
def test_a_run_that_learns_or_is_very_short_says_nothing(settings):
    data = SimpleNamespace(train=easy(64), validation=easy(32, seed=1))
    with warnings.catch_warnings(action="error"):
        history = rc.fit(make_network(), data, rc.AtSpike(0.8), rc.Training(batch_size=8, **settings, **QUIET))
    assert (history.problem is None) == (settings["epochs"] == 40)
