"""Work on a GPU that is captured as a CUDA graph and replayed, rather than launched kernel by kernel.

A training step of a small network is about a hundred kernels, most of which take a few microseconds: the host needs
longer to launch them than the GPU to run them.
"""

from __future__ import annotations

import gc
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from rankcode.device_constants import used_constants

WARMUP_RUNS = 3  # before a capture: in the first runs kernels are compiled and libraries allocate their memory
MAX_GRAPHS = 8  # each keeps memory for its tensors; work with tensors of more different shapes is run without a graph


_one_at_a_time = threading.Lock()  # for captures, which share a stream


class _Captured(NamedTuple):
    graph: torch.cuda.CUDAGraph
    arguments: list[Tensor | None]  # a replay reads its arguments here
    constants: list[Tensor]  # that the graph reads


class CudaGraphs:
    """Runs `work(*tensors)`, as CUDA graphs once the same shapes have come a few times: one graph is captured for each
    key and set of shapes, and replayed from then on.

    `work` returns None and stores its results in its own tensors. It must not wait for the GPU, and everything else
    that it depends on must be in `key`. If a capture fails, `undo` is called to remove what the incomplete run left
    behind, and `work` is run without graphs from then on. Graphs that share a memory `pool` must not run at the same
    time. `warmup_runs`: how often the same shapes come before, by default WARMUP_RUNS.
    """

    def __init__(
        self,
        work: Callable[..., None],
        undo: Callable[[], None] = lambda: None,
        pool: Any = None,
        warmup_runs: int | None = None,
    ):
        self.work, self.undo, self.pool = work, undo, pool
        self.warmup_runs = WARMUP_RUNS if warmup_runs is None else warmup_runs
        self.seen: Counter[Hashable] = Counter()
        self.graphs: dict[Hashable, _Captured] = {}
        self.failed = False

    def __call__(self, key: Hashable, *tensors: Tensor | None) -> None:
        key = (key, *(None if part is None else (part.shape, part.dtype) for part in tensors))
        if key not in self.graphs:
            here = threading.get_ident(), key  # cuDNN chooses its algorithms in each thread anew
            self.seen[here] += 1
            if self.seen[here] <= self.warmup_runs or self.failed or len(self.graphs) == MAX_GRAPHS:
                return self.work(*tensors)
            try:
                self.graphs[key] = self._capture(tensors)
            except RuntimeError as error:
                self.failed = True
                _end_capture()
                self.undo()
                reason = str(error).splitlines()[0]
                warnings.warn(
                    f"no CUDA graph could be captured, so kernels are launched one by one: {reason}", stacklevel=2
                )
                return self.work(*tensors)
        graph, arguments, _ = self.graphs[key]
        for argument, part in zip(arguments, tensors, strict=True):
            if argument is not None and part is not None:
                argument.copy_(part)
        return graph.replay()

    def close(self) -> None:
        """Free the graphs' memory."""
        self.graphs.clear()
        self.work = self.undo = lambda *_: None  # they may refer to this object

    def _capture(self, tensors: tuple[Tensor | None, ...]) -> _Captured:
        arguments = [None if part is None else part.clone() for part in tensors]
        graph, stream = torch.cuda.CUDAGraph(), _stream(torch.cuda.current_device())
        # A failed capture leaves its stream as the current one; the outer context restores it.
        outer = torch.cuda.stream(torch.cuda.current_stream())
        mode = "thread_local"  # other threads may allocate memory meanwhile
        with (
            _one_at_a_time,
            _no_garbage_collection(),
            used_constants() as constants,
            outer,
            torch.cuda.graph(graph, self.pool, stream, mode),
        ):
            self.work(*arguments)
        self.pool = graph.pool()
        return _Captured(graph, arguments, constants)


def settings_of(module: nn.Module, inputs: Tensor) -> Hashable:
    """What a graph that is captured with this module and inputs depends on besides their values: the addresses of the
    weights, the modes of its parts and PyTorch's settings."""
    device, backends = inputs.device.type, cast(Any, torch.backends)
    mixed = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    parts = backends, backends.cuda.matmul, backends.cudnn, backends.cudnn.conv, backends.cudnn.rnn
    weights = [*module.parameters(), *module.buffers()]
    return (
        inputs.device, inputs.dtype, mixed, tuple(part.fp32_precision for part in parts),
        tuple((type(part), part.training) for part in module.modules()),
        tuple((part.data_ptr(), part.requires_grad) for part in weights),
    )  # fmt: skip


def _end_capture() -> None:
    """After a capture that failed: the generator of random numbers would still wait for its end, and raise an error."""
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    generator.graphsafe_set_state(torch.Generator(generator.device).manual_seed(generator.initial_seed()))


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """During a capture: it fails if another graph, or its memory, is freed."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@cache
def _stream(device: int) -> torch.cuda.Stream:
    """The stream for captures: within a pool, memory is reused only on the stream that it was first used on."""
    return torch.cuda.Stream(device)
