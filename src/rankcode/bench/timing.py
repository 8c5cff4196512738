"""Seconds, GPU time and memory of a piece of work, and the machine it was measured on."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from rankcode.progress import Progress

Key = TypeVar("Key")
MIN_REPEATS = 3  # of every case, however slow
MAX_SECONDS = 20.0  # a case that has taken this long is not repeated further
WARM_SECONDS = 0.1  # shorter cases run twice in their turn, and the second time counts: as in a loop, caches are warm


def machine(device: str) -> dict[str, str]:
    """The processor, the number of threads, the version of PyTorch and, if one is used, the GPU."""
    processor = platform.processor() or platform.machine()
    with suppress(OSError, StopIteration), open("/proc/cpuinfo") as file:
        processor = next(line.split(":")[1].strip() for line in file if line.startswith("model name"))
    found = {"processor": processor, "threads": str(torch.get_num_threads()), "torch": torch.__version__}
    return {"gpu": torch.cuda.get_device_name(device), **found} if device.startswith("cuda") else found


@contextmanager
def busy_cores(number: int) -> Iterator[None]:
    """Other programs keep so many cores busy meanwhile. They end with this one, however it ends."""
    program = (
        "import os, signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"  # Ctrl-C is for this program
        f"while os.getppid() == {os.getpid()}: pass"
    )
    running = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(number)]
    try:
        yield
    finally:
        for each in running:
            each.kill()
            each.wait()


def time_in_turns(
    cases: Mapping[Key, Callable[[], Any]], repeats: int, device: str, progress: bool
) -> dict[Key, list[float]]:
    """Seconds of every repeat of every case. Cases take turns, so that a busy moment of the machine affects them alike;
    the first turn is a warm-up."""
    seconds: dict[Key, list[float]] = {key: [] for key in cases}
    with Progress((repeats + 1) * len(cases), progress) as bar:
        for turn in range(repeats + 1):
            for place, (key, work) in enumerate(cases.items(), start=1):
                if turn < MIN_REPEATS or sum(seconds[key]) < MAX_SECONDS:
                    spent = _seconds(work, device)
                    if device == "cpu" and spent < WARM_SECONDS:
                        spent = _seconds(work, device)
                    if turn > 0:
                        seconds[key].append(spent)
                done = turn * len(cases) + place
                if bar.due(done):
                    parts = key if isinstance(key, tuple) else (key,)
                    bar.show(done, ", ".join(str(part) for part in parts if not isinstance(part, bool)))
    return seconds


def _seconds(work: Callable[[], Any], device: str) -> float:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    # The time of a single thread does not include what other programs take.
    clock = time.thread_time if device == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    begun = clock()
    work()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return clock() - begun


def gpu_milliseconds(work: Callable[[], Any]) -> float:
    """Milliseconds that the GPU spends in kernels, without waiting for the host."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(MIN_REPEATS):
            work()
        torch.cuda.synchronize()
    return sum(event.self_device_time_total for event in profiler.key_averages()) / MIN_REPEATS / 1e3


def megabytes(work: Callable[[], Any], device: str) -> float:
    """On a CPU the memory saved for the backward pass, on a GPU the peak above what was allocated before."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        return (torch.cuda.max_memory_allocated() - before) / 1e6
    saved: dict[StorageWeakRef, int] = {}
    held: set[StorageWeakRef] = set()

    def pack(part: Tensor) -> Tensor:
        saved[StorageWeakRef(part.untyped_storage())] = part.untyped_storage().nbytes()
        return part

    def unpack(part: Tensor) -> Tensor:
        if not held:  # the backward pass begins
            held.update(storage for storage in saved if not storage.expired())
        return part

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        work()
    # What is there after the backward pass, weights and inputs, was not saved for it.
    return sum(saved[storage] for storage in held if storage.expired()) / 1e6


def quartiles(seconds: list[float]) -> tuple[float, float, float]:
    """Median, lower and upper quartile, in milliseconds."""
    low, middle, high = statistics.quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else 3 * seconds
    return 1e3 * middle, 1e3 * low, 1e3 * high
