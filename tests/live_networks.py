"""Small networks with every kind of cell, rules of every kind, and ways to cut a sequence into chunks."""

import itertools
from typing import NamedTuple

import pytest
import torch
from hypothesis import strategies as st
from torch import nn

import rankcode as rc
from rankcode.front_ends import Audio, LatencyCode, LogMel, Standardise
from rankcode.readouts import CheckpointReadout, EnsembleReadout

CLASSES = 3


class Leaky(nn.Module):
    """A user's own cell, which says neither the shape of its inputs nor that of its features."""

    def __init__(self):
        super().__init__()
        self.into, self.leak = nn.Linear(3, 4), nn.Parameter(torch.linspace(0.1, 0.9, 4))

    def initial_state(self, batch_size):
        return self.leak.new_zeros(batch_size, 4)

    def forward(self, x_t, state):
        state = self.leak * state + self.into(x_t).tanh()
        return state, state


def network_of(cell, **settings):
    """Its outputs differ from step to step and from row to row."""
    torch.manual_seed(0)
    network = rc.Network(cell, CLASSES, **settings)
    network(torch.zeros(1, *getattr(cell, "input_shape", (3,))), network.initial_state(1), 1)  # sizes lazy layers
    with torch.no_grad():
        for name, part in [*network.named_parameters(), *network.named_buffers()]:
            if part.is_floating_point() and "mixture" not in name and "difference_scale" not in name:
                part.normal_(std=0.1 if "bias" in name else 1.0)
    return network.double().eval()


def random_kernels():
    cell = rc.cells.RandomKernels(3, num_dilations=2, num_biases=1)
    return network_of(cell, readout=CheckpointReadout((1, 3, 4, 9), cell.group_sizes, CLASSES, floor=0.1))


def kernels_and_gru():
    kernels = rc.cells.RandomKernels(3, num_dilations=2, num_biases=1)
    readouts = CheckpointReadout((1, 3, 4, 9), kernels.group_sizes, CLASSES, floor=0.1), nn.Linear(4, CLASSES)
    readout = EnsembleReadout(readouts, (*kernels.output_shape, 4))
    return network_of(rc.cells.Parallel(kernels, rc.cells.GRU(3, 4)), readout=readout)


CELLS = {
    "LSTM": lambda: network_of(rc.cells.LSTM(3, 5)),
    "GRU of two layers": lambda: network_of(rc.cells.GRU(3, 4, 2)),
    "ConvLSTM": lambda: network_of(rc.cells.ConvLSTM(1, 2, (4, 3))),
    "LIF": lambda: network_of(rc.cells.Stack(rc.cells.LIF(6, 8), rc.cells.LIF(8, CLASSES, emits="membranes"))),
    "ConvLIF": lambda: network_of(rc.cells.ConvLIF(1, 2, (4, 3))),
    "Glimpses": lambda: network_of(rc.cells.Glimpses((4, 5), 8, channels=8, hidden_size=6)),
    "RandomKernels": random_kernels,
    "Parallel": kernels_and_gru,
    "Stack": lambda: network_of(rc.cells.Stack(rc.cells.LSTM(3, 5), rc.cells.GRU(5, 4))),
    "CausalConv": lambda: network_of(
        rc.cells.Stack(rc.cells.CausalConv(3, 6, 3), rc.cells.CausalConv(6, 6, 2, depthwise=True), rc.cells.GRU(6, 4))
    ),
    "own cell": lambda: network_of(Leaky()),
}
NETWORKS = {name: make() for name, make in CELLS.items()}


def series_network(channels):
    network = network_of(rc.cells.GRU(channels, 4)).float()
    network.front_end = Standardise(tuple(range(1, channels + 1)), (0.3, 2.0, 5.0)[:channels])
    return network


def image_network(shape, steps):
    cell = rc.cells.ConvLSTM(1, 2, shape[1:]) if len(shape) == 3 else rc.cells.LSTM(*shape, 5)
    network = network_of(cell).float()
    network.front_end = LatencyCode(16, steps, shape)
    return network


def sound_network(context=3, bands=4, rate=4000, cell=None):
    front_end = Audio((-6.0,) * bands, (3.0,) * bands, LogMel(rate, bands), context)
    network = network_of(cell or rc.cells.GRU(*front_end.output_shape, 5)).float()
    with torch.no_grad():
        network.readout.weight.mul_(0.7)
    network.front_end = front_end
    return network


class Average:
    """A user's own rule, which remembers: fires when the mean of the probabilities so far reaches a threshold."""

    def __init__(self, threshold):
        self.threshold = threshold

    def initial_state(self, batch_size):
        return torch.zeros(batch_size, CLASSES, dtype=torch.float64), torch.zeros(batch_size, dtype=torch.long)

    def __call__(self, activations, probabilities, step, state):
        total, count = state[0] + probabilities, state[1] + 1
        return (total / count[:, None]).amax(1) >= self.threshold, (total, count)


