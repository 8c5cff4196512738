"""The composite front, against brute force, and what is picked from it."""

import numpy as np
import pytest

from rankcode.stopping import Wish
from rankcode.sweeps.front import _chosen as chosen
from rankcode.sweeps.front import composite, points_of


def result(random, count=6):
    def curve():
        steps, accuracy = np.round(random.uniform(1, 9, count), 0), np.round(random.uniform(0.5, 1, count), 1)
        values = {"mean_steps": steps, "accuracy": accuracy, "earliness": steps / 10, "fired": np.ones(count)}
        return {"thresholds": list(range(count)), "majority": 0.5, **{name: v.tolist() for name, v in values.items()}}

    return {"status": "finished", "validation": curve(), "test": curve()}


@pytest.mark.parametrize("seed", range(20))
def test_the_front_is_what_no_other_point_beats_on_validation_data(seed):
    random = np.random.default_rng(seed)
    results = {number: result(random) for number in range(1, 5)} | {5: {"status": "failed", "reason": "no"}}
    points = [point for number in results for point in points_of(number, results[number])]
    assert len(points) == 24

    def beats(one, other):
        a, b = one["validation"], other["validation"]
        at_least = a["accuracy"] >= b["accuracy"] and a["mean_steps"] <= b["mean_steps"]
        return at_least and (a["accuracy"] > b["accuracy"] or a["mean_steps"] < b["mean_steps"])

    best = [point for point in points if not any(beats(other, point) for other in points)]
    pairs = {(point["validation"]["accuracy"], point["validation"]["mean_steps"]) for point in best}
    front = composite(results)
    assert [(p["validation"]["accuracy"], p["validation"]["mean_steps"]) for p in front] == sorted(pairs)
    assert all(point in best for point in front)


FRONT = [
    {"threshold": theta, "validation": {"accuracy": a, "mean_steps": s, "earliness": s / 20, "fired": 1.0}}
    for theta, a, s in ((0.5, 0.6, 2.0), (0.7, 0.8, 5.0), (0.9, 0.95, 9.0), (0.99, 0.97, 15.0))
]


@pytest.mark.parametrize(
    ("wish", "theta"),
    [
        ({"accuracy": 0.8}, 0.7),
        ({"accuracy": 0.81}, 0.9),
        ({"mean_steps": 14.9}, 0.9),
        ({"mean_steps": 2}, 0.5),
        ({"alpha": 1}, 0.7),
        ({"alpha": 0.01}, 0.99),
        ({"cost_per_step": 0.03}, 0.9),
        ({}, 0.9),
    ],
)
def test_the_point_that_meets_a_wish(wish, theta):
    assert chosen(FRONT, Wish(**wish))["threshold"] == theta


def test_a_wish_that_cannot_be_met():
    with pytest.raises(ValueError, match=r"0\.99 cannot be reached: the most is 0\.970"):
        chosen(FRONT, Wish(accuracy=0.99))
    with pytest.raises(ValueError, match=r"1\.5 steps on average cannot be reached: the least is 2\.00"):
        chosen(FRONT, Wish(mean_steps=1.5))
