"""`ranks.py`: ranks with ties and gaps, and which differences are more than chance."""

import numpy as np
import pytest

pytest.importorskip("scipy")

from rankcode.experiments.compare.ranks import different, groups, mean_ranks, means_at


def named(rows):
    """Costs of methods a, b, … from a table [sets, methods]; None where there is no result."""
    names = "abcdef"[: len(rows[0])]
    return {name: {f"s{n}": row[k] for n, row in enumerate(rows) if row[k] is not None} for k, name in enumerate(names)}


def test_costs_are_means_over_seeds():
    one = {"set": "s", "method": "a", "alpha": 0.1}
    records = [
        {**one, "seed": 0, "cost": 0.2}, {**one, "seed": 1, "cost": 0.4}, {**one, "seed": 2, "error": "no memory"},
        {**one, "seed": 0, "cost": 9.0, "alpha": 1.0},
    ]  # fmt: skip
    assert means_at(records, 0.1) == {"a": {"s": pytest.approx(0.3)}}


def test_equals_share_a_rank_and_a_missing_set_counts_for_the_others_only():
    found = mean_ranks(named([[0.1, 0.1, 0.2], [0.3, 0.2, None], [0.1, 0.2, 0.3]]))
    assert found == {"a": pytest.approx(4.5 / 3), "b": pytest.approx(4.5 / 3), "c": 3.0}
    assert list(mean_ranks(named([[0.3, 0.1]]))) == ["b", "a"]


def test_what_differs_on_every_set_differs_and_noise_does_not():
    random = np.random.default_rng(0)
    base = random.random(12)
    rows = [[b, b + random.normal() * 1e-3, b + 0.5 + random.random() * 0.1] for b in base]
    costs = named(rows)
    assert different(costs) == {frozenset("ac"), frozenset("bc")}
    assert [set(each) for each in groups(mean_ranks(costs), different(costs))] == [{"a", "b"}]


def test_holm_asks_for_more_where_more_pairs_are_tested():
    """Six sets in a row give p = 1/32: enough for one pair, not for one of three."""
    assert different(named([[0.1 * n, 0.2 + 0.11 * n] for n in range(6)])) == {frozenset("ab")}
    assert different(named([[0.1 * n, 0.2 + 0.11 * n, 0.5 + 0.12 * n] for n in range(6)])) == set()


def test_equal_methods_do_not_differ():
    assert different(named([[0.1, 0.1]] * 9)) == set()


def test_groups_overlap_but_none_is_inside_another():
    ranks = {name: float(place) for place, name in enumerate("abcd", 1)}
    assert groups(ranks, {frozenset("ac"), frozenset("ad")}) == [["a", "b"], ["b", "c", "d"]]
    assert groups(ranks, set()) == [["a", "b", "c", "d"]]
