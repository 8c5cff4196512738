"""Backward induction: against the formula written out, and against problems whose answer is known."""

import math

import pytest
import torch

from rankcode import Threshold
from rankcode.rules import OptimalStopping
from rankcode.stopping.backward_induction import fit_optimal, fit_step_thresholds
from rankcode.stopping.traces import Traces


def random_traces(rows=60, steps=10, seed=0):
    """A random walk of evidence for the class of each row: probabilities are exact posteriors."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(2, (rows,), generator=generator)
    drift = 0.5 * (2 * labels - 1)[:, None]
    evidence = (2 * 0.5 * (drift + torch.randn(rows, steps, generator=generator))).cumsum(1).double()
    probabilities = torch.stack([torch.zeros_like(evidence), evidence], 2).softmax(2)
    lengths = torch.full((rows,), steps)
    weights = torch.ones(rows, dtype=torch.float64)
    return Traces(probabilities, probabilities, tuple(range(1, steps + 1)), lengths, labels, weights)


def gains_by_definition(traces, waiting):
    p = traces.probabilities.amax(2).clamp(1e-4, 1 - 1e-4)
    u, c = torch.log(p / (1 - p)), 1 - p + waiting
    rows, count = u.shape
    window = round(0.4 * count)
    value, y, table = c[:, -1], {}, {}
    for k in range(count - 2, -1, -1):
        y[k] = value - c[:, k]

        def r(at, k=k):
            top = bottom = 0.0
            for q in range(k, min(k + window, count - 1)):
                for i in range(rows):
                    weight = math.exp(-((at - float(u[i, q])) ** 2) / 0.5) * (1 - (q - k) / window) + 1e-7
                    top, bottom = top + weight * float(y[q][i]), bottom + weight
            return top / bottom

        table[k] = [r(at) for at in torch.linspace(-3, 8, 56).tolist()]
        value = torch.tensor([float(value[i]) if r(float(u[i, k])) < 0 else float(c[i, k]) for i in range(rows)])
    return torch.tensor([table[k] for k in range(count - 1)])


def test_gains_are_those_of_the_formula():
    traces = random_traces(rows=25, steps=6)
    waiting = 0.03 * traces.reached
    expected = gains_by_definition(traces, waiting)
    found = torch.tensor(fit_optimal(traces, waiting).gains)
    grid, confidence = torch.linspace(-3, 8, 56), traces.probabilities.amax(2).logit()
    for step in range(5):
        low, high = confidence[:, step].min(), confidence[:, step].max()
        seen = (grid > low) & (grid < high)
        assert seen.any()
        torch.testing.assert_close(found[step, seen], expected[step, seen], atol=4e-3, rtol=0)  # values are binned
        assert found[step, -1] > 0  # a row that is surer than all others fires


def cost_of(rule, traces, price):
    label, steps, _ = traces.decide(rule)
    return float((label != traces.labels).double().mean() + price * steps.double().mean())


@pytest.mark.parametrize("price", [0.01, 0.04])
def test_fitted_rules_beat_every_single_threshold_on_new_rows(price):
    fitted, new = random_traces(2000, 30), random_traces(20000, 30, seed=1)
    optimal = cost_of(fit_optimal(fitted, price * fitted.reached), new, price)
    by_step = cost_of(fit_step_thresholds(fitted, price * fitted.reached), new, price)
    single = min(cost_of(Threshold(value), new, price) for value in (0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.98))
    assert optimal < single + 5e-4  # with constant noise one threshold is all but optimal, except near the end
    assert by_step < single + 3e-3


def test_the_price_of_waiting_decides_how_early():
    traces = random_traces(300, 20)
    steps = [
        traces.decide(fit_optimal(traces, price * traces.reached))[1].double().mean() for price in (0.5, 0.02, 0.0001)
    ]
    assert steps[0] == 1 and steps[0] < steps[1] < steps[2]


def test_the_rule_fires_at_its_steps_only_and_always_at_the_last():
    rule = OptimalStopping((2, 5, 9), ((1.0, 1.0), (-1.0, 1.0)))
    sure, unsure = torch.tensor([[0.99, 0.01]]), torch.tensor([[0.51, 0.49]])
    answers = {step: [bool(rule(p, p, step, None)[0]) for p in (unsure, sure)] for step in (1, 2, 3, 5, 9, 12)}
    assert answers == {1: [False] * 2, 2: [True] * 2, 3: [False] * 2, 5: [False, True], 9: [True] * 2, 12: [True] * 2}
    both, steps = torch.cat([sure] * 6), torch.tensor([1, 2, 3, 5, 9, 12])
    assert rule(both, both, steps, None)[0].tolist() == [answers[int(step)][1] for step in steps]


def test_a_temperature_lowers_confidence():
    hot = OptimalStopping((1, 2), ((-5.0, 6.0),), temperatures=(10.0, 1.0))
    cold = OptimalStopping((1, 2), ((-5.0, 6.0),))  # fires above a confidence of 2
    p = torch.tensor([[0.98, 0.02]])
    assert bool(cold(p, p, 1, None)[0]) and not bool(hot(p, p, 1, None)[0])


def test_a_second_axis_moves_the_boundary():
    gains = tuple(place + gain for place in range(-3, 4) for gain in (-5.5, 5.5))  # 0 at a confidence of 2.5 − place
    rule = OptimalStopping((1, 2, 3, 4), (gains,) * 3, axis=((1.0, 0.0, 0.0), (0.0, 2.0, 0.5)))
    p = torch.tensor([[0.9, 0.1]])  # a confidence of 2.2
    low, high = torch.tensor([[0.2, 9.0]]), torch.tensor([[0.3, -9.0]])  # 0.24 and 0.36 places above the middle
    assert not rule(p, p, 1, None, low)[0] and rule(p, p, 1, None, high)[0]  # the first row of weights
    assert rule(p, p, 3, None, low)[0] and not rule(p, p, 3, None, high)[0]  # the second
    together = rule(p.expand(4, 2), p.expand(4, 2), torch.tensor([1, 1, 3, 3]), None, torch.cat([low, high] * 2))[0]
    assert together.tolist() == [False, True, True, False]
    with pytest.raises(ValueError, match=r"features of shape \[rows, 2\], not \[1, 3\]"):
        rule(p, p, 1, None, torch.zeros(1, 3))
    with pytest.raises(ValueError, match=r"features of shape \[rows, 2\], not None"):
        rule(p, p, 1, None)


@pytest.mark.parametrize(
    "arguments",
    [
        ((), ()),
        ((2, 1), ((0.0, 1.0),)),
        ((1, 2), ()),
        ((1, 2, 3), ((0.0, 1.0), (1.0,))),
        ((1, 2), ((0.0, 1.0),), (1.0,)),
        ((1, 2), ((0.0, 1.0),), None, None, ((1.0, 0.0),)),
        ((1, 2), ((0.0,) * 14,), None, None, ((1.0, 0.0), (1.0,))),
        ((1, 2), ((0.0,) * 14,), None, None, ()),
    ],
)
def test_nonsense_is_refused(arguments):
    with pytest.raises(ValueError, match="must"):
        OptimalStopping(*arguments)
