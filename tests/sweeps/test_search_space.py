"""Lists, ranges, and the order in which combinations are tried."""

import itertools
import math

import numpy as np
import pytest

from rankcode.sweeps.search_space import Range, Trial, grid, random_combinations, read_space, suggestions


def test_lists_values_and_ranges():
    over = {"beta": [0, 0.1, 0], "learning_rate": "1e-4..1e-2", "hidden_size": "32..64", "cell": "gru"}
    space = read_space(over)
    assert space == {
        "beta": [0, 0.1],
        "learning_rate": Range(1e-4, 1e-2),
        "hidden_size": Range(32, 64),
        "cell": ["gru"],
    }
    assert read_space({"learning_rate": str(space["learning_rate"])})["learning_rate"] == space["learning_rate"]
    assert space["hidden_size"].whole and not space["learning_rate"].whole


@pytest.mark.parametrize("text", ["1..", "..", "1..1", "2..1", "a..b", "1..2..3", "0..inf"])
def test_what_is_no_range(text):
    with pytest.raises(ValueError, match=r"^beta has the range .*, not one such as"):
        read_space({"beta": text})


def test_a_range_above_zero_is_log_uniform():
    random = np.random.default_rng(0)
    drawn = [Range(1e-4, 1e-2).draw(random) for _ in range(2000)]
    assert min(drawn) >= 1e-4 and max(drawn) <= 1e-2
    assert abs(np.mean([value < 1e-3 for value in drawn]) - 0.5) < 0.04
    uniform = [Range(0, 0.4).draw(random) for _ in range(2000)]
    assert abs(np.mean(uniform) - 0.2) < 0.01 and min(uniform) >= 0 and max(uniform) <= 0.4
    assert all(value == float(f"{value:.4g}") for value in drawn)  # as one can read it
    assert {Range(0.50004, 0.50006).draw(random) for _ in range(9)} <= {0.50004, 0.50006}
    whole = [Range(1, 4).draw(random) for _ in range(500)]
    assert set(whole) == {1, 2, 3, 4} and all(isinstance(value, int) for value in whole)


def test_a_grid_has_every_combination_and_random_order_has_each_once():
    space = read_space({"beta": [0, 0.1], "hidden_size": [2, 3, 4]})
    combinations = list(grid(space))
    assert len(combinations) == 6 and combinations[1] == {"beta": 0, "hidden_size": 3}
    mixed = list(random_combinations(space, 0))
    assert mixed != combinations and sorted(mixed, key=str) == sorted(combinations, key=str)
    assert mixed == list(random_combinations(space, 0)) != list(random_combinations(space, 1))
    with pytest.raises(ValueError, match=r"a grid needs values, and beta has the range 0\.\.1"):
        list(grid(read_space({"beta": "0..1"})))


def test_suggestions_approach_the_best_and_depend_on_the_trials_alone():
    pytest.importorskip("optuna")
    space = read_space({"learning_rate": "1e-4..1e-1", "cell": ["gru", "lstm"]})

    def value(options):
        return -abs(math.log10(options["learning_rate"]) + 2) - (options["cell"] == "lstm")

    trials = []
    for _ in range(25):
        options = next(suggestions(space, trials, seed=0))
        assert options == next(suggestions(space, trials, seed=0))
        assert options["learning_rate"] == float(f"{options['learning_rate']:.4g}")
        trials.append(Trial(options, value(options)))
    first, last = (np.mean([trial.value for trial in part]) for part in (trials[:8], trials[-8:]))
    assert last > first + 0.3
    running = [*trials, Trial(options, None)]
    different = itertools.islice(suggestions(space, running, seed=0), 3)
    assert len({each["learning_rate"] for each in different}) == 3
