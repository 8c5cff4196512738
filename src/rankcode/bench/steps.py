"""Time and memory of a training or inference step with every engine, relative to conventional training.

On a GPU a step is measured twice, the conventional one and ours: launched kernel by kernel, as PyTorch does it, and
captured as a CUDA graph, as `fit` and `decide` do where they can. Ratios are to the conventional step launched kernel
by kernel; to compare two captured steps, divide two ratios.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from rankcode.bench.cases import CONVENTIONAL, Case, Mode, Shape, make_cases, planted
from rankcode.bench.timing import gpu_milliseconds, megabytes, quartiles, time_in_turns
from rankcode.rules import Threshold
from rankcode.streaming import Stream

LEGEND = (
    "ratio: time ÷ conventional, in the faster layout; ideal: share of steps read;\n"
    "memory: kept for the backward pass, or the peak on a GPU"
)


@dataclass(frozen=True)
class Measured:
    """One case, and how long it took."""

    mode: Mode
    batch_size: int
    spikes: str  # where the rows answer
    engine: str
    precision: str
    captured: bool  # replayed as a CUDA graph
    milliseconds: float  # median
    low: float  # lower quartile
    high: float  # upper quartile
    megabytes: float | None  # saved for the backward pass on a CPU, peak on a GPU
    gpu_milliseconds: float | None  # time in kernels, without waiting for the host
    ratio: float  # to the fastest conventional training, or inference, of the same precision class
    gpu_ratio: float | None  # the same for `gpu_milliseconds`
    ideal: float  # steps read ÷ steps


def measure(
    shape: Shape,
    engines: tuple[str, ...],
    device: str,
    repeats: int,
    progress: bool = True,
    ways: Sequence[str] | None = None,
    memory: bool = True,
    threshold: bool = False,
) -> list[Measured]:
    """Every engine with every way of planting spikes, or with some, and conventional training. Times are medians. With
    `threshold`, rows answer at one on a GPU too."""
    cases = make_cases(shape, engines, device, ways, threshold)
    times = {case: quartiles(found) for case, found in time_in_turns(cases, repeats, device, progress).items()}
    # Profiling `stepwise` takes minutes: it launches too many kernels.
    profiled = [case for case in cases if case.mode == "training" and case.engine != "stepwise" and not case.captured]
    on_gpu = {case: gpu_milliseconds(cases[case]) for case in profiled} if device.startswith("cuda") else {}
    means = {name: float(steps.double().mean()) for name, steps in planted(shape.steps, shape.batch_size).items()}
    found = []
    for case, (median, low, high) in times.items():
        launched = case._replace(captured=False)  # a captured step takes the same GPU time and memory
        rivals = [each for each in times if _is_rival(each, case)]
        worked = on_gpu.get(launched)
        saves = memory and case.mode == "training" and not case.captured
        found.append(
            Measured(
                *(case.mode, shape.batch_size, case.spikes, case.engine, case.precision, case.captured),
                *(median, low, high),
                megabytes=megabytes(cases[case], device) if saves else None,
                gpu_milliseconds=worked,
                ratio=median / min(times[each][0] for each in rivals),
                gpu_ratio=None if worked is None else worked / min(on_gpu[each] for each in rivals),
                ideal=means[case.spikes] / shape.steps,
            )
        )
    return found


def _is_rival(conventional: Case, case: Case) -> bool:
    """Whether a case is compared with this one: the same precision in any layout, and for bfloat16 also tf32."""
    own, other = (each.precision.split(",")[0] for each in (case, conventional))
    if conventional.engine != CONVENTIONAL or conventional.captured or conventional.mode != case.mode:
        return False
    return own == other or (own == "bfloat16" and other == "tf32")


def measure_stream(shape: Shape, repeats: int) -> Measured:
    """One step of a `Stream` on the CPU, rule included."""
    stream, seconds = Stream(shape.network(), Threshold(1.0)), []
    x = torch.randn(shape.step_shape)
    for _ in range(max(100, 50 * repeats)):
        begun = time.perf_counter()
        stream.push(x)
        seconds.append(time.perf_counter() - begun)
    return Measured("stream", 1, "", "one step", "float32", False, *quartiles(seconds), None, None, 1.0, None, 1.0)


def bench_table(found: Iterable[Measured]) -> str:
    """The measurements as text."""
    head = f"{'mode':<10} {'batch size':<11} {'spikes':<18} {'engine':<22} {'precision':<20}"
    lines = [f"{head} {'ms':>9}   {'quartiles':<18} ratio  ideal    memory"]
    for each in sorted(found, key=lambda each: (each.mode, each.batch_size, each.spikes, each.milliseconds)):
        spread = f"{each.low:.2f} … {each.high:.2f}"
        engine = f"{each.engine}, captured" if each.captured else each.engine
        lines.append(
            f"{each.mode:<10} {each.batch_size:<11} {each.spikes:<18} {engine:<22} {each.precision:<20} "
            f"{each.milliseconds:9.2f}   {spread:<18} {each.ratio:5.2f}  {each.ideal:5.2f}"
            + ("" if each.gpu_milliseconds is None else f"  GPU {each.gpu_milliseconds:7.2f} ms {each.gpu_ratio:5.2f}")
            + ("" if each.megabytes is None else f"  {each.megabytes:8.1f} MB")
        )
    return "\n".join(lines)
