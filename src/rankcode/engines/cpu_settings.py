"""Settings of PyTorch on a CPU for the time of one run, and for its backward pass."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rankcode.engines.run import Run

MIN_PARALLEL_SIZE = 7_000_000  # multiplications in a step, which take a tenth of a millisecond


@contextmanager
def single_thread_if(small: bool) -> Iterator[None]:
    """Run small steps in one thread. Only in the main thread: PyTorch takes the number set here for new threads."""
    before = torch.get_num_threads()
    if not small or before == 1 or threading.current_thread() is not threading.main_thread():
        yield
        return
    try:
        torch.set_num_threads(1)
        yield
    finally:
        torch.set_num_threads(before)


def _settings(small: bool) -> Generator[None, None, None]:
    """Denormal numbers are replaced by zero in this thread, and small steps run in one thread, until the generator is
    resumed or deleted. With denormal numbers a CPU is many times as slow, and gradients that fade from step to step, in
    networks that are sure of their answers, become denormal."""
    flushes = False
    with single_thread_if(small):
        try:
            # Not if they are flushed already, or if that is not supported.
            flushes = sys.float_info.min / 2 != 0 and torch.set_flush_denormal(True)
            yield
        finally:
            if flushes:
                torch.set_flush_denormal(False)


def _begin_backward(small: bool, gradient: Tensor) -> None:
    """A hook of the outputs of a run, where its backward pass begins: make settings for all that follows."""
    settings = _settings(small)
    engine: Any = torch.autograd.Variable._execution_engine
    try:
        next(settings)
        # Called at the end of the backward pass. If the pass fails, PyTorch deletes callback and settings.
        engine.queue_callback(partial(next, settings, None))
    except BaseException:  # Ctrl-C
        settings.close()
        raise


def run_with_settings(run: Callable[[], Run], small: bool) -> Run:
    """Run forward with denormals flushed, in one thread if `small`. The backward pass has the same settings."""
    with contextmanager(_settings)(small):
        result = run()
    if result.logits.requires_grad:
        result.logits.register_hook(partial(_begin_backward, small))
    return result._replace(one_thread=small and torch.get_num_threads() > 1)


def in_one_thread(loss: Callable[[], Tensor]) -> Tensor:
    """A loss, in one thread; its backward pass, too. PyTorch uses all threads for the cross-entropy of any batch."""
    with single_thread_if(True):
        result = loss()
    if result.requires_grad:
        result.register_hook(partial(_begin_backward, True))
    return result


def is_small(weights: int, rows: int) -> bool:
    """Whether a step of a cell with this many weights is so small that a second thread does not pay: it waits for the
    first at every step, and if another program keeps its core busy, a training step can take a hundred times as
    long."""
    return rows * weights < MIN_PARALLEL_SIZE
