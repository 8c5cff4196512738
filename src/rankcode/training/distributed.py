"""Several processes under `torchrun`: each trains on its share of the rows of every batch.

The gradient is that of a single process with the whole batch.
"""

from __future__ import annotations

import atexit
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from rankcode.data.sources import Batch

T = TypeVar("T")


class ProcessEnded(ConnectionError):  # noqa: N818 (it is no error of this process)
    """Another process of the training has ended, so that this one cannot go on."""


@dataclass(frozen=True)
class Processes:
    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        return self.rank == 0

    def wrap(self, module: nn.Module, device: torch.device) -> nn.Module:
        """The module with the weights of the first process, and its gradients averaged over all processes."""
        if self.count == 1:
            return module
        return DistributedDataParallel(module, device_ids=[device.index] if device.type == "cuda" else None)

    def share(self, batch: Batch) -> tuple[Batch, float]:
        """The rows of this process, and the weight of their mean loss: with it, the average over the processes is the
        mean over the whole batch."""
        if self.count == 1:
            return batch, 1.0
        own, weight = self.own_rows(torch.arange(len(batch.labels), device=batch.labels.device))
        return batch.rows(own), weight

    def own_rows(self, index: Tensor) -> tuple[Tensor, float]:
        """Those of the rows of a batch that belong to this process, and their weight."""
        own = index[self.rank :: self.count]
        if len(own) == 0:  # fewer rows than processes: any row, with weight 0
            return index[:1], 0.0
        return own, len(own) * self.count / len(index)

    def from_first(self, make: Callable[[], T]) -> T:
        """Return, or raise, in every process what `make` returns or raises in the first."""
        if self.count == 1:
            return make()
        box: list[Any] = [None, None]  # what it returns, what it raises
        if self.first:
            try:
                box[0] = make()
            except Exception as error:
                box[1] = error
        dist.broadcast_object_list(box)
        if box[1] is not None:
            raise box[1]
        return box[0]

    @contextmanager
    def together(self) -> Iterator[None]:
        """Within this context the end of another process raises ProcessEnded."""
        try:
            yield
        except RuntimeError as error:
            # Gloo raises a plain RuntimeError, whose message begins with the name of its source file.
            if self.count > 1 and (isinstance(error, dist.DistError) or "/gloo/" in str(error)):
                raise ProcessEnded("another process of this training has ended") from error
            raise

    def total(self, values: Tensor) -> None:
        """Replace the values by their sum over the processes."""
        if self.count > 1:
            dist.all_reduce(values)


def processes(device: torch.device) -> Processes:
    """The processes of the existing group, those that `torchrun` started, or this one alone."""
    if not dist.is_available():
        return Processes()
    if not dist.is_initialized():
        if not under_torchrun():
            return Processes()
        store, rank, count = next(rendezvous("env://"))
        if os.environ.get("GROUP_WORLD_SIZE") == "1":
            # On one machine `torchrun` keeps its store when it restarts the processes, with addresses of the old ones.
            store = PrefixStore(f"restart {os.environ.get('TORCHELASTIC_RESTART_COUNT')}", store)
        # Kept until the program ends: a group that is closed and opened again may hang.
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=count)
        atexit.register(lambda: dist.is_initialized() and dist.destroy_process_group())
    return Processes(dist.get_rank(), dist.get_world_size())


def under_torchrun() -> bool:
    """Whether `torchrun` started several processes."""
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def is_first() -> bool:
    """Whether this process is the first that `torchrun` started, or alone."""
    return int(os.environ.get("RANK", "0")) == 0


@contextmanager
def ended_with_the_others() -> Iterator[None]:
    """Within this context SIGTERM, which `torchrun` sends when a process has ended, raises ProcessEnded. An error ends
    all processes; it leaves this context in the process that has it first, and the others exit without a word."""

    def end(*_: object) -> None:
        raise ProcessEnded("torchrun has stopped this process")

    if not under_torchrun():
        yield
        return
    signal.signal(signal.SIGTERM, end)
    try:
        yield
    except Exception:
        if not _is_first_to_end():
            os._exit(1)
        raise
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _is_first_to_end() -> bool:
    try:
        return dist.distributed_c10d._get_default_store().add("rankcode: ended", 1) == 1
    except Exception:  # not connected yet, or the process that has the store is gone
        return True


def own_device(name: str) -> torch.device:
    """The device of this process: `auto` takes a GPU if there is one, and each process its own."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ValueError(f"there is no device {name!r}: use auto, cpu, cuda or cuda:N")
    if device.type == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ValueError(f"PyTorch finds no GPU for {name!r}: use cpu")
    index = device.index
    if index is None:
        index = int(os.environ.get("LOCAL_RANK", torch.cuda.current_device()))
    if index >= torch.cuda.device_count():
        raise ValueError(f"there is no GPU number {index}: PyTorch finds {torch.cuda.device_count()}, counted from 0")
    torch.cuda.set_device(index)
    return torch.device("cuda", index)
