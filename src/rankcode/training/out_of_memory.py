"""Name what ran out of memory, in place of the words of PyTorch's allocators."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

CPU_ALLOCATOR = ("DefaultCPUAllocator", "Storage size calculation overflowed")  # PyTorch has no class for its errors


@contextmanager
def memory_for(what: str, advice: str) -> Iterator[None]:
    """Raise a MemoryError of one line where PyTorch cannot allocate what is needed."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        cpu = isinstance(error, MemoryError) or any(words in str(error) for words in CPU_ALLOCATOR)
        if not cpu and not isinstance(error, torch.OutOfMemoryError):
            raise
        place = "memory" if cpu else "GPU memory"
        asked = re.search(r"allocate (\d+) bytes|allocate ([\d.]+ \wiB)", str(error))
        size = "" if asked is None else f" ({asked[2] or f'{int(asked[1]) / 2**30:,.1f} GiB'} asked for)"
        raise MemoryError(f"there is not enough {place} for {what}{size}: {advice}") from None
