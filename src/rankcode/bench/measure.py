"""How long a step of training or inference takes, against conventional training in the same run.

Spikes are planted, so that every engine reads exactly the same steps. What is compared is one batch: conventional
training with PyTorch's own layer, whole sequences, the loss at the end; and each engine with the same network and
the rows answering where they were told to. All cases take turns, so that a busy moment of the machine hits them
alike; figures are medians. On a GPU a training step is measured twice, for conventional training and ours: launched
kernel by kernel, as PyTorch does it, and recorded as a CUDA graph, as `fit` does it where it can. Ratios are to
conventional training launched the usual way; to compare recorded with recorded, divide two of them.
"""

from __future__ import annotations

import gc
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rankcode import cells
from rankcode.engines import ENGINES, run
from rankcode.engines.check import products_in
from rankcode.engines.cuda_graph import WARMUP_RUNS, CudaGraphs
from rankcode.inference import inference
from rankcode.network import Network
from rankcode.objectives import AtSpike
from rankcode.progress import Progress
from rankcode.rules import FireAt, Never, Threshold

Mode = Literal["training", "inference", "stream"]
LEAST, ENOUGH = 3, 20.0  # repeats of every case; seconds after which a slow one has had enough


@dataclass(frozen=True)
class Shape:
    """A batch, and the network that reads it."""

    batch_size: int = 128
    steps: int = 81
    input_size: int = 420
    hidden_size: int = 128
    readout_layer_size: int = 32
    num_classes: int = 11
    cell: Literal["lstm", "gru"] = "lstm"

    def network(self) -> Network:
        kind = cells.LSTM if self.cell == "lstm" else cells.GRU
        inner, outputs = self.readout_layer_size, self.num_classes
        readout = nn.Sequential(nn.Linear(self.hidden_size, inner), nn.ReLU(), nn.Linear(inner, outputs))
        return Network(kind(self.input_size, self.hidden_size), outputs, readout)


