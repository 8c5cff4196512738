"""Any cell on a GPU: blocks of steps as CUDA graphs, between which rows that have answered leave.

A step of most cells consists of small kernels, which take the host longer to launch than the GPU to run. So a block is
captured as a CUDA graph, once for each number of rows and steps, and replayed from then on. Its backward pass is a
graph as well, which first computes the block again: all that is kept of a block is its inputs and the state before it.
Cells that draw random numbers, which would be others the second time, or that cannot be captured, run on `stepwise`.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar
from weakref import WeakKeyDictionary, ref

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call
from torch.nn.utils.parametrize import is_parametrized

from rankcode.engines import stepwise
from rankcode.engines.block_reading import read_in_blocks
from rankcode.engines.capture import CudaGraphs, settings_of
from rankcode.engines.run import Keep, Run, has_hooks, read_steps
from rankcode.network import Network
from rankcode.rules import Rule
from rankcode.state import State, map_state

MAX_BLOCK_STEPS = 16
MIN_ROWS = 8  # of a graph: it runs fewer rows in the same time
MAX_OUTPUTS = 2**21  # of a step
MAX_BLOCKS = 64  # captured with the same settings; if more are needed, they are captured anew
MAX_SETTINGS = 4  # of a network whose blocks are kept: training and evaluation, for example


def can_run(network: Network, inputs: Tensor, rule: Rule) -> str | None:
    if network.checkpoints is not None:
        return "its readout changes from step to step"
    for part in network.cell.modules():
        if has_hooks(part):
            return "hooks of its cell would not be called"
        if is_parametrized(part):
            return "parametrized weights are computed once for each run"
    return None


def slower(network: Network, inputs: Tensor) -> bool:
    """Whether steps are so large that launching them takes no time, and computing them again does. Measured on an
    H200."""
    return math.prod(getattr(network.cell, "output_shape", ())) * len(inputs) > MAX_OUTPUTS


def run(
    network: Network, inputs: Tensor, lengths: Tensor, rule: Rule, keep: Keep, expected_steps: Tensor | None = None
) -> Run:
    blocks = _Blocks.of(network, inputs)
    if blocks.failed or blocks.random:
        return stepwise.run(network, inputs, lengths, rule, keep, expected_steps)
    with blocks.lock, torch.cuda.device_of(inputs):
        return read_in_blocks(network, inputs, lengths, rule, keep, expected_steps, _Plan(), blocks.read)


class _Plan:
    """Blocks whose number of steps is a power of two, so that few graphs are needed. Each is as long as all before it,
    or until half of the rows that are left is expected to have answered."""

    answers = np.empty(0)

    def expect(self, answers: np.ndarray) -> None:
        self.answers = answers

    def steps(self, first: int, remaining: np.ndarray) -> int:
        later = self.answers[np.searchsorted(self.answers, first, "right") :]
        half = int(later[len(later) // 2]) - first if len(later) else 0
        steps = min(MAX_BLOCK_STEPS, max(1, first, half), int(remaining.max()))
        return 1 << (steps.bit_length() - 1)


class _Blocks:
    """The captured blocks of a network with the same weights, modes of its modules and settings of PyTorch."""

    all: ClassVar[WeakKeyDictionary[Network, dict[Hashable, _Blocks]]] = WeakKeyDictionary()
    looking: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, network: Network, inputs: Tensor):
        self.network = ref(network)
        self.pool = torch.cuda.graph_pool_handle() if torch.cuda.is_available() else None
        self.weights = [part for part in network.cell.parameters() if part.requires_grad]
        self.blocks: dict[Hashable, _Block] = {}
        self.lock = threading.RLock()  # a block has memory for one run at a time
        self.failed = False  # whether its cell cannot be captured, for example because it waits for the GPU
        self.random = self._is_random(network, inputs)

    @classmethod
    def of(cls, network: Network, inputs: Tensor) -> _Blocks:
        key = settings_of(network.cell, inputs)
        with cls.looking:
            found = cls.all.setdefault(network, {})
            if key not in found or len(found[key].blocks) > MAX_BLOCKS:
                if len(found) == MAX_SETTINGS:
                    del found[next(iter(found))]
                found[key] = _Blocks(network, inputs)
            return found[key]

    @staticmethod
    @torch.no_grad()
    def _is_random(network: Network, inputs: Tensor) -> bool:
        """Whether a step draws random numbers."""
        read = torch.cuda.get_rng_state if inputs.is_cuda else torch.get_rng_state
        before = read()
        network.cell(inputs[:1, 0], network.initial_state(1))
        return not torch.equal(before, read())

    def read(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """The features [rows, steps, …] of a block and the state after it."""
        rows, before = len(inputs), list(_parts(state))
        number = max(MIN_ROWS, 1 << (rows - 1).bit_length())  # a power of two, so that few graphs are needed
        key = number, inputs.shape[1:], inputs.requires_grad, torch.is_inference_mode_enabled()
        if key not in self.blocks:
            self.blocks[key] = _Block(self, inputs, state)
        block = self.blocks[key]
        given = [_padded(part, number) for part in (inputs, *before)]
        if torch.is_grad_enabled() and (self.weights or any(part.requires_grad for part in given)):
            features, *after = _Read.apply(block, len(given), *given, *self.weights)  # type: ignore[misc]
        else:
            features, *after = block.forward(*given)
        parts = iter(after)
        return features[:rows], map_state(lambda _: next(parts)[:rows], block.after)


class _Block:
    """A fixed number of steps of a fixed number of rows, forward and backward."""

    def __init__(self, blocks: _Blocks, inputs: Tensor, state: State):
        self.blocks, self.network, self.of_inputs = blocks, blocks.network, inputs.requires_grad
        self.before = map_state(lambda part: part[:0].detach(), state)
        self.device = inputs.device.type
        self.precision = torch.get_autocast_dtype(self.device) if torch.is_autocast_enabled(self.device) else None
        self.graphs = CudaGraphs(self._forward, pool=blocks.pool), CudaGraphs(self._backward, pool=blocks.pool)
        self.after: State = None  # the state after the block, and the features
        self.outputs: tuple[Tensor, ...] = ()
        self.gradients: tuple[Tensor | None, ...] = ()

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        """Features and the parts of the state after the block, valid until another block is computed."""
        self._launch(0, *given)
        return self.outputs

    def backward(self, *given: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of inputs, state and weights, valid until another block is computed."""
        self._launch(1, *given)
        return self.gradients

    def is_captured(self, backward: bool) -> bool:
        return bool(self.graphs[backward].graphs)

    def _launch(self, backward: int, *given: Tensor) -> None:
        graphs = self.graphs[backward]
        if self.device == "cpu" or self.blocks.failed:
            graphs.work(*given)
        else:
            graphs(None, *given)
            self.blocks.failed = graphs.failed

    def _forward(self, *given: Tensor) -> None:
        with torch.no_grad(), fastest_convolutions():
            self.outputs = self._read(*given)

    def _backward(self, *given: Tensor) -> None:
        network: Any = self.network()
        number = 1 + len(list(_parts(self.before)))
        given, gradients = given[:number], given[number:]
        with torch.enable_grad(), fastest_convolutions():
            leaves = [part.detach() for part in given]
            wanted = [part.requires_grad_() for part in leaves[not self.of_inputs :] if part.is_floating_point()]
            # Leaves of their own for the weights: those of the network have gradients on the stream of the run.
            named = [(name, part) for name, part in network.named_parameters() if part.requires_grad]
            weights = {name: part.detach().requires_grad_() for name, part in named if name.startswith("cell.")}
            pairs = zip(_floating(self._read(*leaves, weights=weights)), gradients, strict=True)
            outputs, gradients = zip(*(pair for pair in pairs if pair[0].requires_grad), strict=True)
            found = iter(torch.autograd.grad(outputs, [*wanted, *weights.values()], gradients, allow_unused=True))
        of_given = [next(found) if part.requires_grad else None for part in leaves]
        self.gradients = (*of_given, *found)

    def _read(self, inputs: Tensor, *state: Tensor, weights: dict[str, Tensor] | None = None) -> tuple[Tensor, ...]:
        parts, reader = iter(state), _Reader(self.network())
        given = inputs, map_state(lambda _: next(parts), self.before)
        enabled = self.precision is not None
        with torch.autocast(self.device, self.precision, enabled=enabled, cache_enabled=False):
            replaced = {f"network.{name}": part for name, part in (weights or {}).items()}
            features, after = functional_call(reader, replaced, given)
        self.after = map_state(Tensor.detach, after)
        return features, *_parts(after)


