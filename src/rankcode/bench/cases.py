"""The pieces of work that are timed: one batch, in training or inference, with conventional training or with an engine.

Spikes are planted, so that every engine reads exactly the same steps. The rule is `FireAt`, or for LSTM and GRU, on a
CPU always, a threshold, as in real use: a unit of the network detects a signal, which the inputs have at these steps.
"""

from __future__ import annotations

import math
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
from rankcode.engines.capture import WARMUP_RUNS, CudaGraphs
from rankcode.engines.run import read_steps
from rankcode.inference import inference
from rankcode.network import Network
from rankcode.objectives import AtSpike
from rankcode.rules import FireAt, Never, Rule, Threshold
from rankcode.state import State

Mode = Literal["training", "inference", "stream"]
CellName = Literal["lstm", "gru", "stack", "conv-lstm", "glimpses", "lif"]
OF_IMAGES = ("conv-lstm", "glimpses")
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
    cell: CellName = "lstm"
    num_layers: int = 1  # of an LSTM or a GRU

    @property
    def step_shape(self) -> tuple[int, ...]:
        """Of a step's inputs. ConvLSTM and Glimpses read square images of at most `input_size` pixels."""
        side = math.isqrt(self.input_size)
        return (1, side, side) if self.cell in OF_IMAGES else (self.input_size,)

    def network(self) -> Network:
        inner, outputs, size = self.readout_layer_size, self.num_classes, (self.input_size, self.hidden_size)
        if self.cell in OF_IMAGES:
            image_size = self.step_shape[1], self.step_shape[2]
            if self.cell == "glimpses":
                return Network(cells.Glimpses(image_size, self.steps, hidden_size=self.hidden_size), outputs)
            return Network(cells.ConvLSTM(1, self.hidden_size, image_size, kernel_size=7), outputs)
        if self.cell == "stack":
            gru = cells.GRU(self.hidden_size, self.hidden_size, num_layers=2)
            return Network(cells.Stack(cells.CausalConv(*size, kernel_size=5), gru), outputs)
        if self.cell == "lif":
            return Network(cells.Stack(cells.LIF(*size), cells.LIF(self.hidden_size, self.hidden_size)), outputs)
        cell, readout = (cells.LSTM if self.cell == "lstm" else cells.GRU)(*size, self.num_layers), None
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
    shape: Shape, engines: tuple[str, ...], device: str, ways: Sequence[str] | None = None, threshold: bool = False
) -> dict[Case, Work]:
    """Conventional training and inference, and every engine with every way of planting spikes, or with some. With
    `threshold`, rows answer at one on a GPU too."""
    torch.manual_seed(0)
    network = shape.network().to(device)
    inputs = torch.randn(shape.batch_size, shape.steps, *shape.step_shape, device=device)
    labels = torch.randint(shape.num_classes, (shape.batch_size,), device=device)
    cases = dict(_conventional(network, inputs, labels))
    on_gpu = device.startswith("cuda")
    detects = (device == "cpu" or threshold) and shape.cell in ("lstm", "gru")
    if detects:
        _add_detector(network)
    steps_by_way = planted(shape.steps, shape.batch_size)
    for spikes in ways or steps_by_way:
        steps, x = steps_by_way[spikes].to(device), inputs
        rule = Threshold(0.95) if detects else FireAt(steps)
        if detects:
            x = inputs.clone()
            x[torch.arange(len(x)), steps - 1, 0] = SIGNAL
        # Rows are expected where they answer, as in training and `evaluate`, which know where rows answered last. On a
        # GPU this matters for the order of the rows; on a CPU only how many rows answer when is used.
        expected = steps if "ordered" in spikes or not on_gpu else None
        for engine in engines:
            cases |= dict(_with_engine(network, x, labels, spikes, rule, engine, expected))
    return cases | _captured(cases) if on_gpu else cases


def _add_detector(network: Network) -> None:
    """Make the first unit of every layer answer to SIGNAL in the first input, and to nothing else, and the readout sure
    of the first class where it does."""
    cell, half = network.cell, SIGNAL / 2
    if cell.gates == 4:  # enter, forget, candidate, leave
        from_signal, bias = (1.0, 0.0, 1.0, 0.0), (-half, -half, -half, half)
    else:  # reset, update (kept where it is open), candidate
        from_signal, bias = (0.0, -1.0, 1.0), (0.0, half, -half)
    with torch.no_grad():
        for part in cell.parameters():
            part[:: cell.hidden_size] = 0.0  # the first unit of every gate
        for number in range(cell.num_layers):
            of_input, _, of_bias, _ = (part[:: cell.hidden_size] for part in cell.weights(number))
            # The unit of the layer below answers with tanh(1) or 1.
            of_input[:, 0] = torch.tensor(from_signal) * (2 * SIGNAL if number else 1)
            of_bias[:] = torch.tensor(bias)
        for layer in network.readout.modules():
            if isinstance(layer, nn.Linear):
                layer.weight[:, 0], layer.weight[0], layer.bias[0] = 0.0, 0.0, 0.0
                layer.weight[0, 0] = 10.0


