"""Colours and axes that all pictures share."""

from __future__ import annotations

BLUE, RED, GREEN, GREY = "#1f6fd6", "#d1495b", "#2a9d5c", "#8a8f98"
COLOURS = (BLUE, RED, "#e0912f", GREEN, "#7b5cc4", "#16a3a3")
DARK = "#30343b"  # theoretical limits and inputs


def plain(axes) -> None:
    """Remove the box and add a faint grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
