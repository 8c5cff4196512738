"""Rows read by layers of LSTM or GRU, in one or more threads, and the gradients of the weights."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from ctypes import addressof, byref, c_void_p
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from rankcode.compiled.library import NEW, Job, functions
from rankcode.compiled.threads import in_threads, openmp

SLOTS = 48  # rows at once in a thread: their state stays in the processor's first caches
AHEAD = 6  # steps whose inputs are multiplied at once: a tile, as for rows
MIN_PARALLEL_SIZE = 5e6  # multiplications; fewer take less than 0.1 milliseconds
PACKING = 5  # multiplications that take as long as packing a weight
FEW_VALUES, MAX_CHUNK_VALUES = 2**17, 2**19  # float32 values: 512 KB and 2 MB
MAX_CHUNKS_AT_ONCE = 64  # allocated in one go
MAX_FREE_VALUES = 2**26  # 256 MB
MIN_SHARED_WEIGHTS = 2**16  # recurrent weights; to read fewer takes less time than to wait for another thread


class Layer:
    """A batch, and the layer that reads it, or several layers above each other.

    `weights`: as `torch.nn.LSTM` or `GRU` has them. `inputs` [rows, steps, features]: each row is read up to its step
    in `ends`, or until a rule fires, whose fields of the job the caller sets. `state`: hidden state and, for an LSTM,
    cell before the first step, [rows, units], instead of zeros. `every_step`: the features of every step read are
    returned, not only of the last. `saves`: what the backward pass needs is kept. `threads`: how many there may be.
    `above`: the weights of layers above this one, of as many units. The features are those of the topmost.
    """

    def __init__(
        self,
        weights: tuple[Tensor, ...],
        inputs: Tensor,
        ends: Tensor,
        threads: int,
        state: tuple[Tensor, ...] = (),
        every_step: bool = False,
        saves: bool = False,
        above: Sequence[tuple[Tensor, ...]] = (),
    ):
        rows, steps, features = inputs.shape
        units = weights[1].shape[1]
        self.gates = weights[1].shape[0] // units
        if features != weights[0].shape[1]:
            raise ValueError(f"the cell reads {weights[0].shape[1]} numbers a step, not {features}")
        self.inputs, self.ends = checked(inputs, rows, steps, features), ends.long().contiguous()
        shortest, longest = (bound.item() for bound in self.ends.aminmax())
        if len(ends) != rows or not 1 <= shortest <= longest <= steps:
            raise ValueError(f"lengths must be {rows} numbers from 1 to {steps}")
        self.longest = int(longest)
        self.saves, self.every_step = saves, every_step
        self.job = job = NEW.copy()
        job.lanes = min(functions().most_lanes(), 8 if units <= 8 else 16)
        job.gru, job.units, job.rows, job.steps = self.gates == 3, units, rows, steps
        job.padded, job.ahead, job.every_step = self.padded(units), AHEAD, every_step
        job.row_stride, job.step_stride = units, rows * units
        job.x, job.ends = self.inputs.data_ptr(), self.ends.data_ptr()
        self.kept: list[Tensor] = []  # in memory, as long as the job
        self.jobs = [job]  # from the lowest layer to the topmost
        self._set_weights(job, features, weights)
        for parts in above:
            self.jobs.append(job.copy())
            self._set_weights(self.jobs[-1], units, parts)
        link(self.jobs)
        self.size = (rows * steps + PACKING) * sum([part.numel() for part in self.kept])
        for name, part in zip(("first_hidden", "first_cell"), state, strict=False):
            self.kept.append(checked(part, rows, units))
            setattr(job, name, self.kept[-1].data_ptr())
        parallel = self.size >= MIN_PARALLEL_SIZE and openmp() is not None
        # A step of few rows takes as long as reading the weights, so threads share these rather than the rows.
        shared = min(threads, job.padded // job.lanes // 2)
        few = shared > 1 and rows <= 3 * shared and self.kept[1].numel() >= MIN_SHARED_WEIGHTS
        job.together = parallel and few
        self.threads = 1 if not parallel else shared if few else min(threads, -(-rows // 2))
        job.stride = 1 if job.together else self.threads
        job.slots = min(SLOTS, -(-rows // job.stride))
        self.answered: Tensor | None = None  # where a rule writes the step at which each row has answered
        self.shares: list[_Share] = []
        self.of_inputs: Tensor | None = None  # set it to have the gradients of the inputs that are read written there

    def _set_weights(self, job: Job, features: int, weights: tuple[Tensor, ...]) -> None:
        lines, sizes = self.gates * job.units, ((features,), (job.units,), (), ())
        parts = [checked(part, lines, *size) for part, size in zip(weights, sizes, strict=True)]
        self.kept += parts
        job.inputs = features
        job.weight_ih, job.weight_hh, job.bias_ih, job.bias_hh = [part.data_ptr() for part in parts]

    def memory(self, name: str, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """New memory for a field of the job."""
        found = torch.empty(shape, dtype=dtype)
        self.kept.append(found)
        setattr(self.job, name, found.data_ptr())
        return found

    def padded(self, size: int) -> int:
        """The size in whole vectors."""
        return -(-size // self.job.lanes) * self.job.lanes

    def read(self) -> Tensor:
        """The features of each row's last step read, [rows, units], or, with `every_step`, [steps, rows, units], of
        which those of steps that are not read are not set."""
        job, (rows, steps, _) = self.job, self.inputs.shape
        packed = []
        for each in self.jobs:
            packed.append(_FREE.take(functions().packed_size(byref(each), self.saves)))
            each.packed = address_of(packed[-1])
        if self.saves:
            self.last_entry = torch.empty(rows, dtype=torch.int64)
            job.last_entry, job.width = self.last_entry.data_ptr(), 0
            for each in self.jobs:  # gates, hidden state, an LSTM's cell and, above the lowest layer, the inputs
                each.offset = job.width
                job.width += (5 + (not job.gru) + (each is not job)) * job.padded
        features = torch.empty(*((steps,) if self.every_step else ()), rows, job.units)
        job.features = features.data_ptr()
        self.shares = [_Share(self, number) for number in range(self.threads)]
        self.team = (c_void_p * self.threads)(*(addressof(share.job) for share in self.shares))
        in_threads(functions().begin, self.team, self.size)
        while full := [share for share in self.shares if share.job.full]:
            for share in full:
                share.add_chunks()
            in_threads(functions().go_on, self.team, self.size)
        free = [array for share in self.shares for array in share.unused(-(-share.job.entries >> share.job.shift))]
        if self.saves:
            self.packed = packed
            # To read the same steps again. The caller may write to either tensor.
            self.ends = (self.ends if self.answered is None else self.answered).clone()
            self.answered, job.ends = None, self.ends.data_ptr()
        else:
            free += packed
        _FREE.keep(free)
        return features

    @property
    def chunks(self) -> list[Tensor]:
        """The memory of what is kept."""
        return [chunk for share in self.shares for chunk in share.chunks]

    def gradients(self, gradient: Tensor, of_cell: Tensor | None = None) -> list[Tensor]:
        """The gradients of the weights, given that of what `read` returned and, of an LSTM, that of the cell after the
        last step. What was kept is overwritten."""
        if not self.shares:  # a second backward pass through the same graph: the rule is not asked again
            self.job.table = None
            self.read()
        gradient, job = gradient.contiguous(), self.job
        of_cell = None if of_cell is None else of_cell.contiguous()
        of_weights = [torch.empty_like(part) for part in self.kept[: 4 * len(self.jobs)]]
        sums = [_FREE.take(4 * each.units * (each.inputs + each.units + 2 + each.lanes)) for each in self.jobs]
        for share in self.shares:
            own = share.job
            own.gradient = gradient.data_ptr()
            own.of_last_cell = None if of_cell is None else of_cell.data_ptr()
            own.of_first_hidden, own.of_first_cell = job.of_first_hidden, job.of_first_cell
            own.next, own.live = share.first, 0
            for number, each in enumerate(share.jobs):
                each.of_weight_ih, each.of_weight_hh, each.of_bias_ih, each.of_bias_hh = (
                    part.data_ptr() for part in of_weights[4 * number : 4 * number + 4]
                )
                each.sums = address_of(sums[number])
        in_threads(functions().go_back, self.team, self.size)
        for share in self.shares:
            if self.of_inputs is not None:
                share.set_input_gradients(self.kept[0], self.of_inputs.view(-1, job.inputs))
        _FREE.keep([*sums, *self.packed, *(array for share in self.shares for array in share.unused(0))])
        self.shares = []
        return of_weights


class _Share:
    """The rows of one thread, and what is kept of their steps."""

    def __init__(self, layer: Layer, number: int):
        self.jobs = [each.copy() for each in layer.jobs]
        self.job = job = self.jobs[0]
        link(self.jobs)
        # If all rows are the first thread's, the others have none.
        job.next = self.first = job.rows if job.together and number else number
        size = 3 * job.padded + job.padded_classes + job.padded_inner + job.ahead * layer.gates * job.padded
        self.work = []
        for each in self.jobs:
            self.work.append(torch.empty(job.slots * (size if each is job else (3 + layer.gates) * job.padded)))
            each.work = self.work[-1].data_ptr()
        self.arrays: list[np.ndarray] = []
        self.chunks: list[Tensor] = []
        if layer.saves:
            total = max(1, len(range(self.first, job.rows, job.stride)) * layer.longest)  # at most
            self.place, self.previous = (torch.empty(total, dtype=torch.int64) for _ in range(2))
            job.place, job.previous = self.place.data_ptr(), self.previous.data_ptr()
            # A chunk has room for all steps if they are few, otherwise for an eighth to a quarter, or is as large as it
            # may be.
            few, most = (max(values // job.width, job.slots) for values in (FEW_VALUES, MAX_CHUNK_VALUES))
            job.shift = int(math.log2(2 * total if total <= few else min(most, max(total / 4, job.slots))))
            self.addresses = np.empty(-(-total >> job.shift), np.uintp)
            for each in self.jobs:
                each.shift, each.width, each.chunks = job.shift, job.width, address_of(self.addresses)
            self.add_chunks()

    def add_chunks(self) -> None:
        """Memory for all steps that may follow, or for some of them. Fresh memory takes no place until it is used."""
        job, number = self.job, len(self.chunks)
        for place in range(number, min(number + MAX_CHUNKS_AT_ONCE, len(self.addresses))):
            array = _FREE.take(job.width << job.shift)
            self.arrays.append(array)
            self.chunks.append(torch.from_numpy(array))
            self.addresses[place] = self.chunks[-1].data_ptr()
            job.capacity += 1 << job.shift

    def unused(self, count: int) -> list[np.ndarray]:
        """Keep the first `count` chunks, and return the others."""
        found = self.arrays[count:]
        del self.arrays[count:], self.chunks[count:]
        return found

    def entries(self) -> list[Tensor]:
        """What is kept of each step: [entries, width] for each chunk."""
        job, full = self.job, 1 << self.job.shift
        counts = [min(full, job.entries - first) for first in range(0, job.entries, full)]
        return [
            chunk[: count * job.width].view(count, job.width) for chunk, count in zip(self.chunks, counts, strict=True)
        ]

    def set_input_gradients(self, weight: Tensor, of_inputs: Tensor) -> None:
        """Of those that were read."""
        job, first = self.job, 0
        gates, skipped = (3, 1) if job.gru else (4, 0)
        weight = torch.nn.functional.pad(weight.view(gates, job.units, -1), (0, 0, 0, job.padded - job.units))
        weight = weight.flatten(0, 1)
        for part in self.entries():
            found = part[:, skipped * job.padded : 4 * job.padded] @ weight
            of_inputs.index_copy_(0, self.place[first : first + len(part)], found)
            first += len(part)


def link(jobs: list[Job]) -> None:
    """Let each job of several layers, from the lowest to the topmost, know the next."""
    for lower, upper in pairwise(jobs):
        lower.upper, upper.lower = addressof(upper), addressof(lower)


def checked(part: Tensor, *shape: int) -> Tensor:
    """As C reads it: contiguous, and of the right shape and type."""
    if part.shape != shape or part.dtype is not torch.float32 or not part.is_cpu:
        raise ValueError(f"expected float32 of shape {list(shape)} on the CPU, not {part.dtype} {list(part.shape)}")
    return part.contiguous()


def address_of(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]  # half the time of array.ctypes.data


class _Free:
    """Chunks to use again, because mapping new memory takes longer than a step."""

    def __init__(self) -> None:
        self.by_size: dict[int, list[np.ndarray]] = {}
        self.values = 0
        self.lock = threading.Lock()

    def take(self, size: int) -> np.ndarray:
        with self.lock:
            if not self.by_size.get(size):
                return np.empty(size, np.float32)
            self.values -= size
            return self.by_size[size].pop()

    def keep(self, arrays: list[np.ndarray]) -> None:
        """All but those by which MAX_FREE_VALUES would be exceeded."""
        with self.lock:
            for array in arrays:
                if self.values + len(array) <= MAX_FREE_VALUES:
                    self.values += len(array)
                    self.by_size.setdefault(len(array), []).append(array)


_FREE = _Free()
