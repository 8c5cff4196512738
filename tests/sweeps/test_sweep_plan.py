"""What a sweep is going to train, and what is refused before anything starts."""

import json

import pytest

import rankcode as rc
from rankcode.sweeps.plan import continued, make_plan, next_suggestion
from rankcode.sweeps.sweep_folder import SweepFolder

TASK = rc.tasks.Spotting(validation_rows=10, test_rows=10)


def plan_of(over, task=TASK, options=None, **limits):
    return json.loads(json.dumps(make_plan(task, over, {"hidden_size": 2} | (options or {}), **limits)))


def test_conventional_training_has_no_threshold_so_it_is_trained_once():
    over = {"beta": [0, 0.1], "threshold": [0.9, 0.95], "objective": ["at-spike", "at-end"]}
    runs = plan_of(over)["runs"]
    assert len(runs) == 6
    assert [run["beta"] for run in runs if run["objective"] == "at-end"] == [0, 0.1]


def test_the_search_that_is_chosen():
    over = {"beta": [0, 0.1, 0.2]}
    assert plan_of(over)["search"] == plan_of(over, runs=3)["search"] == "grid"
    some = plan_of(over, runs=2)
    assert some["search"] == "random" and len(some["runs"]) == 2 and some["early_stopping"]
    ranged = plan_of({"learning_rate": "1e-4..1e-2"})
    assert ranged["search"] == "random" and len(ranged["runs"]) == 20
    assert not plan_of(over)["early_stopping"] and plan_of(over, early_stopping=True)["early_stopping"]


@pytest.mark.parametrize(
    ("over", "options", "limits", "message"),
    [
        ({}, {}, {}, "name at least one option"),
        ({"speed": [1]}, {}, {}, "speed is not an option"),
        ({"folder": ["a"]}, {}, {}, "folder is not an option"),
        ({"beta": [0]}, {"beta": 0.1}, {}, "beta is given twice"),
        ({"beta": [0, "x"]}, {}, {}, "beta=… must be a number"),
        ({"threshold": [0.9, 1.5]}, {}, {}, "threshold=1.5 is outside"),
        ({"cell": ["gru", "rnn"]}, {}, {}, "cell must be one of"),
        ({"hidden_size": [4, 0]}, {}, {}, "hidden_size must be at least 1"),
        ({"learning_rate": [0.1, -1]}, {}, {}, "learning_rate must be a number above 0"),
        ({"learning_rate": "-1..1"}, {}, {"search": "bayesian"}, "learning_rate must be a number above 0"),
        ({"kernel_size": [3]}, {}, {}, "kernel_size is for conv-lstm"),
        ({"augment": [True]}, {}, {}, "augment= does not apply"),
        ({"beta": [0, 0.1]}, {}, {"search": "grid", "runs": 1}, "the grid has 2 runs"),
        ({"beta": "0..1"}, {}, {"search": "grid"}, "a grid needs values"),
        ({"beta": [0]}, {}, {"search": "best"}, "search must be one of"),
        ({"beta": [0]}, {}, {"runs": 0}, "runs must be at least 1"),
        ({"beta": [0]}, {}, {"thresholds": [0.2]}, r"threshold 0.2"),
    ],
)
def test_what_is_refused(over, options, limits, message):
    with pytest.raises(ValueError, match=message):
        make_plan(TASK, over, options, **limits)


def test_data_that_a_worker_cannot_read_is_refused():
    arrays = rc.tasks.OwnData.of([[0.0, 1.0]] * 20, [0, 1] * 10)
    with pytest.raises(ValueError, match="a sweep needs data that its workers can read"):
        make_plan(arrays, {"beta": [0]}, {})


def test_a_plan_goes_on_only_with_the_same_settings_and_may_grow():
    over = {"learning_rate": "1e-4..1e-2"}
    short, long = plan_of(over, runs=3), plan_of(over, runs=5)
    assert continued(short, long) == long and continued(long, short) == long
    assert continued(short, plan_of(over, runs=3, options={"num_layers": 2})) is None
    assert continued(short, plan_of({"learning_rate": "1e-4..1e-1"}, runs=3)) is None
    assert continued(short, plan_of(over, runs=3, options={"device": "cpu"})) == short


def test_a_bayesian_search_stops_when_every_combination_is_tried(tmp_path):
    pytest.importorskip("optuna")
    folder = SweepFolder(tmp_path / "sweep")
    plan = plan_of({"beta": [0, 0.1, 0.2]}, runs=10, search="bayesian")
    assert plan["runs"] == []
    while (options := next_suggestion(folder, plan)) is not None:
        plan["runs"].append(options)
        folder.write_result(len(plan["runs"]), {"status": "failed", "reason": "no"})
    assert sorted(run["beta"] for run in plan["runs"]) == [0, 0.1, 0.2]
