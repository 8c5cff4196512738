"""Settings of PyTorch on a CPU for the time of one run, and for its backward pass."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from rankcode.engines.run import Run

MIN_PARALLEL_SIZE = 7_000_000  # multiplications in a step, which take a tenth of a millisecond


@contextmanager
def single_thread_if(small: bool) -> Iterator[None]:
    """Run small steps in one thread. Only in the main thread: PyTorch takes the number set here for new threads."""
    before = torch.get_num_threads()
    if not small or before == 1 or not _in_main_thread():
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def without_onednn_if(native: bool) -> Iterator[None]:
    """Run LSTMs with PyTorch's own kernels instead of oneDNN's. Only in the main thread: the setting is global."""
    mkldnn: Any = torch.backends.mkldnn
    if not native or not mkldnn.enabled or not _in_main_thread():
        yield
        return
    mkldnn.enabled = False
    try:
        yield
    finally:
        mkldnn.enabled = True


@contextmanager
def denormals_flushed() -> Iterator[None]:
    """Replace denormal numbers by zero in this thread: with them a CPU is many times as slow. Gradients that fade from
    step to step, in networks that are sure of their answers, become denormal."""
    if sys.float_info.min / 2 == 0 or not torch.set_flush_denormal(True):  # flushed already, or not supported
        yield
        return
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


class _BackwardSettings(torch.autograd.Function):
    """The identity. Its backward pass, the first of a run, makes settings for all that follow."""

    @staticmethod
    def forward(ctx, outputs, small):  # type: ignore[override]
        ctx.small = small
        return outputs.view_as(outputs)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[override]
        settings = ExitStack()
        settings.enter_context(single_thread_if(ctx.small))
        settings.enter_context(denormals_flushed())
        # Called at the end of the backward pass. If the pass fails, PyTorch drops the callback and with it the
        # contexts, which are left then.
        engine: Any = torch.autograd.Variable._execution_engine
        engine.queue_callback(settings.close)
        return gradient, None


def run_with_settings(run: Callable[[], Run], small: bool, native: bool = False) -> Run:
    """Run forward with denormals flushed, in one thread if `small`, without oneDNN if `native`. The backward pass has
    the same settings."""
    with single_thread_if(small), without_onednn_if(native), denormals_flushed():
        result = run()
    if not result.logits.requires_grad:
        return result
    return result._replace(logits=_BackwardSettings.apply(result.logits, small))  # type: ignore[arg-type]


def is_small(weights: int, rows: int) -> bool:
    """Whether a step of a cell with so many weights is so small that a second thread does not pay: it waits for the
    first at every step, and if another program keeps its core busy, a training step can take a hundred times as
    long."""
    return rows * weights < MIN_PARALLEL_SIZE


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
