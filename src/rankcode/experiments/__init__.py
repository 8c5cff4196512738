"""The reproduction of the paper, and the demo.

`figures/` has a module for each figure and table of the paper, `trainings/` the settings of the runs behind them.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# In the order of docs/reproduction.md.
EXPERIMENTS = ("fig1", "fig2", "fig3", "table1", "fig4", "fig5", "fig6", "fig7", "fig8", "fig9", "fig10")


def experiment(name: str) -> Any:
    """The module of a figure or table. It has a `TITLE` and `reproduce(place)`."""
    return import_module(f"rankcode.experiments.figures.{name}")
