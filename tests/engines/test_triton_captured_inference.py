"""Captured inference gives what inference that is launched kernel by kernel gives.

Without a GPU, a replay calls the captured work again, with the arguments and results where they were at the capture.
"""

import inspect
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from triton_outcomes import DEVICE, MARKS, example, hidden_layer, products_in, threshold_for

import rankcode as rc
from rankcode.cells import GRU, LSTM
from rankcode.engines import capture, run
from rankcode.engines.triton import captured_inference
from rankcode.engines.triton.captured_inference import Inference

pytestmark = [*MARKS, pytest.mark.gpu] if DEVICE == "cuda" else MARKS


class Again:
    """In place of a CUDA graph."""

    def __init__(self, graphs, arguments):
        self.work, self.arguments = graphs.work, arguments
        self.work(*arguments)
        self.results = inspect.getclosurevars(self.work).nonlocals["found"]
        self.found = self.results[0]
        for part in self.parts(self.found):
            part.fill_(1 if part.dtype == torch.bool else -1)  # a capture computes nothing

    def parts(self, found):
        return *found.decision, found.logits, found.row

    def replay(self):
        self.work(*self.arguments)
        for to, part in zip(self.parts(self.found), self.parts(self.results[0]), strict=True):
            to.copy_(part)
        self.results[:] = [self.found]


@pytest.fixture
def replays(monkeypatch):
    """The number of replays so far, in a list. Graphs are captured at the second run."""
    found = []
    monkeypatch.setattr(captured_inference, "WARMUP_RUNS", 1)
    kind = torch.cuda.CUDAGraph
    if DEVICE == "cpu":
        kind = Again
        stream = SimpleNamespace(cuda_stream=0)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: stream)
        monkeypatch.setattr(
            capture.CudaGraphs,
            "_capture",
            lambda graphs, given: capture._Captured(
                Again(graphs, arguments := [None if part is None else part.clone() for part in given]), arguments, []
            ),
        )
        monkeypatch.setattr(captured_inference, "_has_graphs", lambda device: True)
    replay = kind.replay
    monkeypatch.setattr(kind, "replay", lambda graph: (found.append(1), replay(graph))[1])
    return found


def same(one: rc.Decision, other: rc.Decision) -> None:
    for part, others in zip(one, other, strict=True):
        assert torch.equal(part, others)


def launched(made, rule, expected_steps=None):
    """Nothing is captured inside of another capture."""
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(captured_inference, "capturing", lambda device: True)
        return run(*made, rule, "answer", "triton", expected_steps)


def captured(made, rule, expected_steps=None):
    with torch.no_grad():
        return run(*made, rule, "answer", "triton", expected_steps)


@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
@pytest.mark.parametrize("kind", [LSTM, GRU])
def test_it_follows_inputs_lengths_and_weights(kind, precision, replays):
    made = example(kind, readout=hidden_layer(nn.ReLU()))
    rule = threshold_for(made)
    results = []
    with products_in(precision):
        for turn in range(4):
            expected, got = launched(made, rule), captured(made, rule)
            same(expected.decision, got.decision)
            assert torch.equal(expected.logits, got.logits) and torch.equal(expected.row, got.row)
            assert got.lengths is made.lengths and torch.equal(got.step, got.decision.steps)
            assert len(replays) == turn
            results.append((expected.decision, got.decision))
            made = made._replace(inputs=made.inputs.roll(1, 0), lengths=made.lengths.roll(1, 0))
            with torch.no_grad():
                for parameter in made.network.parameters():
                    parameter *= 0.95
    for expected, got in results:  # later runs have not changed the results of those before
        same(expected, got)
    assert len({tuple(expected.steps.tolist()) for expected, _ in results}) > 1


def test_other_weights_rules_shapes_and_modes_have_graphs_of_their_own(replays, monkeypatch):
    monkeypatch.setattr(captured_inference, "MAX_KEPT", 100)
    made = example()
    rule, count = threshold_for(made), 0

    def check(made, rule, expected_steps=None):
        nonlocal count
        count += 1
        for _ in range(3):
            same(launched(made, rule, expected_steps).decision, captured(made, rule, expected_steps).decision)
        assert len(Inference.all[made.network]) == count and len(replays) == 2 * count

    check(made, rule)
    check(made, rc.Threshold(0.4))
    check(made, rule, made.lengths)
    check(made._replace(inputs=made.inputs[:9].clone(), lengths=made.lengths[:9]), rule)
    made.network.readout.weight = nn.Parameter(3 * made.network.readout.weight.detach())
    check(made, rule)
    made.network.eval()
    check(made, rule)
    with products_in("tf32"):
        check(made, rule)
    with torch.inference_mode():
        check(made, rule)
    check(made, rc.StepThresholds([0.9, 0.5], classes=(0, 2)))
    read = run(*made, rule, "read", "triton")
    assert len(read.row) > len(made.inputs) and len(Inference.all[made.network]) == count


def test_rules_and_weights_that_change_are_not_captured(replays):
    made = example()
    for _ in range(4):
        captured(made, rc.FireAt(made.lengths))
    nn.utils.parametrizations.weight_norm(made.network.cell, "weight_hh_l0")
    for _ in range(4):
        captured(made, threshold_for(made))
    assert not replays and made.network not in Inference.all


def test_a_few_graphs_are_kept_as_long_as_the_network(replays):
    made, others = example(), len(Inference.all)
    for rows in range(1, 9):
        fewer = made._replace(inputs=made.inputs[:rows], lengths=made.lengths[:rows])
        for _ in range(3):
            captured(fewer, rc.Threshold(0.5))
        captured(made, rc.Threshold(0.5))  # in use, and so kept
    assert len(Inference.all[made.network]) == captured_inference.MAX_KEPT and len(replays) == 8 * 2 + 8 - 1
    del made, fewer
    assert len(Inference.all) == others


def test_several_threads_and_the_public_functions(replays):
    made = example()
    rule = threshold_for(made)
    expected = launched(made, rule).decision
    with ThreadPoolExecutor(4) as pool:
        turns = [pool.submit(rc.decide, *made, rule, engine="triton") for _ in range(12)]
    for turn in turns:
        same(expected, turn.result())
    assert replays
    labels = torch.arange(len(made.inputs), device=DEVICE) % 3
    before = len(replays)
    report = rc.evaluate(made.network, (made.inputs, labels, made.lengths), rule, batch_size=5, engine="triton")
    assert report.mean_steps == pytest.approx(float(expected.steps.double().mean()))
    assert report.accuracy == pytest.approx(float((expected.label == labels).double().mean()))
    assert len(replays) > before
