"""Several processes under `torchrun`: each takes its share of the rows of every batch.

The gradient is the one a single process would compute on the whole batch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from rankcode.data import Batch


T = TypeVar("T")


class Processes(NamedTuple):
    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        return self.rank == 0

    def wrap(self, module: nn.Module, device: torch.device) -> nn.Module:
        """The module with its gradients averaged over the processes."""
        if self.count == 1:
            return module
        return DistributedDataParallel(module, device_ids=[device.index] if device.type == "cuda" else None)

    def share(self, batch: Batch) -> tuple[Batch, float]:
        """The rows of this process, and the weight of their mean loss, so that the average over the
        processes is the mean over the whole batch."""
        rows = len(batch.labels)
        if self.count == 1:
            return batch, 1.0
        own = torch.arange(self.rank, rows, self.count, device=batch.labels.device)
        weight = len(own) * self.count / rows
        if len(own) == 0:  # fewer rows than processes: take part, with weight 0
            own = torch.zeros(1, dtype=torch.long, device=batch.labels.device)
        return Batch(*(None if part is None else part[own] for part in batch)), weight

    def from_first(self, make: Callable[[], T]) -> T:
        """What `make` gives in the first process, in every process."""
        box = [make() if self.first else None]
        if self.count > 1:
            dist.broadcast_object_list(box)
        return box[0]  # type: ignore[return-value]

    def total(self, values: Tensor) -> Tensor:
        """The sum over the processes."""
        if self.count > 1:
            dist.all_reduce(values)
        return values


@contextmanager
def processes(device: torch.device) -> Iterator[Processes]:
    """The processes `torchrun` started, or this one alone."""
    if not dist.is_available() or (not dist.is_initialized() and int(os.environ.get("WORLD_SIZE", "1")) == 1):
        yield Processes()
        return
    started_here = not dist.is_initialized()
    if started_here:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Processes(dist.get_rank(), dist.get_world_size())
    finally:
        if started_here:
            dist.destroy_process_group()


def own_device(name: str) -> torch.device:
    """The device of this process: `auto` takes a GPU where there is one, each process its own."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"there is no device {name!r}: use auto, cpu, cuda or cuda:N") from None
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ValueError(f"device {name} asked for, but PyTorch finds no GPU: use device cpu")
        if device.index is None:
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    return device
