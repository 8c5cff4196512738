"""Small tensors that computations on a GPU read again and again, copied there once: each copy makes the host wait."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

MAX_TENSORS, MAX_BYTES = 256, 2**26  # in the cache, all together; the least recently used tensors are dropped

_cache: OrderedDict[Hashable, Tensor] = OrderedDict()
_lock = threading.Lock()
_used: list[Tensor] | None = None


def constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """The values as a tensor, which must not be written to."""
    return cached((values, dtype, device), device, lambda: torch.tensor(values, dtype=dtype, device=device))


def cached(key: Hashable, device: torch.device, make: Callable[[], Tensor]) -> Tensor:
    """The tensor that `make` returned when it was first called for this key. It must not be written to."""
    with _lock:
        tensor = _cache.get(key)
        if tensor is not None:
            _cache.move_to_end(key)
    if tensor is None:
        with torch.inference_mode(False):  # it may be used in training later
            tensor = make()
        if not capturing(device):  # memory that a graph allocates has its values only once the graph is replayed
            with _lock:
                _cache[key] = tensor
                while len(_cache) > MAX_TENSORS or sum(part.nbytes for part in _cache.values()) > MAX_BYTES:
                    _cache.popitem(last=False)
    if _used is not None:
        _used.append(tensor)
    return tensor


@contextmanager
def used_constants() -> Iterator[list[Tensor]]:
    """A list that receives every constant used in the context. A captured CUDA graph must hold on to it: replays read
    the constants at their addresses, also after the cache has dropped them."""
    global _used
    before, _used = _used, []
    try:
        yield _used
    finally:
        _used = before


def capturing(device: torch.device) -> bool:
    """Whether a CUDA graph is being captured, during which the host cannot read or copy anything."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
