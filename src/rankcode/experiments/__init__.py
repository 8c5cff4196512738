"""The paper's figures and tables, one module each: what is trained, how it is drawn, the paper's numbers and ours."""

from __future__ import annotations

from importlib import import_module
from typing import Any

# In the order of the page.
EXPERIMENTS = ("fig1", "fig2", "fig3", "table1", "fig4", "fig5", "fig6", "fig7", "fig8", "fig9", "fig10")


def experiment(name: str) -> Any:
    """The module of a figure or table: `TITLE`, and `reproduce(place)`."""
    return import_module(f"rankcode.experiments.figures.{name}")
