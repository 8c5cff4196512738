"""Confusion matrices."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rankcode.plots.style import DARK, short

MAX_SIDE = 14  # inches of a matrix: with many classes, cells shrink
MAX_NAME = 18  # characters


def plot_confusion(matrices: Mapping[str, Sequence[Sequence[int]]], names: Sequence[str]) -> Figure:
    """Rows of each true class by their answer, a panel for each rule. `matrices` are those of `rankcode.Report`.

    The shade is the square root of the share of the true class, so that rare confusions are visible.
    """
    cell = min(0.55, MAX_SIDE / len(names))  # inches
    margin = 0.9 + 0.09 * min(MAX_NAME, max(map(len, names)))
    size = max(cell * len(names) + margin, 4.2)
    figure = Figure(figsize=(size * len(matrices), size + 0.3), layout="constrained")
    panels = figure.subplots(1, len(matrices), squeeze=False)[0]
    for axes, (title, matrix) in zip(panels, matrices.items(), strict=True):
        _draw_matrix(axes, np.asarray(matrix), names, cell)
        wrapped = textwrap.fill(title, max(16, int((size - margin) / 0.09)))
        axes.set_title(wrapped, loc="left", fontsize=10, parse_math=False)
    return figure


def _draw_matrix(axes: Axes, matrix: np.ndarray, names: Sequence[str], cell: float) -> None:
    share = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    shade = np.sqrt(share)
    axes.imshow(shade, cmap="Blues", vmin=0, vmax=1.1)
    digits = len(str(matrix.max()))
    number_size = min(9.0, 72 * cell / (0.75 * digits + 0.5))
    for true, answer in np.argwhere(matrix):
        colour = "white" if shade[true, answer] > 0.65 else DARK
        style = {"ha": "center", "va": "center", "fontsize": number_size, "color": colour}
        axes.text(answer, true, str(matrix[true, answer]), **style)
    shown = [short(str(name), MAX_NAME) for name in names]
    size = min(9.0, 72 * cell * 0.75)
    rotation = 90 if max(map(len, shown)) * 0.6 * size > 60 * cell else 0
    axes.set_xticks(range(len(names)), shown, fontsize=size, parse_math=False, rotation=rotation)
    axes.set_yticks(range(len(names)), shown, fontsize=size, parse_math=False)
    axes.set(xlabel="answer", ylabel="true class")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    edges = np.arange(len(names) + 1) - 0.5
    axes.hlines(edges, edges[0], edges[-1], color="#e3e5e8", lw=0.5)
    axes.vlines(edges, edges[0], edges[-1], color="#e3e5e8", lw=0.5)