@contextmanager
def fastest_convolutions() -> Iterator[None]:
    """Let cuDNN try its algorithms when a shape is new, which pays because there are few shapes."""
    cudnn: Any = torch.backends.cudnn
    before, cudnn.benchmark = cudnn.benchmark, not cudnn.deterministic
    try:
        yield
    finally:
        cudnn.benchmark = before


class _Reader(nn.Module):
    """Many steps of a network's cell, as a module."""

    def __init__(self, network: Any):
        super().__init__()
        self.network = network

    def forward(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        return read_steps(self.network, inputs, state)


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(ctx, block: _Block, number: int, *tensors: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        given = tensors[:number]
        outputs = tuple(part.clone() for part in block.forward(*given))
        ctx.block = block
        ctx.save_for_backward(*given)
        ctx.mark_non_differentiable(*(part for part in outputs if not part.is_floating_point()))
        if block.is_captured(backward=False) and not block.is_captured(backward=True):
            # A capture is made in this thread, not in that of the backward pass.
            block.backward(*given, *_floating(outputs))
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx, *gradients: Tensor):  # type: ignore[override]
        block = ctx.block
        wanted = [own for own, output in zip(gradients, block.outputs, strict=True) if output.is_floating_point()]
        with block.blocks.lock:
            found = block.backward(*ctx.saved_tensors, *wanted)
            return None, None, *(None if part is None else part.clone() for part in found)


def _parts(state: State) -> Iterator[Tensor]:
    found: list[Tensor] = []
    map_state(lambda part: found.append(part) or part, state)
    return iter(found)


def _floating(parts: Iterable[Tensor]) -> list[Tensor]:
    return [part for part in parts if part.is_floating_point()]


def _padded(part: Tensor, rows: int) -> Tensor:
    """With rows of zeros after its own."""
    if len(part) == rows:
        return part
    return torch.cat([part, part.new_zeros(rows - len(part), *part.shape[1:])])
