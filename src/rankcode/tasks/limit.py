"""What an ideal observer reaches: how often it is right, and after how many steps."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Limit(NamedTuple):
    """A limit, or a curve of them: one entry for each threshold or step cost asked for."""

    accuracy: Tensor  # share of sequences answered right
    steps: Tensor  # mean steps read; a sequence that never fires counts as its full length
