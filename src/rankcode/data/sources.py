"""Sources of batches: rows in memory, generated rows, data loaders.

The n-th training batch depends on the seed and on n alone, never on the batches before it, so an interrupted run
resumes with exactly the batches it would have seen.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple, Protocol, TypeGuard, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset, default_collate
from torch.utils.weak import WeakTensorKeyDictionary

from rankcode.data.arrays import as_tensor

SPLITS = ("train", "validation", "test")
SPLIT_NAMES = {split: split for split in SPLITS}  # as they may be written in the names of files, folders and arrays
SPLIT_NAMES |= dict(training="train", valid="validation", val="validation", dev="validation", testing="test")

Device = torch.device | str
Encode = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor | None]]
Augment = Callable[[Tensor, Tensor | None, torch.Generator], Tensor]


class BadData(ValueError):  # noqa: N818 (it is the data that is bad)
    """A file, or a row of one, that cannot be used. The message names it and gives the reason."""


def digest(parts: Iterable[str | bytes | np.ndarray]) -> str:
    """A short fingerprint of some content."""
    whole = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        whole.update(np.ascontiguousarray(content).data if isinstance(content, np.ndarray) else content)
        whole.update(b"\0")
    return whole.hexdigest()[:16]


class Batch(NamedTuple):
    """Rows of data that are read together."""

    inputs: Tensor  # [rows, steps, features…]
    labels: Tensor  # [rows], int64
    lengths: Tensor | None = None  # [rows], int64; None: every row has all steps of the inputs

    def rows(self, index: Tensor | slice) -> Batch:
        """These rows of the batch."""
        lengths = None if self.lengths is None else self.lengths[index]
        return Batch(self.inputs[index], self.labels[index], lengths)


@runtime_checkable
class Source(Protocol):
    """One split of a task: batches to train on, and every row once, in order, to evaluate on."""

    def epoch(self, batch_size: int) -> int | None:
        """Number of batches in an epoch; None: the source is endless, or its size unknown."""
        ...

    def batches(self, batch_size: int, seed: int, device: Device, start: int = 0) -> Iterator[Batch]:
        """An endless iterator over training batches, from batch number `start` on."""
        ...

    def scan(self, batch_size: int, device: Device) -> Iterator[Batch]:
        """Every row once, in order."""
        ...


def seed_of(*numbers: int) -> int:
    """A seed for PyTorch that depends on these numbers alone."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0]) % 2**63


def seeded(device: Device, *numbers: int) -> torch.Generator:
    """A random generator that depends on these numbers alone."""
    return torch.Generator(device).manual_seed(seed_of(*numbers))


def sent(values: Tensor, device: Device) -> Tensor:
    """The values on the device. A plain copy to a GPU waits until the GPU is idle; one from pinned memory does not."""
    if torch.device(device).type == "cpu" or values.device.type != "cpu":
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)


_COPIES: Any = WeakTensorKeyDictionary()  # tensor on the CPU → {device: (its version, its copy there)}


def copy_on(values: Tensor, device: torch.device) -> Tensor:
    """A copy of the tensor on a device. Rows that share the tensor share the copy, which is freed with the tensor."""
    if values.device == device:
        return values
    copies = _COPIES.setdefault(values, {})
    version = 0 if values.is_inference() else values._version  # it changes whenever the tensor is written to
    if copies.get(str(device), (None, None))[0] != version:
        copies[str(device)] = version, values.to(device)
    return copies[str(device)][1]


class Generated:
    """Rows that are generated when they are needed, on the device that needs them.

    `generate(batch_size, generator)` returns a Batch on the generator's device. `scan` yields `size` rows drawn with
    `seed`; training batches use the seed of the run and never end.
    """

    CHUNK = 10_000  # rows that `scan` draws at once, on the CPU, so that they depend on neither batch size nor device

    def __init__(self, generate: Callable[[int, torch.Generator], Batch], size: int | None = None, seed: int = 0):
        self.generate, self.size, self.seed = generate, size, seed

    def epoch(self, batch_size: int) -> int | None:
        return None

    def batches(self, batch_size: int, seed: int, device: Device, start: int = 0) -> Iterator[Batch]:
        for number in count(start):
            yield self.generate(batch_size, seeded(device, seed, number))

    def scan(self, batch_size: int, device: Device) -> Iterator[Batch]:
        if self.size is None:
            raise ValueError("this source is endless: give it a size to evaluate on it")
        for chunk, first in enumerate(range(0, self.size, self.CHUNK)):
            drawn = self.generate(min(self.CHUNK, self.size - first), seeded("cpu", self.seed, chunk, 1))
            yield from Arrays(*drawn).scan(batch_size, device)