def runnable(shape: Shape, device: str) -> Iterator[str]:
    """The engines that can run here, without those that are not meant to be fast."""
    network, inputs = shape.network().to(device), torch.zeros(1, 1, *shape.step_shape, device=device)
    for engine in ENGINES:
        slow = engine == "reference" or (engine in ("triton", "graphs") and device == "cpu")  # they are for GPUs
        if not slow and ENGINES[engine].can_run(network, inputs, Never()) is None:
            yield engine


def _conventional(network: Network, inputs: Tensor, labels: Tensor) -> Iterator[tuple[Case, Work]]:
    """Whole sequences with the loss, or the label, at the end, on a GPU in every precision: PyTorch's own layer in both
    layouts, or a loop over the steps for cells that PyTorch has no layer for."""
    for rows_first in (True, False):
        layer = _layer(network, rows_first)
        if layer is None:
            continue
        x = inputs if rows_first else inputs.transpose(0, 1).contiguous()
        for precision in ("tf32", "bfloat16") if inputs.is_cuda else ("float32",):

            def logits(layer=layer, x=x, rows_first=rows_first) -> Tensor:
                features = layer(x)[0]
                return network.readout(features[:, -1] if rows_first else features[-1])

            def train(layer=layer, logits=logits, precision=precision):
                with products_in(precision, inputs.is_cuda):
                    loss = F.cross_entropy(logits().float(), labels)
                loss.backward()
                layer.zero_grad()
                network.zero_grad()

            def infer(logits=logits, precision=precision):
                with torch.no_grad(), products_in(precision, inputs.is_cuda):
                    logits().argmax(1)

            name = precision if rows_first else f"{precision}, steps first"
            yield Case("training", "all at T", CONVENTIONAL, name), train
            yield Case("inference", "all at T", CONVENTIONAL, name), infer


def _layer(network: Network, rows_first: bool) -> Any:
    """What conventional training runs: from inputs to (features, state)."""
    cell: Any = network.cell
    if isinstance(cell, cells.LSTM | cells.GRU):
        kind = nn.LSTM if isinstance(cell, cells.LSTM) else nn.GRU
        sizes = cell.input_size, cell.hidden_size, cell.num_layers
        return kind(*sizes, batch_first=rows_first).to(next(cell.parameters()).device)
    return _Loop(network) if rows_first else None


class _Loop(nn.Module):
    """A cell, called for one step after the other."""

    def __init__(self, network: Network):
        super().__init__()
        self.network = network

    def forward(self, inputs: Tensor) -> tuple[Tensor, State]:
        return read_steps(self.network, inputs, self.network.initial_state(len(inputs)))


def _with_engine(
    network: Network, inputs: Tensor, labels: Tensor, spikes: str, rule: Rule, engine: str, expected: Tensor | None
) -> Iterator[tuple[Case, Work]]:
    lengths, objective = torch.full((len(inputs),), inputs.shape[1], device=inputs.device), AtSpike(rule=rule)
    on_gpu = ("tf32", "bfloat16") if engine == "triton" else ("tf32",)
    for precision in on_gpu if inputs.is_cuda else ("float32",):

        def train(precision=precision):
            with products_in(precision, inputs.is_cuda):
                result = run(network, inputs, lengths, rule, "answer", engine, expected)
                loss = objective.loss(result, labels)
            loss.backward()
            network.zero_grad()

        def infer(precision=precision):
            with products_in(precision, inputs.is_cuda), inference(network):
                run(network, inputs, lengths, rule, "answer", engine, expected)

        yield Case("training", spikes, engine, precision), train
        yield Case("inference", spikes, engine, precision), infer


def _captured(cases: dict[Case, Work]) -> dict[Case, Work]:
    """The work that never waits for the GPU, captured as CUDA graphs."""
    found: dict[Case, Work] = {}
    pool = torch.cuda.graph_pool_handle()
    for case, work in cases.items():
        if case.engine in (CONVENTIONAL, "triton"):
            graphs = CudaGraphs(work, pool=pool)
            for _ in range(WARMUP_RUNS + 1):
                graphs(None)
            if not graphs.failed:
                found[case._replace(captured=True)] = partial(graphs, None)
    return found
