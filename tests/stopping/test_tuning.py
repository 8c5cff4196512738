"""A wish is met on rows that the rule was not fitted to, or refused with what can be reached."""

import pytest
import torch
from test_backward_induction import random_traces

from rankcode import Network, Threshold, cells, fit_rule
from rankcode.rules import OptimalStopping, StepThresholds
from rankcode.stopping import Wish, tune_on
from rankcode.stopping.tuning import wilson


@pytest.mark.parametrize("kind", ["threshold", "step-thresholds", "optimal", "auto"])
def test_an_accuracy_is_kept_on_new_rows_as_early_as_possible(kind):
    fitted, new = random_traces(800, 30), random_traces(20000, 30, seed=1)
    early, late = (tune_on(fitted, Wish(accuracy=value), kind) for value in (0.8, 0.9))
    for tuning in (early, late):
        label, steps, _ = new.decide(tuning.rule)
        accuracy = float((label == new.labels).double().mean())
        low, high = tuning.interval
        assert low <= accuracy <= high and low < tuning.expected.accuracy < high
        assert abs(float(steps.double().mean()) - tuning.expected.mean_steps) < 1
    assert early.expected.mean_steps < late.expected.mean_steps


def test_a_number_of_steps_is_kept():
    fitted, new = random_traces(800, 30), random_traces(20000, 30, seed=1)
    tuning = tune_on(fitted, Wish(mean_steps=6), "optimal")
    assert tuning.expected.mean_steps <= 6
    _, steps, _ = new.decide(tuning.rule)
    assert 4 < float(steps.double().mean()) < 6.5


def test_with_many_rows_a_number_of_steps_is_used_up():
    tuning = tune_on(random_traces(5000, 30), Wish(mean_steps=6), "optimal")
    assert 5.8 < tuning.expected.mean_steps <= 6  # with the costs of fewer rows it is 5.2
    assert [point.mean_steps for point in tuning.curve] == sorted(point.mean_steps for point in tuning.curve)


def test_a_dearer_step_means_earlier_answers():
    traces = random_traces(500, 30)
    steps = [tune_on(traces, Wish(cost_per_step=price)).expected.mean_steps for price in (0.05, 0.01, 0.002)]
    assert steps[0] < steps[1] < steps[2]
    by_length = [tune_on(traces, Wish(alpha=price * 30)).expected.mean_steps for price in (0.05, 0.01, 0.002)]
    assert by_length == pytest.approx(steps, abs=0.5)


def test_false_alarms():
    traces = random_traces(500, 30)
    wish = Wish(false_alarms_per_hour=10, seconds_per_step=1.0)  # 500 rows of 30 s: 4.2 hours
    tuning = tune_on(traces, wish, "threshold")
    label, _, fired = traces.decide(tuning.rule)
    assert 0 < int((fired & (label != traces.labels)).sum()) <= 10 * 500 * 30 / 3600
    with pytest.raises(ValueError, match="seconds_per_step"):
        Wish(false_alarms_per_hour=1)


def test_one_threshold_is_taken_where_nothing_beats_it():
    traces = random_traces(400, 30)
    tuning = tune_on(traces, Wish(alpha=0.0), "auto")
    assert isinstance(tuning.rule, Threshold) and "is no better" in tuning.reason


def test_kinds_of_rules():
    traces = random_traces(100, 10)
    kinds = {"threshold": Threshold, "step-thresholds": StepThresholds, "optimal": OptimalStopping}
    for kind, expected in kinds.items():
        assert type(tune_on(traces, Wish(alpha=0.3), kind).rule) is expected
    with pytest.raises(ValueError, match="kind must be auto, threshold"):
        tune_on(traces, Wish(), "best")


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ({"accuracy": 0.95, "mean_steps": 3}, "one quantity, not 2: accuracy=…, mean_steps=…"),
        ({"accuracy": 95}, "between 0 and 1"),
        ({"accuracy": "x"}, "must be a number"),
        ({"mean_steps": 0.5}, "at least 1"),
        ({"alpha": -1}, "at least 0"),
    ],
)
def test_wishes_that_make_no_sense(wish, message):
    with pytest.raises(ValueError, match=message):
        Wish(**wish)


def test_a_wish_out_of_reach_says_what_can_be_reached():
    traces = random_traces(200, 5)
    with pytest.raises(ValueError, match=r"accuracy of 99.9 % cannot be reached: the highest is [89]"):
        tune_on(traces, Wish(accuracy=0.999))
    with pytest.raises(ValueError, match="at least 4 held-out rows, not 3"):
        tune_on(traces.rows(torch.arange(3)), Wish())


def test_the_default_wish():
    assert Wish().alpha == 0.2 and str(Wish()) == "alpha 0.2" and str(Wish(accuracy=0.9)) == "accuracy 0.9"


def test_a_rule_for_a_network_is_used_like_any_other():
    torch.manual_seed(0)
    network = Network(cells.GRU(1, 4), 2)
    data = torch.randn(60, 8, 1), torch.randint(2, (60,))
    rule = fit_rule(network, data, mean_steps=4, kind="optimal")
    assert isinstance(rule, OptimalStopping)


def test_wilson():
    low, high = wilson(0.9, 100)
    assert (round(low, 3), round(high, 3)) == (0.826, 0.945)  # Wilson 1927
    assert wilson(1.0, 20)[1] == 1.0 and wilson(0.0, 20)[0] == 0.0
