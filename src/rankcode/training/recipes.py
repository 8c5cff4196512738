"""Settings that go together: the default, chosen by measurement (docs/choosing.md), and the paper's.

A recipe has settings of the network, of the objective and of `Training`. What a user sets takes precedence.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, NamedTuple

from rankcode.training.config import SMALL_DATA, Training
from rankcode.training.standard_network import CellName

RecipeName = Literal["default", "paper"]
PAPER = Training(
    batch_size=128, learning_rate=0.001, schedule="constant", max_grad_norm=None, input_noise=0.0, select="accuracy"
)


class Recipe(NamedTuple):
    cell: CellName
    hidden_size: int  # of this cell
    objective: str
    training: Training


def recipe(name: RecipeName, rows: int | None) -> Recipe:
    """The recipe for this many training rows; None if they are generated."""
    if name == "paper":
        generated = replace(PAPER, learning_rate=0.0003)
        return Recipe("lstm", 125, "at-spike", generated if rows is None else PAPER)
    small = rows is not None and rows < SMALL_DATA
    return Recipe("gru", 64 if small else 125, "until-spike", Training())
