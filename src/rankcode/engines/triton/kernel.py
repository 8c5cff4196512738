"""A Triton kernel with its constants."""

from __future__ import annotations

from typing import Any


class Kernel:
    """Compiled at the first call. Later calls launch what was compiled as it is: Triton's own way looks at every
    argument first, which takes longer than many of our kernels run. So all tensors must lie at multiples of 16
    bytes, and be of the types they had at the first call."""

    def __init__(self, function: Any, *, num_warps: int = 4, num_stages: int = 3, **constants: Any):
        self.function, self.constants = function, constants
        self.settings = {"num_warps": num_warps, "num_stages": num_stages}
        self.tail = [constants[name] for name in function.arg_names if name in constants]
        self.compiled: Any = None

    def __call__(self, grid: tuple[int, int, int], *arguments: Any) -> None:
        if self.compiled is None:  # which it stays where Triton interprets
            self.compiled = self.function[grid](*arguments, **self.constants, **self.settings)
        else:
            self.compiled[grid](*arguments, *self.tail)
