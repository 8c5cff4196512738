"""Confusion matrices, drawn."""

import numpy as np
import pytest

plots = pytest.importorskip("rankcode.plots")


@pytest.mark.parametrize(("classes", "panels"), [(2, 1), (3, 2), (11, 1), (60, 1)])
def test_numbers_stand_in_their_cells_and_no_text_covers_another(classes, panels):
    random = np.random.default_rng(0)
    matrix = 900 * np.eye(classes, dtype=int)
    matrix[random.integers(classes, size=50), random.integers(classes, size=50)] += 1234
    names = [f"a $long$ name of class {label}" for label in range(classes)]
    titled = {f"on 1,234 test rows, first spike, θ = 0.9{panel}": matrix for panel in range(panels)}
    figure = plots.plot_confusion(titled, names)
    figure.draw_without_rendering()
    assert len(figure.axes) == panels
    for axes in figure.axes:
        found = np.zeros_like(matrix)
        for text in axes.texts:
            column, row = text.get_position()
            found[row, column] = int(text.get_text())
            box = axes.transData.inverted().transform(text.get_window_extent())
            assert np.abs(box - text.get_position()).max() < 0.5
        np.testing.assert_array_equal(found, matrix)
        for labels in (axes.get_xticklabels(), axes.get_yticklabels()):
            boxes = [label.get_window_extent() for label in labels]
            assert len(boxes) == classes
            assert [1 for k, box in enumerate(boxes) for other in boxes[:k] if box.overlaps(other)] == []
    boxes = [axes.get_tightbbox() for axes in figure.axes]
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.x1 for box in boxes)
    assert [1 for k, box in enumerate(boxes) for other in boxes[:k] if box.overlaps(other)] == []