GAINS = ((-1.0, -0.5, 0.5), (-1.0, 0.2, 1.0), (-0.5, 0.5, 1.0))  # at steps 1, 3 and 4


class FirstFeatures:
    """A user's own rule that reads features: an optimal rule with a second axis, which reads the first three."""

    reads_features = True
    rule = rc.OptimalStopping(
        (1, 3, 4, 12),
        tuple(tuple(gain + 0.5 * place for place in range(-3, 4) for gain in gains) for gains in GAINS),
        axis=((2.0, -1.0, 1.0, 0.1), (-1.0, 2.0, 0.5, -0.2)),
    )

    def __repr__(self):
        return "FirstFeatures()"  # in the names of tests

    def initial_state(self, batch_size):
        return self.rule.initial_state(batch_size)

    def __call__(self, activations, probabilities, step, state, features):
        return self.rule(activations, probabilities, step, state, features[:, :3])


RULES = {
    "Threshold": rc.Threshold(0.8),
    "Threshold of some classes": rc.Threshold(0.6, classes=(0, 2)),
    "StepThresholds": rc.StepThresholds((0.99, 0.95, 0.9, 0.7)),
    "Patience": rc.Patience(rc.Threshold(0.6), 2),
    "FireAt": rc.FireAt(4),
    "Never": rc.Never(),
    "OptimalStopping": rc.OptimalStopping((1, 3, 4, 12), GAINS, (0.5, 1.0, 2.0, 1.0), classes=(0, 1)),
    "reads features": FirstFeatures(),
    "patience with features": rc.Patience(FirstFeatures(), 2),
    "own rule": Average(0.7),
}


def inputs_for(network, steps, seed, rows=None):
    """Inputs [steps, features…], or [rows, steps, features…]."""
    shape = tuple(getattr(network.cell, "input_shape", (3,)))
    generator = torch.Generator().manual_seed(seed)
    leading = (steps,) if rows is None else (rows, steps)
    return 1.5 * torch.randn(*leading, *shape, generator=generator, dtype=torch.float64)


@st.composite
def chunks(draw, length, largest=5):
    """Slices that cut a sequence of this length into chunks, some of them empty."""
    sizes = []
    while sum(sizes) < length:
        sizes.append(draw(st.integers(0, largest)))
        if sizes[-3:] == [0, 0, 0]:
            sizes[-1] = 1
    ends = [min(length, end) for end in itertools.accumulate(sizes)]
    return [slice(begin, end) for begin, end in zip([0, *ends[:-1]], ends, strict=True)]


class Answer(NamedTuple):
    label: int
    steps: int
    fired: bool


def assert_same(found, expected, probabilities=1e-9):
    """Two decisions of one row each: the same answer at the same step, with the same probabilities."""
    answers = [Answer(*(part.item() for part in decision[:3])) for decision in (found, expected)]
    assert answers[0] == answers[1]
    torch.testing.assert_close(
        found.probabilities, expected.probabilities, rtol=0, atol=probabilities, check_dtype=True
    )


def assert_predicted(found, expected):
    """A decision is that of a `Prediction`."""
    label = list(expected.probabilities).index(expected.label)
    assert Answer(*(part.item() for part in found[:3])) == (label, expected.steps, expected.fired)
    assert found.probabilities[0].tolist() == pytest.approx(list(expected.probabilities.values()), abs=1e-5)


def streamed(stream, parts):
    """The decision of a stream that reads these parts and then ends."""
    for part in parts:
        if (decision := stream.push(part)) is not None:
            return decision
    return stream.finish()


def pooled(pool, rows, cuts, starts=None):
    """The decision of every row, which is pushed in its chunks, one each tick, from a tick of its own on."""
    starts = [0] * len(rows) if starts is None else starts
    ids, found = {}, {}
    for tick in range(max(start + len(cut) for start, cut in zip(starts, cuts, strict=True)) + 1):
        for number, (row, cut, start) in enumerate(zip(rows, cuts, starts, strict=True)):
            if tick == start:
                ids[number] = pool.open()
            if number not in ids or ids[number] in found:
                continue
            if start <= tick < start + len(cut):
                pool.push(ids[number], row[cut[tick - start]])
            elif tick == start + len(cut):
                pool.finish(ids[number])
        answered = dict(pool.tick())
        assert not answered.keys() & found.keys()
        found |= answered
    assert len(pool) == 0
    return [found[ids[number]] for number in range(len(rows))]
