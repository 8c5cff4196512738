"""Numbers that a computation on a GPU needs over and over: copied there once, for every copy makes the host wait."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor


@lru_cache(maxsize=256)
def constant(values: tuple[float, ...], type: torch.dtype, device: torch.device) -> Tensor:
    """The values as a tensor; not to be written to."""
    with torch.inference_mode(False):
        return torch.tensor(values, dtype=type, device=device)
