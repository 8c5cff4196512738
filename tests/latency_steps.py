"""When a pixel spikes, in exact fractions."""

from fractions import Fraction
from math import ceil


def expected_step(value, levels, steps):
    return steps if value == 0 else steps - ceil(steps * Fraction(value, levels)) + 1
