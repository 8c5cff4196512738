"""What could not be used of the data, said where a user sees it."""

from __future__ import annotations

import sys
from collections.abc import Iterable


def say_left_out(lines: Iterable[str]) -> None:
    for line in lines:
        print(f"left out: {line}", file=sys.stderr)
