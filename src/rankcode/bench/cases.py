"""The pieces of work that are timed: one batch, in training or inference, with conventional training or with an engine.

Spikes are planted, so that every engine reads exactly the same steps. On a GPU the rule is `FireAt`. On a CPU it is a
threshold, as in real use: a unit of the network detects a signal, which the inputs have at the planted steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rankcode import cells
from rankcode.engines import ENGINES, run
from rankcode.engines.agreement import products_in
from rankcode.engines.cuda_graph import WARMUP_RUNS, CudaGraphs
from rankcode.inference import inference
from rankcode.network import Network
from rankcode.objectives import AtSpike
from rankcode.rules import FireAt, Never, Rule, Threshold

Mode = Literal["training", "inference", "stream"]
CONVENTIONAL = "conventional"
SIGNAL = 50.0  # other inputs are normal
Work = Callable[[], Any]


class Case(NamedTuple):
    """A piece of work by name."""

    mode: Mode
    spikes: str  # where the rows answer: a key of `planted`
    engine: str  # or CONVENTIONAL
    precision: str
    captured: bool = False  # replayed as a CUDA graph rather than launched kernel by kernel


@dataclass(frozen=True)
class Shape:
    """A batch, and the network that reads it."""

    batch_size: int = 128
    steps: int = 81
    input_size: int = 420
    hidden_size: int = 128
    readout_layer_size: int = 32  # 0: the readout is one linear layer
    num_classes: int = 11
    cell: Literal["lstm", "gru"] = "lstm"

    def network(self) -> Network:
        kind = cells.LSTM if self.cell == "lstm" else cells.GRU
        inner, outputs = self.readout_layer_size, self.num_classes
        cell, readout = kind(self.input_size, self.hidden_size), None
        if inner:
            readout = nn.Sequential(nn.Linear(self.hidden_size, inner), nn.ReLU(), nn.Linear(inner, outputs))
        return Network(cell, outputs, readout)


def planted(steps: int, rows: int) -> dict[str, Tensor]:
    """The steps at which rows answer, by name: late, spread evenly in order and shuffled, and early."""
    even = torch.linspace(1, steps, rows).round().long()
    shuffled = even[torch.randperm(rows, generator=torch.Generator().manual_seed(0))]
    late, early = torch.full((rows,), steps), torch.full((rows,), max(1, steps // 4))
    return {"all at T": late, "uniform, ordered": even, "uniform, shuffled": shuffled, "all at T/4": early}


def make_cases(
    shape: Shape, engines: tuple[str, ...], device: str, ways: Sequence[str] | None = None
) -> dict[Case, Work]:
    """Conventional training and inference, and every engine with every way of planting spikes, or with some."""
    torch.manual_seed(0)
    network = shape.network().to(device)
    inputs = torch.randn(shape.batch_size, shape.steps, shape.input_size, device=device)
    labels = torch.randint(shape.num_classes, (shape.batch_size,), device=device)
    cases = dict(_conventional(network, inputs, labels))
    on_gpu = device.startswith("cuda")
    if not on_gpu:
        _add_detector(network)
    steps_by_way = planted(shape.steps, shape.batch_size)
    for spikes in ways or steps_by_way:
        steps, x = steps_by_way[spikes].to(device), inputs
        rule = FireAt(steps) if on_gpu else Threshold(0.95)
        if not on_gpu:
            x = inputs.clone()
            x[torch.arange(len(x)), steps - 1, 0] = SIGNAL
        # Rows are expected where they answer, as in training and `evaluate`, which know where rows answered last. On a
        # GPU this matters for the order of the rows; on a CPU only how many rows answer when is used.
        expected = steps if "ordered" in spikes or not on_gpu else None
        for engine in engines:
            cases |= dict(_with_engine(network, x, labels, spikes, rule, engine, expected))
    return cases | _captured(cases) if on_gpu else cases


def _add_detector(network: Network) -> None:
    """Make the first unit of the cell answer to SIGNAL in the first input, and to nothing else, and the readout sure of
    the first class where it does."""
    cell, half = network.cell, SIGNAL / 2
    if cell.gates == 4:  # enter, forget, candidate, leave
        from_signal, bias = (1.0, 0.0, 1.0, 0.0), (-half, -half, -half, half)
    else:  # reset, update (kept where it is open), candidate
        from_signal, bias = (0.0, -1.0, 1.0), (0.0, half, -half)
    with torch.no_grad():
        for part in cell.parameters():
            part[:: cell.hidden_size] = 0.0  # the first unit of every gate
        cell.weight_ih_l0[:: cell.hidden_size, 0] = torch.tensor(from_signal)
        cell.bias_ih_l0[:: cell.hidden_size] = torch.tensor(bias)
        for layer in network.readout.modules():
            if isinstance(layer, nn.Linear):
                layer.weight[:, 0], layer.weight[0], layer.bias[0] = 0.0, 0.0, 0.0
                layer.weight[0, 0] = 10.0


def runnable(shape: Shape, device: str) -> Iterator[str]:
    """The engines that can run here, without those that are not meant to be fast."""
    network, inputs = shape.network().to(device), torch.zeros(1, 1, shape.input_size, device=device)
    for engine in ENGINES:
        slow = engine == "reference" or (engine in ("triton", "graphs") and device == "cpu")  # they are for GPUs
        if not slow and ENGINES[engine].can_run(network, inputs, Never()) is None:
            yield engine


def _conventional(network: Network, inputs: Tensor, labels: Tensor) -> Iterator[tuple[Case, Work]]:
    """PyTorch's own layer on whole sequences with the loss at the end: in both layouts, on a GPU in every precision."""
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
            yield Case("training", "all at T", CONVENTIONAL, name), train
            yield Case("inference", "all at T", CONVENTIONAL, name), infer


def _with_engine(
    network: Network, inputs: Tensor, labels: Tensor, spikes: str, rule: Rule, engine: str, expected: Tensor | None
) -> Iterator[tuple[Case, Work]]:
    lengths = torch.full((len(inputs),), inputs.shape[1], device=inputs.device)
    on_gpu = ("float32", "tf32", "bfloat16") if engine == "triton" else ("tf32",)
    for precision in on_gpu if inputs.is_cuda else ("float32",):

        def train(precision=precision):
            with products_in(precision, inputs.is_cuda):
                result = run(network, inputs, lengths, rule, "answer", engine, expected)
                AtSpike(rule=rule).loss(result, labels).backward()
            network.zero_grad()

        def infer(precision=precision):
            with products_in(precision, inputs.is_cuda), inference(network):
                run(network, inputs, lengths, rule, "answer", engine, expected)

        yield Case("training", spikes, engine, precision), train
        yield Case("inference", spikes, engine, precision), infer


def _captured(cases: dict[Case, Work]) -> dict[Case, Work]:
    """The training steps that never wait for the GPU, captured as CUDA graphs."""
    found: dict[Case, Work] = {}
    pool = torch.cuda.graph_pool_handle()
    for case, work in cases.items():
        if case.mode == "training" and case.engine in (CONVENTIONAL, "triton"):
            graphs = CudaGraphs(work, pool=pool)
            for _ in range(WARMUP_RUNS + 1):
                graphs(None)
            if not graphs.failed:
                found[case._replace(captured=True)] = partial(graphs, None)
    return found
