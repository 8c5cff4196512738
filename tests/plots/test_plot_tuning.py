"""Rules fitted to a wish, and calibration, drawn."""

import numpy as np
import pytest
import torch

from rankcode.stopping import Tuning, Wish
from rankcode.stopping.calibration import reliability
from rankcode.stopping.tuning import Point

plots = pytest.importorskip("rankcode.plots")
CURVE = tuple(Point(accuracy, steps, steps / 40, 1.0, 0.0) for accuracy, steps in ((0.5, 1.0), (0.8, 8.0), (0.9, 20.0)))


def tuning(wish, curve=CURVE, chosen=1):
    return Tuning(None, "threshold", wish, CURVE[chosen], (0.75, 0.86), 200, "", curve)


def lines(figure):
    return {line.get_label(): line for line in figure.axes[0].get_lines()}


def test_the_chosen_point_has_its_interval():
    figure = plots.plot_tuning(tuning(Wish(accuracy=0.78)))
    (bars,) = figure.axes[0].containers
    dot, _, (bar,) = bars.lines
    np.testing.assert_allclose(dot.get_xydata(), [[8, 80]])
    np.testing.assert_allclose(bar.get_segments()[0], [[8, 75], [8, 86]])
    np.testing.assert_allclose(lines(figure)["threshold rules"].get_xydata(), [[1, 50], [8, 80], [20, 90]])
    title = figure.axes[0].get_title(loc="left")
    assert title.startswith("wish: accuracy 0.78\n") and "80.0 % (75.0 to 86.0 %" in title


@pytest.mark.parametrize(
    ("wish", "label", "ends"),
    [
        (Wish(accuracy=0.78), "wish: accuracy 0.78", [[0, 78], [1, 78]]),  # from 0 to 1 of the width
        (Wish(mean_steps=9), "wish: mean_steps 9", [[9, 0], [9, 1]]),
        (Wish(alpha=0.4), "the same cost (alpha 0.4): better above", None),
        (Wish(cost_per_step=0.01), "the same cost (cost_per_step 0.01): better above", None),
    ],
)
def test_the_wish_is_a_line(wish, label, ends):
    line = lines(plots.plot_tuning(tuning(wish)))[label]
    if ends is None:  # through the chosen point; a step costs 0.01
        (first, low), (last, high) = line.get_xydata()
        assert np.interp(8, [first, last], [low, high]) == pytest.approx(80)
        assert (high - low) / (last - first) == pytest.approx(1.0)
    else:
        np.testing.assert_allclose(line.get_xydata(), ends)


def test_a_family_of_one_rule_is_drawn_beside_another():
    figure = plots.plot_tuning(tuning(Wish(alpha=0.2), CURVE[1:2]), {"one threshold": tuning(Wish(alpha=0.2))})
    assert "threshold rules" not in lines(figure)
    assert len(lines(figure)["one threshold"].get_xdata()) == 3
    plots.plot_tuning(tuning(Wish(false_alarms_per_hour=1, seconds_per_step=0.1)))


def test_reliability_is_drawn_in_percent_with_the_mean_distance():
    torch.manual_seed(0)
    logits = 2 * torch.randn(2000, 3)
    labels = torch.distributions.Categorical(logits=logits).sample()
    parts = {"sure": reliability((3 * logits).softmax(1), labels), "true": reliability(logits.softmax(1), labels)}
    drawn = lines(plots.plot_reliability(parts))
    for name, part in parts.items():
        line = drawn[f"{name}: {100 * part.error:.1f} points off on average"]
        np.testing.assert_allclose(line.get_xydata(), 100 * torch.stack([part.confidence, part.accuracy], 1))
    limits = plots.plot_reliability(parts).axes[0].get_xlim()
    assert all(limits[0] < x < limits[1] for line in list(drawn.values())[1:] for x in line.get_xdata())
