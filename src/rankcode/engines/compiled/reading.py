"""Rows read by the compiled steps, in one or more threads, and the gradients of the weights."""

from __future__ import annotations

import math
from ctypes import addressof, byref, c_void_p

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rankcode.cells import GRU
from rankcode.engines.compiled.library import NEW, functions, in_threads, openmp
from rankcode.engines.run import Keep, readout_of, table_of
from rankcode.network import Network
from rankcode.rules import Rule

ACTIVATIONS = ("relu", "tanh", "sigmoid")  # as in recurrence.c
SLOTS = 48  # rows at once in a thread: their state stays in the processor's first caches
AHEAD = 6  # steps whose inputs are multiplied at once: a tile, as for rows
MIN_PARALLEL_SIZE = 1e7  # multiplications of all steps; fewer take a tenth of a millisecond
CHUNK_VALUES = 2**19  # 2 MB
MAX_CHUNKS_AT_ONCE = 64
MAX_FREE_CHUNKS = 128
_FREE: list[np.ndarray] = []  # chunks to be used again: fresh memory takes longer to map than steps to compute


def _checked(part: Tensor, *shape: int) -> Tensor:
    """As C reads it: contiguous, and of the right shape and type."""
    if part.shape != shape or part.dtype != torch.float32 or part.device.type != "cpu":
        raise ValueError(
            f"expected float32 numbers of shape {list(shape)} on the CPU, not {part.dtype} {list(part.shape)}"
        )
    return part.detach().contiguous()


