"""Colours and axes that all plots share."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.legend import Legend

BLUE, RED, GREEN, GREY = "#1f6fd6", "#d1495b", "#2a9d5c", "#8a8f98"
COLOURS = (BLUE, RED, "#e0912f", GREEN, "#7b5cc4", "#16a3a3")
DARK = "#30343b"  # theoretical limits and inputs


def plain(axes) -> None:
    """Remove the box and add a faint grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)


def legend_below(figure: Figure, handles: Sequence[Artist], names: Sequence[str]) -> Legend:
    """A legend below the axes, in as many columns as fit. A $ in a name is not math."""
    width = 0.65 + 0.085 * max(map(len, names))  # of a column, in inches
    columns = min(len(names), max(1, int(figure.get_figwidth() / width)))
    legend = figure.legend(handles, names, frameon=False, loc="outside lower center", ncols=columns)
    for text in legend.get_texts():
        text.set_parse_math(False)
    return legend


def short(name: str, length: int = 24) -> str:
    """A name in at most `length` characters: its beginning and its end."""
    half = (length - 1) // 2
    return name if len(name) <= length else f"{name[:half]}…{name[-half:]}"
