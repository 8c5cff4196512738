"""Training with captured CUDA graphs ends with the weights of training that is launched kernel by kernel."""

import pytest
import torch
from torch import nn

import rankcode as rc
from rankcode.engines import capture

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


class Task:
    """Noise with a class in it, of different lengths."""

    def __init__(self, ragged: bool):
        generator = torch.Generator().manual_seed(0)
        labels = torch.randint(3, (300,), generator=generator)
        inputs = torch.randn(300, 20, 8, generator=generator) + nn.functional.one_hot(labels, 8)[:, None]
        lengths = torch.randint(5, 21, (300,), generator=generator) if ragged else None
        self.train = self.validation = (inputs, labels) if lengths is None else (inputs, labels, lengths)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize(
    "objective",
    [
        rc.AtSpike(0.7, rc.Switch((0, 0.1), (0.5, 0.0))),
        rc.AtEnd(),
        rc.EveryStep(),
        rc.UntilSpike(0.7),
        rc.UntilSpike(rule=rc.StepThresholds([0.9, 0.7], classes=(0, 2))),
    ],
    ids=["spike", "end", "every step", "until spike", "some classes"],
)
def test_captured_training_is_the_same(objective, ragged, precision, monkeypatch):
    results, replays = [], []
    replay = torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda graph: (replays.append(1), replay(graph)))
    for warm in (capture.WARMUP_RUNS, 10**9):
        monkeypatch.setattr(capture, "WARMUP_RUNS", warm)
        torch.manual_seed(0)
        network = rc.Network(rc.cells.LSTM(8, 32), 3)
        config = rc.Training(
            epochs=12, batch_size=64, learning_rate=0.001, ema_decay=0.9, finish_with="last", precision=precision,
            device="cuda", engine="triton", progress=False,
        )  # fmt: skip
        history = rc.fit(network, Task(ragged), objective, config)
        results.append((history.records, network.state_dict()))
    (records, weights), (expected_records, expected) = results
    # 12 epochs of 4 whole batches and a small one; the first epoch is checked and so not captured, and β changes once.
    runs = 11 * 4 - capture.WARMUP_RUNS * (2 if isinstance(objective, rc.AtSpike) else 1)
    assert len(replays) >= runs
    for record, other in zip(records, expected_records, strict=True):
        assert record["training"] == pytest.approx(other["training"], rel=1e-4)
        assert record["validation"]["accuracy"] == pytest.approx(other["validation"]["accuracy"], abs=0.02)
    for name, weight in weights.items():
        torch.testing.assert_close(weight, expected[name], rtol=1e-3, atol=1e-4)


def test_stacks_are_captured_too(monkeypatch):
    weights, replays, replay = [], [], torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda graph: (replays.append(1), replay(graph)))
    for warm in (capture.WARMUP_RUNS, 10**9):
        monkeypatch.setattr(capture, "WARMUP_RUNS", warm)
        torch.manual_seed(0)
        cell = rc.cells.Stack(
            rc.cells.CausalConv(8, 12, 3), rc.cells.LSTM(12, 8), rc.cells.GRU(8, 16), rc.cells.GRU(16, 16)
        )
        network = rc.Network(cell, 3)
        config = rc.Training(epochs=8, batch_size=64, learning_rate=0.001, device="cuda", progress=False)
        rc.fit(network, Task(ragged=True), rc.AtSpike(0.7), config)
        weights.append(network.state_dict())
    assert len(replays) >= 7 * 4 - capture.WARMUP_RUNS
    for name, weight in weights[0].items():
        torch.testing.assert_close(weight, weights[1][name], rtol=1e-3, atol=1e-4)


def test_batches_of_a_data_loader_are_captured_too_unless_their_values_are_wrong(monkeypatch):
    replays, replay = [], torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda graph: (replays.append(1), replay(graph)))
    inputs, labels = Task(ragged=False).train
    data = torch.utils.data.TensorDataset(inputs[:256], labels[:256])
    network = rc.Network(rc.cells.LSTM(8, 32), 3)
    config = rc.Training(epochs=6, device="cuda", engine="triton", progress=False)
    rc.fit(network, torch.utils.data.DataLoader(data, batch_size=64), rc.AtSpike(0.7), config)
    assert len(replays) >= 6 * 4 - capture.WARMUP_RUNS
    data.tensors[0][100, 0] = torch.nan
    with pytest.raises(ValueError, match="row"):
        rc.fit(network, torch.utils.data.DataLoader(data, batch_size=64), rc.AtSpike(0.7), config)
