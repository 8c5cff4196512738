"""Accuracy against steps read, drawn."""

import numpy as np
import pytest

import rankcode as rc

plots = pytest.importorskip("rankcode.plots")


def curve(thresholds, accuracy, steps):
    flat = (1.0,) * len(steps)
    return rc.Curve(thresholds, accuracy, steps, tuple(each / 40 for each in steps), flat, None, 0.3, 0.5)


THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999)
RISING = curve(THRESHOLDS, (0.5, 0.6, 0.7, 0.8, 0.9, 0.94, 0.955, 0.96), (1.0, 3.0, 5.0, 8.0, 13.0, 16.0, 22.0, 30.0))


def labels(figure):
    return [text for text in figure.axes[0].texts if text.get_text()]


def on_screen(figure):
    lines = figure.axes[0].get_lines()
    return np.concatenate([figure.axes[0].transData.transform(line.get_xydata()) for line in lines])


@pytest.mark.parametrize("curves", [1, 2, 5])
def test_theta_is_written_beside_dots_and_covers_nothing(curves):
    similar = {
        f"run {k}": curve(THRESHOLDS, tuple(a - 0.002 * k for a in RISING.accuracy), RISING.mean_steps)
        for k in range(curves)
    }
    figure = plots.plot_tradeoff(similar, {"limit": (np.array([0.9, 0.97]), np.array([9.0, 30.0]))})
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in labels(figure)]
    assert {text.get_text() for text in labels(figure)} >= {"θ=0.95", "θ=0.99", "θ=0.9"}
    assert [box for box in boxes if box.count_contains(on_screen(figure))] == []
    assert [1 for k, box in enumerate(boxes) for other in boxes[:k] if box.overlaps(other)] == []


def test_other_thresholds_than_usual_are_written_too():
    figure = plots.plot_tradeoff({"membranes": curve((2.0, 4.0), (0.8, 0.9), (3.0, 9.0))})
    assert [text.get_text() for text in labels(figure)] == ["θ=2", "θ=4"]


def test_the_legend_covers_no_point_and_has_every_name():
    figure = plots.plot_tradeoff({"_hidden": RISING, "$cost$ \\frac{": RISING}, title="ECG $200$")
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["_hidden", "$cost$ \\frac{"]
    assert legend.get_window_extent().count_contains(on_screen(figure)) == 0
    assert not legend.get_window_extent().overlaps(figure.axes[0].get_window_extent())
    assert figure.axes[0].get_title(loc="left") == "ECG $200$"


def test_every_threshold_is_in_the_picture():
    figure = plots.plot_tradeoff({"run": curve((0.5, 0.9, 0.99), (0.3, 0.8, 0.9), (1.0, 4.0, 6.0))})
    figure.draw_without_rendering()
    assert all(figure.axes[0].get_window_extent().contains(*dot) for dot in on_screen(figure))


def test_small_differences_do_not_fill_the_picture():
    axes = plots.plot_tradeoff({"run": curve((0.5, 0.9), (0.95, 0.9502), (1.0, 4.0))}).axes[0]
    assert axes.get_ylim()[1] - axes.get_ylim()[0] == pytest.approx(5)