class Rows(ABC):
    """A fixed set of rows: shuffled in each epoch to train on, in order to evaluate on.

    `encode(stored, lengths)`, if given, turns stored rows into (inputs, lengths) on the device; a front end is one.
    `augment(stored, lengths, generator)` alters stored rows before that, in training only.
    """

    left_out: Sequence[str] = ()  # rows and files that could not be used, each with the reason

    def __init__(self, size: int, encode: Encode | None = None, augment: Augment | None = None):
        if size == 0:
            raise ValueError("the data has no rows")
        self.size, self.encode, self.augment = size, encode, augment
        self._shuffled: tuple[tuple[int, int], Tensor] | None = None  # the last epoch asked for
        self._fits: dict[str, bool] = {}  # by GPU: whether the rows are kept in its memory

    def index(self, number: int, batch_size: int, seed: int) -> Tensor:
        """The rows in training batch `number`; the last batch of an epoch may be smaller."""
        epoch, part = divmod(number, self.epoch(batch_size))
        if self._shuffled is None or self._shuffled[0] != (seed, epoch):
            self._shuffled = (seed, epoch), torch.randperm(self.size, generator=seeded("cpu", seed, epoch))
        return self._shuffled[1][part * batch_size : (part + 1) * batch_size]

    @abstractmethod
    def take(self, index: Tensor, device: Device, longest: int | None = None) -> Batch:
        """These rows as they are stored, on the device. `longest` is the length of the longest, if rows differ, so that
        an index on a GPU need not be read."""

    def longest(self, index: Tensor) -> int | None:
        """The length of the longest of these rows, if stored rows differ in length."""
        return None

    @abstractmethod
    def columns(self) -> list[Tensor]:
        """Everything that `take` reads."""

    def is_on(self, device: Device) -> bool:
        """Whether the rows are kept on the device, to which they are copied if it is a GPU and they fit."""
        return all(column.device.type == torch.device(device).type for column in self._on(device))

    def raw(self, row: int) -> Any:
        """One row as a front end reads it: by default as it is stored."""
        stored, _, lengths = self.take(torch.tensor([row]), "cpu")
        return stored[0] if lengths is None else stored[0, : lengths[0]]

    def _on(self, device: Device) -> list[Tensor]:
        """The columns on a GPU, to which they are copied once, if they fit; otherwise the columns as they are."""
        device, columns = torch.device(device), self.columns()
        if device.type != "cuda":
            return columns
        device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
        if str(device) not in self._fits:
            needed = sum(column.nbytes for column in columns if str(device) not in _COPIES.get(column, {}))
            self._fits[str(device)] = needed < torch.cuda.mem_get_info(device)[0] / 2
        return [copy_on(column, device) for column in columns] if self._fits[str(device)] else columns

    def epoch(self, batch_size: int) -> int:
        return -(-self.size // batch_size)

    def batch(self, number: int, batch_size: int, seed: int, device: Device) -> Batch:
        """The training batch `number`."""
        inputs, labels, lengths = self.take(self.index(number, batch_size, seed), device)
        if self.augment is not None:
            generator = seeded(device, seed, *divmod(number, self.epoch(batch_size)), 3)
            inputs = self.augment(inputs, lengths, generator)
        return self.encoded(Batch(inputs, labels, lengths))

    def batches(self, batch_size: int, seed: int, device: Device, start: int = 0) -> Iterator[Batch]:
        for number in count(start):
            yield self.batch(number, batch_size, seed, device)

    def scan(self, batch_size: int, device: Device) -> Iterator[Batch]:
        for index in torch.arange(self.size).split(batch_size):
            yield self.encoded(self.take(index, device))

    def encoded(self, batch: Batch) -> Batch:
        if self.encode is None:
            return batch
        inputs, lengths = self.encode(batch.inputs, batch.lengths)
        return Batch(inputs, batch.labels, lengths)


class Arrays(Rows):
    """Rows of one shape, padded after their `lengths`."""

    def __init__(self, inputs, labels, lengths=None, encode: Encode | None = None, augment: Augment | None = None):
        self.inputs = as_tensor(inputs)
        super().__init__(len(self.inputs), encode, augment)
        self.labels = _column("labels", labels, self.size)
        self.lengths = None if lengths is None else _column("lengths", lengths, self.size)

    def fingerprint(self) -> str:
        """Changes with the data."""
        flat = (column.detach().cpu().contiguous().flatten().view(torch.uint8) for column in self.columns())
        return digest(column.numpy() for column in flat)

    def columns(self) -> list[Tensor]:
        return [column for column in (self.inputs, self.labels, self.lengths) if column is not None]

    def take(self, index: Tensor, device: Device, longest: int | None = None) -> Batch:
        taken = (_select(column, sent(index, column.device)) for column in self._on(device))
        return Batch(*(sent(column, device) for column in taken))


class Packed(Rows):
    """Rows of different lengths, one after the other without padding, in memory or mapped from a file.

    `values` [steps of all rows, features…]; row k has `lengths[k]` steps from `offsets[k]` on. A batch is as long as
    its longest row.
    """

    def __init__(self, values, offsets, lengths, labels, encode: Encode | None = None, augment: Augment | None = None):
        self.values = as_tensor(values)
        super().__init__(len(labels), encode, augment)
        self.labels = _column("labels", labels, self.size)
        self.offsets, self.lengths = _column("offsets", offsets, self.size), _column("lengths", lengths, self.size)

    def longest(self, index: Tensor) -> int:
        return int(self.lengths[index].max())

    def columns(self) -> list[Tensor]:
        return [self.values, self.offsets, self.lengths, self.labels]

    def take(self, index: Tensor, device: Device, longest: int | None = None) -> Batch:
        longest = self.longest(index) if longest is None else longest
        values, offsets, lengths, labels = self._on(device)
        index = sent(index, values.device)
        lengths = lengths[index]
        # A padded step repeats the last step of its row, and is never read.
        step = torch.arange(longest, device=values.device)
        where = offsets[index][:, None] + torch.minimum(step, lengths[:, None] - 1)
        return Batch(*(sent(part, device) for part in (_select(values, where), labels[index], lengths)))


def _select(values: Tensor, index: Tensor) -> Tensor:
    """values[index]. On a CPU that takes twice as long, and all threads even for a few rows."""
    if not values.is_cpu:
        return values[index]
    return values.index_select(0, index.flatten()).view(*index.shape, *values.shape[1:])


def _column(name: str, values, size: int) -> Tensor:
    """One integer for each row."""
    if not isinstance(values, Tensor) and np.asarray(values).dtype.kind in "UO":
        raise ValueError(f"{name} must be integers: rc.tasks.OwnData.of takes names as well")
    column = as_tensor(values)
    if column.shape != (size,):
        raise ValueError(f"{name} must have shape [{size}], one for each row, not {list(column.shape)}")
    if column.is_floating_point():
        raise ValueError(f"{name} must be integers, not {column.dtype}")
    return column.long()


class Loader:
    """Any iterable of (inputs, labels[, lengths]) batches, such as a torch DataLoader.

    The loader's own batch size and shuffling apply; `batch_size` and `seed` are ignored. It can only start at the
    beginning of an epoch. Under `torchrun` each process uses its own loader unchanged.

    A DataLoader makes the batches of a TensorDataset row by row. Here they are taken from its tensors at once, on a GPU
    if the tensors fit there; `rows` has these tensors.
    """

    def __init__(self, loader: Iterable):
        self.loader = loader
        self.rows: Arrays | None = None
        if _puts_tensors_together(loader):
            self.rows = Arrays(*loader.dataset.tensors)  # type: ignore[attr-defined]
            order: Any = range(self.rows.size)
            # The loader's batches of rows, drawn from the same random numbers.
            self.indices = DataLoader(
                order, batch_sampler=loader.batch_sampler, collate_fn=torch.tensor, generator=loader.generator
            )

    def epoch(self, batch_size: int) -> int | None:
        try:
            return len(self.loader)  # type: ignore[arg-type]
        except TypeError:
            return None

    def batches(self, batch_size: int, seed: int, device: Device | None, start: int = 0) -> Iterator[Batch]:
        """`device` None: batches as the loader yields them."""
        sampler = getattr(self.loader, "sampler", None)
        for number in count(start // (self.epoch(batch_size) or start + 1)):
            if hasattr(sampler, "set_epoch"):  # a distributed sampler shuffles by the number of the epoch
                sampler.set_epoch(number)  # type: ignore[union-attr]
            batch = None
            for batch in self.scan(batch_size, device):
                yield batch
            if batch is None:
                raise ValueError("the data loader yielded no batch")

    def scan(self, batch_size: int, device: Device | None) -> Iterator[Batch]:
        if self.rows is not None:
            yield from (self.rows.take(index, device or "cpu") for index in self.indices)
            return
        for batch in _of_equal_length(self.loader):
            if not (isinstance(batch, tuple | list) and len(batch) in (2, 3)):
                raise ValueError(f"a batch must be (inputs, labels[, lengths]), not a {type(batch).__name__}")
            parts = [as_tensor(part) for part in batch if part is not None]
            unbatched = isinstance(self.loader, DataLoader) and self.loader.batch_sampler is None
            if unbatched and any(part.dim() == 0 for part in parts):
                raise ValueError("the data loader yields single rows: give it a batch_size")
            yield Batch(*(part if device is None else part.to(device) for part in parts))


def _of_equal_length(loader: Iterable) -> Iterator[Any]:
    """The batches of a loader, which by default cannot put rows of different lengths together."""
    try:
        yield from loader
    except RuntimeError as error:
        if "stack expects each tensor to be equal size" not in str(error):
            raise
        advice = "pad them in a collate_fn that returns (inputs, labels, lengths)"
        raise ValueError(f"the rows of the data loader differ in length: {advice}") from None


def _puts_tensors_together(loader: Iterable) -> TypeGuard[DataLoader]:
    """Whether it is a DataLoader that does nothing but put rows of tensors together."""
    if type(loader) is not DataLoader or type(loader.dataset) is not TensorDataset:
        return False
    plain = loader.collate_fn is default_collate and loader.batch_sampler is not None
    return plain and len(loader.dataset.tensors) in (2, 3) and len(loader.dataset) > 0


def steps_of(values: Tensor, lengths: Tensor, index: np.ndarray, at_once: int) -> Iterator[Tensor]:
    """The steps of some rows of a packed store [steps of all rows, …], in blocks."""
    ends = lengths.numpy().cumsum()
    chosen = np.zeros(len(ends), bool)
    chosen[index] = True
    for first in range(0, len(values), at_once):
        block = values[first : first + at_once]
        rows = slice(np.searchsorted(ends, first, "right"), 1 + np.searchsorted(ends, first + len(block)))
        steps = np.diff(np.minimum(ends[rows] - first, len(block)), prepend=0)  # of each of these rows in the block
        yield block[torch.from_numpy(np.repeat(chosen[rows], steps))]


def as_source(data) -> Source:
    """A source from a source, a (inputs, labels[, lengths]) tuple of arrays, or a DataLoader."""
    if isinstance(data, Source):
        return data
    arrays = isinstance(data, tuple) or (isinstance(data, list) and len(data) > 0 and hasattr(data[0], "shape"))
    if arrays and len(data) in (2, 3):
        return Arrays(*data)
    if isinstance(data, Iterable):
        return Loader(data)
    raise ValueError(
        f"cannot read data from a {type(data).__name__}: give a task, (inputs, labels[, lengths]) or a DataLoader"
    )


def split_of(task, split: str) -> Source:
    """A split of a task. Data that is not a task has one split, itself."""
    if not hasattr(task, "train"):
        return as_source(task)
    if getattr(task, split, None) is None:
        raise ValueError(f"the task {getattr(task, 'name', type(task).__name__)} has no {split} split")
    return as_source(getattr(task, split))
