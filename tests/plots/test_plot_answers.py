"""When a network answers and why, drawn."""

import numpy as np
import pytest
import torch

import rankcode as rc
from live_networks import FirstFeatures

answers = pytest.importorskip("rankcode.plots.answers")
WAVE = torch.sin(torch.arange(60) / 5)[:, None]


def networks():
    """A recurrent network, and one that answers at checkpoints alone."""
    random = np.random.default_rng(0)
    y = np.arange(40) % 2
    x = random.normal(size=(40, 60)) + 0.5 * y[:, None] * (np.arange(60) > 20)
    torch.manual_seed(0)
    recurrent = rc.Network(rc.cells.GRU(1, 8), 3)
    return recurrent, rc.EarlyClassifier(random_state=0).fit(x, y).network_


RECURRENT, KERNELS = networks()


def panel(figure):
    """The axes of the first row: its series, and the probabilities below it."""
    return figure.axes[0], figure.axes[len(figure.axes) // 2]


def boundaries(axes):
    return [line for line in axes.get_lines() if line.get_label() == answers.BOUNDARY]


@pytest.mark.parametrize(
    ("network", "rule"),
    [
        (RECURRENT, rc.Threshold(0.38)),
        (RECURRENT, rc.StepThresholds((0.9, 0.6, 0.4, 0.35))),
        (RECURRENT, rc.OptimalStopping((1, 9, 30, 60), ((-1.0, 1.0), (-0.2, 1.0), (0.0, 1.0)), (1.0, 2.0, 0.5, 1.0))),
        (KERNELS, None),
    ],
)
def test_the_answer_is_where_the_largest_probability_first_reaches_the_boundary(network, rule):
    rule = network.rule if rule is None else rule
    inputs = WAVE[None] if network.front_end is None else network.front_end(WAVE[None])[0]
    decision = rc.decide(network, inputs, rule=rule)
    _, below = panel(answers.plot_answers(network, [WAVE], rule=rule))
    (boundary,) = boundaries(below)
    *classes, dot, _ = [line for line in below.get_lines() if line is not boundary]
    steps, lowest = boundary.get_xdata(), boundary.get_ydata()
    largest = np.max([np.interp(steps, line.get_xdata(), line.get_ydata()) for line in classes], 0)
    reached = largest >= lowest - 0.005  # the grid on which the rule is asked
    assert steps[reached.argmax()] == int(decision.steps) == dot.get_xdata()[0]
    assert dot.get_ydata()[0] == pytest.approx(float(decision.probabilities.max()))
    assert (network.checkpoints is None) == (boundary.get_drawstyle() == "default")


def test_what_comes_after_the_answer_is_faint_and_the_title_says_when():
    figure = answers.plot_answers(RECURRENT, [WAVE, WAVE], ["2", "0"], ["a.npz, row 1", "b"], rc.FireAt(7))
    label = int(rc.decide(RECURRENT, WAVE[None], rule=rc.FireAt(7)).label)
    above, below = panel(figure)
    assert above.get_title(loc="left") == f"a.npz, row 1\nanswered {label} after 7 of 60 steps (true: 2)"
    for axes in (above, below):
        (shade,) = axes.patches
        assert (shade.get_x(), shade.get_x() + shade.get_width()) == (7, 60.5)
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["0", "1", "2", "answer"]  # planted steps have no boundary
    with_features = answers.plot_answers(RECURRENT, [WAVE], rule=FirstFeatures())  # nor has a rule that reads features
    assert boundaries(panel(with_features)[1]) == []
    silent = answers.plot_answers(RECURRENT, [WAVE], rule=rc.Never())
    assert "after 60 of 60 steps, without a spike" in " ".join(panel(silent)[0].get_title(loc="left").split())
    assert [*panel(silent)[0].patches, *panel(silent)[1].patches] == []


@pytest.mark.parametrize(("classes", "channels", "count"), [(2, 1, 1), (7, 8, 5), (60, 9, 6)])
def test_no_text_covers_another(classes, channels, count):
    torch.manual_seed(0)
    network = rc.Network(rc.cells.GRU(channels, 4), classes)
    network.label_names = tuple(f"a long $name$ of a class {k}" for k in range(classes))
    rows = [torch.randn(100, channels) for _ in range(count)]
    figure = answers.plot_answers(network, rows, [network.label_names[k % classes] for k in range(count)])
    figure.draw_without_rendering()
    drawn = [axes for axes in figure.axes if axes.get_visible()]
    assert len(drawn) == 2 * count
    boxes = [axes.get_tightbbox() for axes in drawn] + [figure.legends[0].get_window_extent()]
    assert [1 for k, box in enumerate(boxes) for other in boxes[:k] if box.padded(-1).overlaps(other)] == []
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.x1 for box in boxes)
    assert any(axes.images for axes in drawn) == (channels > 8)


def test_membranes_are_compared_with_theta():
    torch.manual_seed(0)
    network = rc.Network(rc.cells.LIF(1, 3, emits="membranes"), 3)
    _, below = panel(answers.plot_answers(network, [3 * WAVE], rule=rc.Threshold(0.4)))
    assert below.get_ylabel() == "membrane"
    assert [set(line.get_ydata()) for line in boundaries(below)] == [{0.4}]


def test_sound_is_drawn_as_its_frames_and_the_answer_hides_what_was_not_heard():
    front_end = rc.Audio((0.0,) * 20, (1.0,) * 20, context=3)
    network = rc.Network(rc.cells.GRU(front_end.output_shape[0], 4), 2)
    network.front_end = front_end
    frames = torch.randint(255, (30, 20), dtype=torch.uint8)
    above, _ = panel(answers.plot_answers(network, [frames], rule=rc.FireAt(5)))
    (image,) = above.images
    assert image.get_array().shape == (20, 30)
    assert image.get_extent()[:2] == [-5.5, 24.5]  # step 1 hears 7 frames, step 24 the last of 30


def test_which_rows_are_shown():
    assert answers.some_of_each(["b", "a", "b", "b", "a"]) == [1, 4, 0, 2]
    assert answers.some_of_each(list(range(10)) * 2) == [0, 1, 2, 3, 4, 5]
    assert answers.some_of_each([0] * 5) == [0, 1]


def test_no_rows():
    with pytest.raises(ValueError, match="there is no row to draw"):
        answers.plot_answers(RECURRENT, [])
