"""The answers of a network: the class, after how many steps, and whether it fired."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Decision(NamedTuple):
    """The answer of each row."""

    label: Tensor  # [rows] int64: the class
    steps: Tensor  # [rows] int64: steps read, 1…length; a row that never fired counts as its full length
    fired: Tensor  # [rows] bool: whether the rule fired; a row that did not fire answers at its last step
    probabilities: Tensor  # [rows, classes]: at the step of the answer, without gradient