def _rounded(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


class Reading:
    """One run of a network with an LSTM or GRU of one layer."""

    def __init__(
        self, network: Network, inputs: Tensor, lengths: Tensor, rule: Rule, planted: Tensor | None, keep: Keep
    ):
        cell, self.keep = network.cell, keep
        self.weights: tuple[Tensor, ...] = cell.weights(0)
        gradients = torch.is_grad_enabled()
        self.saves = keep == "read" or (gradients and any(part.requires_grad for part in self.weights))
        rows, steps = inputs.shape[:2]
        self.inputs = _checked(inputs, rows, steps, cell.input_size)
        self.ends = (lengths if planted is None else planted.minimum(lengths)).long().contiguous()
        if not 1 <= self.ends.min() <= self.ends.max() <= steps or len(self.ends) != rows:
            raise ValueError(f"lengths must be {rows} numbers from 1 to {steps}")
        self.job = job = NEW.copy()
        compiled = functions()
        job.lanes = min(compiled.most_lanes(), 8 if cell.hidden_size <= 8 else 16)
        job.gru, job.inputs, job.units = isinstance(cell, GRU), cell.input_size, cell.hidden_size
        job.padded, job.rows, job.steps = _rounded(job.units, job.lanes), rows, steps
        job.x, job.ends = self.inputs.data_ptr(), self.ends.data_ptr()
        lines, sizes = cell.gates * job.units, ((job.inputs,), (job.units,), (), ())
        # In memory, as long as the job.
        self.kept = [_checked(part, lines, *size) for part, size in zip(self.weights, sizes, strict=True)]
        job.weight_ih, job.weight_hh, job.bias_ih, job.bias_hh = (part.data_ptr() for part in self.kept)
        self.answered, self.fired = self.ends, torch.empty(0)
        self.logits: Tensor | None = None  # of the answers, without gradients
        if planted is None:
            logits = self._add_rule(network, rule)
            self.logits = None if gradients or keep == "read" else logits
        self.packed = torch.empty(compiled.packed_size(byref(job), self.saves))
        job.packed = self.packed.data_ptr()
        compiled.pack(byref(job), self.saves)
        job.every_step, job.ahead = keep == "read", AHEAD
        if self.saves:
            self.last_entry = torch.empty(rows, dtype=torch.int64)
            job.last_entry = self.last_entry.data_ptr()
            job.width = ((5 if job.gru else 6) + (keep == "read")) * job.padded
        size = rows * steps * sum(part.numel() for part in self.kept[:2])
        parallel = size >= MIN_PARALLEL_SIZE and openmp() is not None
        job.stride = min(torch.get_num_threads(), -(-rows // 2)) if parallel else 1
        job.slots = min(SLOTS, -(-rows // job.stride))
        self.shares: list[_Share] = []

    def _add_rule(self, network: Network, rule: Rule) -> Tensor:
        job, rows, steps = self.job, len(self.inputs), self.inputs.shape[1]
        inner, activation, last = readout_of(network)  # type: ignore[misc]
        job.classes, job.one_output = network.num_classes, network.activation == "sigmoid"
        job.padded_classes, size = _rounded(job.classes, job.lanes), job.units
        parts = []
        if inner is not None:
            size = job.inner = inner.out_features
            job.padded_inner, job.activation = _rounded(size, job.lanes), ACTIVATIONS.index(activation)
            parts = [_checked(inner.weight, size, job.units), _checked(inner.bias, size)]
            job.inner_weight, job.inner_bias = (part.data_ptr() for part in parts)
        parts += [_checked(last.weight, network.outputs, size), _checked(last.bias, network.outputs)]
        job.last_weight, job.last_bias = (part.data_ptr() for part in parts[-2:])
        table = _checked(table_of(rule, steps, job.classes, torch.float32, self.inputs.device), steps, job.classes)
        table = torch.nn.functional.pad(table, (0, job.padded_classes - job.classes), value=math.inf)
        self.answered, self.fired = torch.empty(rows, dtype=torch.int64), torch.empty(rows, dtype=torch.bool)
        logits = torch.empty(rows, job.classes)
        job.answered, job.fired, job.logits = self.answered.data_ptr(), self.fired.data_ptr(), logits.data_ptr()
        job.table = table.data_ptr()
        self.kept += [*parts, table, logits]
        return logits

    def features(self) -> Tensor:
        """The features of each row's answer or, with keep="read", of every step read, with gradients."""
        if self.saves and torch.is_grad_enabled():
            return _Features.apply(self, *self.weights)  # type: ignore[return-value]
        return self.read()

    def read(self) -> Tensor:
        features = torch.empty(len(self.inputs), self.job.units)
        self.job.features = features.data_ptr()
        self.shares = [_Share(self, number) for number in range(self.job.stride)]
        left = self.shares
        while left:
            in_threads(functions().read_all, [share.job for share in left])
            left = [share for share in left if share.job.full]
            for share in left:
                share.add_chunks()
        if self.keep == "answer":
            return features
        return torch.cat([after for share in self.shares for after in share.hidden_after()])

    def places(self) -> Tensor:
        """row · steps + step of every step read, with steps counted from 0."""
        return torch.cat([share.place[: share.job.entries] for share in self.shares])

    def gradients(self, gradient: Tensor) -> list[Tensor]:
        """The gradients of the weights. What was kept is overwritten."""
        if not self.shares:  # a second backward pass through the same graph
            self.read()
        gradient, job = gradient.contiguous(), self.job
        for share in self.shares:
            share.job.gradient, share.job.next, share.job.live = gradient.data_ptr(), share.number, 0
            if self.keep == "read":
                gradient = gradient[share.job.entries :]
        in_threads(functions().go_back_all, [share.job for share in self.shares])
        padded, units, inputs = job.padded, job.units, job.inputs
        # The columns belong to the inputs, a 1 and the hidden state.
        of_gates = torch.zeros(4 * padded, inputs + 1 + units)
        for share in self.shares:
            share.add_gradients(of_gates)
            share.free()
        self.shares = []
        of_gates = of_gates.view(4, padded, -1)[:, :units]
        of_input, of_bias, of_hidden = of_gates.split((inputs, 1, units), 2)
        if not job.gru:
            order = other = slice(None)
        else:  # the gates are the hidden state's part of the candidate, reset, update and candidate
            order, other = slice(1, None), [1, 2, 0]
        return [
            of_input[order].flatten(0, 1),
            of_hidden[other].flatten(0, 1),
            of_bias[order].flatten(),
            of_bias[other].flatten().clone(),
        ]


class _Features(torch.autograd.Function):
    @staticmethod
    def forward(ctx, reading: Reading, *weights: Tensor):  # type: ignore[override]
        ctx.reading = reading
        features = reading.read()
        # The chunks are saved so that PyTorch knows of their memory.
        ctx.save_for_backward(reading.inputs, *weights, *(part for share in reading.shares for part in share.chunks))
        return features

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):  # type: ignore[override]
        _ = ctx.saved_tensors  # an error if they are gone, or were changed in place
        return None, *ctx.reading.gradients(gradient)


class _Share:
    """The rows of one thread, and what is kept of their steps."""

    def __init__(self, reading: Reading, number: int):
        self.job = job = reading.job.copy()
        job.next = self.number = number
        size = 3 * job.padded + job.padded_classes + job.padded_inner + job.ahead * (3 if job.gru else 4) * job.padded
        self.work = torch.empty(job.slots * size)
        job.work = self.work.data_ptr()
        self.arrays: list[np.ndarray] = []
        self.chunks: list[Tensor] = []
        if reading.saves:
            total = int(reading.ends[number :: job.stride].sum())
            self.place, self.previous = torch.empty(2, total, dtype=torch.int64)
            job.place, job.previous = self.place.data_ptr(), self.previous.data_ptr()
            job.shift = max(0, int(math.log2(max(CHUNK_VALUES // job.width, job.slots))))
            self.addresses = (c_void_p * -(-total >> job.shift))()
            job.chunks = addressof(self.addresses)
            self.add_chunks()

    def add_chunks(self) -> None:
        """Memory for all steps that may follow, or for some of them. Fresh memory takes no place until it is used."""
        job, number = self.job, len(self.chunks)
        for place in range(number, min(number + MAX_CHUNKS_AT_ONCE, -(-len(self.place) >> job.shift))):
            array = _take_chunk(job.width << job.shift)
            self.arrays.append(array)
            self.addresses[place] = array.ctypes.data
            self.chunks.append(torch.from_numpy(array))
            job.capacity += 1 << job.shift

    def free(self) -> None:
        """Keep some of the memory for others."""
        for array in self.arrays:
            if len(array) == CHUNK_VALUES and len(_FREE) < MAX_FREE_CHUNKS:
                _FREE.append(array)

    def entries(self) -> list[Tensor]:
        """What is kept of each step: [entries, width] for each chunk."""
        job, left = self.job, self.job.entries
        counts = [min(1 << job.shift, left - (number << job.shift)) for number in range(len(self.chunks))]
        return [
            chunk[: count * job.width].view(count, job.width)
            for chunk, count in zip(self.chunks, counts, strict=True)
            if count > 0
        ]

    def hidden_after(self) -> list[Tensor]:
        begin = self.job.width - self.job.padded
        return [part[:, begin : begin + self.job.units] for part in self.entries()]

    def add_gradients(self, of_gates: Tensor) -> None:
        """Add this share's part of the gradients of the gates' weights, [4 · padded, inputs + 1 + units]."""
        job, padded, first = self.job, self.job.padded, 0
        for part in self.entries():
            before = torch.empty(len(part), of_gates.shape[1])
            functions().gather(byref(job), first, len(part), before.data_ptr())
            first += len(part)
            turned = part[:, : 4 * padded].t()
            if not job.gru:
                of_gates.addmm_(turned, before)
            else:  # the first gate does not read the inputs, the last not the hidden state
                of_gates[padded:, : job.inputs + 1].addmm_(turned[padded:], before[:, : job.inputs + 1])
                of_gates[: 3 * padded, job.inputs + 1 :].addmm_(turned[: 3 * padded], before[:, job.inputs + 1 :])
                of_gates[:padded, job.inputs] += part[:, :padded].sum(0)


def _take_chunk(size: int) -> np.ndarray:
    if size > CHUNK_VALUES:
        return np.empty(size, np.float32)
    try:
        return _FREE.pop()
    except IndexError:
        return np.empty(CHUNK_VALUES, np.float32)