@dataclass(frozen=True)
class Measured:
    """One case: what ran, and how long it took."""

    mode: Mode
    rows: int
    spikes: str  # where the rows were told to answer
    engine: str
    precision: str
    recorded: bool  # launched as a whole
    milliseconds: float  # median
    low: float  # quartiles
    high: float
    megabytes: float | None  # saved for the backward pass on a CPU, peak on a GPU
    busy: float | None  # milliseconds the GPU worked, without its waiting for the host
    ratio: float  # to conventional training, or inference, at its fastest in the same class of precision
    busy_ratio: float | None  # the same of `busy`
    ideal: float  # steps read ÷ steps there are

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def planted(steps: int, rows: int) -> dict[str, Tensor]:
    """Where rows answer, by name: late, spread evenly over the steps in order or not, and early."""
    even = torch.linspace(1, steps, rows).round().long()
    shuffled = even[torch.randperm(rows, generator=torch.Generator().manual_seed(0))]
    late, early = torch.full((rows,), steps), torch.full((rows,), max(1, steps // 4))
    return {"all at T": late, "uniform, ordered": even, "uniform, shuffled": shuffled, "all at T/4": early}


def measure(shape: Shape, engines: tuple[str, ...], device: str, repeats: int, progress: bool = True) -> list[Measured]:
    """Every engine with every way of planting the spikes, beside conventional training."""
    torch.manual_seed(0)
    network = shape.network().to(device)
    inputs = torch.randn(shape.batch_size, shape.steps, shape.input_size, device=device)
    labels = torch.randint(shape.num_classes, (shape.batch_size,), device=device)
    cases = dict(_conventional(network, inputs, labels))
    ways = planted(shape.steps, shape.batch_size)
    for spikes, steps in ways.items():
        # In order, an engine is told beforehand: in training, too, it is known where a row answered last.
        steps = steps.to(device)
        expected = steps if "ordered" in spikes else None
        for engine in engines:
            for mode, precision, call in _ours(network, inputs, labels, FireAt(steps), engine, expected):
                cases[mode, spikes, engine, precision, False] = call
    if device.startswith("cuda"):
        cases |= _recorded(cases)
    timed = _timed(cases, repeats, device, progress)
    # A loop over steps launches so much that to count it takes minutes.
    counted = [key for key in cases if device.startswith("cuda") and _counts(key)]
    busy = {key: _busy(cases[key]) for key in counted}
    found = []
    for (mode, spikes, engine, precision, recorded), seconds in timed.items():
        conventional = [key for key in timed if key[0] == mode and key[2] == CONVENTIONAL and not key[4]]
        rivals = [key for key in conventional if _same_class(precision, key[3])]
        key = mode, spikes, engine, precision, False  # what is recorded works and takes memory as if it were not
        worked = busy.get(key)
        found.append(
            Measured(
                *(mode, shape.batch_size, spikes, engine, precision, recorded),
                *_quartiles(seconds),
                megabytes=_memory(cases[key], device) if mode == "training" and not recorded else None,
                busy=worked,
                ratio=statistics.median(seconds) / min(statistics.median(timed[key]) for key in rivals),
                busy_ratio=None if worked is None else worked / min(busy[key] for key in rivals),
                ideal=float(ways[spikes].double().mean()) / shape.steps,
            )
        )
    return found


def _same_class(own: str, other: str) -> bool:
    """What is compared with what: with bfloat16 the faster of it and tf32."""
    own, other = own.split(",")[0], other.split(",")[0]
    return own == other or (own == "bfloat16" and other == "tf32")


def measure_stream(shape: Shape, repeats: int) -> Measured:
    """One step of one row on the CPU, rule included: what a stream costs."""
    network, rule = shape.network().eval(), Threshold(0.95)
    x, seconds = torch.randn(1, shape.input_size), []
    with torch.inference_mode():
        state, rule_state = network.initial_state(1), rule.initial_state(1)
        for step in range(1, max(100, 50 * repeats)):
            begun = time.perf_counter()
            logits, state = network(x, state)
            fired, rule_state = rule(*network.activate(logits), step, rule_state)
            bool(fired)
            seconds.append(time.perf_counter() - begun)
    return Measured("stream", 1, "", "one step", "float32", False, *_quartiles(seconds), None, None, 1.0, None, 1.0)


def machine(device: str) -> dict[str, str]:
    """What it was measured on."""
    processor = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as file:
            processor = next(line.split(":")[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    found = {"processor": processor, "threads": str(torch.get_num_threads()), "torch": torch.__version__}
    return {"gpu": torch.cuda.get_device_name(device), **found} if device.startswith("cuda") else found


def runnable(shape: Shape, device: str) -> Iterator[str]:
    """The engines that can run here, but for the one that is there to be right."""
    network, inputs = shape.network().to(device), torch.zeros(1, 1, shape.input_size, device=device)
    for engine in ENGINES:
        if engine == "reference" or (engine == "triton" and device == "cpu"):  # slow on purpose; interpreted
            continue
        if ENGINES[engine].can_run(network, inputs, Never()) is None:
            yield engine


def bench_table(found: list[Measured]) -> str:
    """What was measured, as text."""
    head = f"{'mode':<10} {'rows':<6} {'spikes':<18} {'engine':<22} {'precision':<20}"
    lines = [f"{head} {'ms':>9}   {'quartiles':<18} ratio  ideal"]
    for each in sorted(found, key=lambda each: (each.mode, each.rows, each.spikes, each.milliseconds)):
        spread = f"{each.low:.2f} … {each.high:.2f}"
        engine = f"{each.engine}, recorded" if each.recorded else each.engine
        lines.append(
            f"{each.mode:<10} {each.rows:<6} {each.spikes:<18} {engine:<22} {each.precision:<20} "
            f"{each.milliseconds:9.2f}   {spread:<18} {each.ratio:5.2f}  {each.ideal:5.2f}"
            + ("" if each.busy is None else f"  busy {each.busy:7.2f} ms {each.busy_ratio:5.2f}")
            + ("" if each.megabytes is None else f"  {each.megabytes:8.1f} MB")
        )
    return "\n".join(lines)


CONVENTIONAL = "conventional"
Key = tuple[Mode, str, str, str, bool]  # mode, spikes, engine, precision, recorded


def _conventional(network: Network, inputs: Tensor, labels: Tensor) -> Iterator[tuple[Key, Callable[[], Any]]]:
    """Training and inference with PyTorch's layer: in both layouts on a CPU, in every precision on a GPU."""
    cell: Any = network.cell
    kind = nn.LSTM if isinstance(cell, cells.LSTM) else nn.GRU
    for rows_first in (True, False):
        layer: Any = kind(cell.input_size, cell.hidden_size, cell.num_layers, batch_first=rows_first).to(inputs.device)
        x = inputs if rows_first else inputs.transpose(0, 1).contiguous()
        for precision in ("float32", "tf32", "bfloat16") if inputs.is_cuda else ("float32",):

            def train(layer=layer, x=x, rows_first=rows_first, precision=precision):
                with products_in(precision, inputs.is_cuda):
                    features = layer(x)[0]
                    last = features[:, -1] if rows_first else features[-1]
                    loss = F.cross_entropy(network.readout(last).float(), labels)
                loss.backward()
                layer.zero_grad()
                network.zero_grad()

            def infer(layer=layer, x=x, precision=precision):
                with torch.no_grad(), products_in(precision, x.is_cuda):
                    layer(x)

            name = precision if rows_first else f"{precision}, steps first"
            yield ("training", "all at T", CONVENTIONAL, name, False), train
            yield ("inference", "all at T", CONVENTIONAL, name, False), infer


def _ours(
    network: Network, inputs: Tensor, labels: Tensor, rule: FireAt, engine: str, expected: Tensor | None
) -> Iterator[tuple[Mode, str, Callable[[], Any]]]:
    lengths = torch.full((len(inputs),), inputs.shape[1], device=inputs.device)
    objective = AtSpike(rule=rule)
    precisions = ("float32",)
    if inputs.is_cuda:
        precisions = ("float32", "tf32", "bfloat16") if engine == "triton" else ("tf32",)
    for precision in precisions:

        def train(precision=precision):
            with products_in(precision, inputs.is_cuda):
                result = run(network, inputs, lengths, rule, "answer", engine, expected)
                objective.loss(result, labels).backward()
            network.zero_grad()

        def infer(precision=precision):
            with products_in(precision, inputs.is_cuda), inference(network):
                run(network, inputs, lengths, rule, "answer", engine, expected)

        yield "training", precision, train
        yield "inference", precision, infer


def _counts(key: Key) -> bool:
    return key[0] == "training" and key[2] != "stepwise" and not key[4]


def _recorded(cases: dict[Key, Callable]) -> dict[Key, Callable]:
    """Training steps that nothing waits for, as CUDA graphs."""
    found: dict[Key, Callable] = {}
    pool = torch.cuda.graph_pool_handle()
    for key, call in cases.items():
        if key[0] == "training" and key[2] in (CONVENTIONAL, "triton"):
            recorded = CudaGraphs(call, pool=pool)
            for _ in range(WARMUP_RUNS + 1):
                recorded(None)
            if not recorded.failed:
                found[(*key[:4], True)] = partial(recorded, None)
    return found


def _timed(cases: dict[Key, Callable], repeats: int, device: str, progress: bool) -> dict[Key, list[float]]:
    """Seconds of every repeat of every case, the first of which does not count."""
    seconds: dict[Key, list[float]] = {key: [] for key in cases}
    with Progress((repeats + 1) * len(cases), progress) as bar:
        for number in range(repeats + 1):
            for place, (key, call) in enumerate(cases.items(), start=1):
                if number < LEAST or sum(seconds[key]) < ENOUGH:
                    spent = _seconds(call, device)
                    if number > 0:
                        seconds[key].append(spent)
                done = number * len(cases) + place
                if bar.due(done):
                    bar.show(done, f"{key[0]}, {key[2]}, {key[1]}")
    return seconds


def _seconds(call: Callable, device: str) -> float:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    begun = time.perf_counter()
    call()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter() - begun


def _busy(call: Callable) -> float:
    """Milliseconds the GPU works for a call."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(LEAST):
            call()
        torch.cuda.synchronize()
    return sum(event.self_device_time_total for event in profiler.key_averages()) / LEAST / 1e3


def _memory(call: Callable, device: str) -> float:
    """Megabytes saved for the backward pass on a CPU, the peak above what was there before on a GPU."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        return (torch.cuda.max_memory_allocated() - before) / 1e6
    there = {part.untyped_storage().data_ptr() for part in gc.get_objects() if type(part) in (Tensor, nn.Parameter)}
    held: dict[int, int] = {}

    def pack(part: Tensor) -> Tensor:
        storage = part.untyped_storage()
        if storage.data_ptr() not in there:  # weights and inputs are there anyway
            held[storage.data_ptr()] = storage.nbytes()
        return part

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda part: part):
        call()
    return sum(held.values()) / 1e6


def _quartiles(seconds: list[float]) -> tuple[float, float, float]:
    """Median and quartiles, in milliseconds."""
    low, middle, high = statistics.quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else 3 * seconds
    return 1e3 * middle, 1e3 * low, 1e3 * high
