"""Training with numbers of rows that are fixed beforehand ends with the weights of training without them."""

import pytest
import torch
from torch import nn

import rankcode as rc
from rankcode.engines import capture, scheduled
from rankcode.training import batch_update, loop

ON_A_GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
DEVICES = ["cpu", pytest.param("cuda", marks=ON_A_GPU)]


def task(rows=320, steps=12):
    """Digits of three classes that appear in noise, some of them late."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(3, (rows,), generator=generator)
    late = torch.randint(0, 6, (rows, 1), generator=generator)
    shown = (torch.arange(steps) >= late)[:, :, None] * 2.0 * nn.functional.one_hot(labels, 6)[:, None]
    return torch.randn(rows, steps, 6, generator=generator) + shown, labels


def trained(objective, device, data=None, **settings):
    torch.manual_seed(0)
    network = rc.Network(rc.cells.LIF(6, 24), 3)
    config = rc.Training(
        epochs=8, batch_size=64, learning_rate=0.02, ema_decay=0.9, finish_with="last", max_grad_norm=1.0,
        device=device, engine="graphs", progress=False, **settings,
    )  # fmt: skip
    history = rc.fit(network, data or task(), objective, config)
    return history.records, network.state_dict()


@pytest.fixture
def runs(monkeypatch):
    """The numbers of rows and steps of every scheduled run. On a CPU nothing is captured."""
    found, run = [], scheduled.run

    def noted(*given):
        result, incomplete = run(*given)
        found.append(given[-1])
        return result, incomplete

    monkeypatch.setattr("rankcode.training.scheduled_update.run", noted)
    monkeypatch.setattr(scheduled, "MAX_BATCHES", 8)
    if not torch.cuda.is_available():
        monkeypatch.setattr(batch_update, "_captures", lambda device: True)
        monkeypatch.setattr(loop, "Answers", lambda *given, used: batch_update.Answers(*given))
        monkeypatch.setattr(capture, "WARMUP_RUNS", 10**9)
    return found


def assert_same(results, expected):
    for record, other in zip(results[0], expected[0], strict=True):
        assert record["training"] == pytest.approx(other["training"], rel=1e-3)
    for name, weight in results[1].items():
        torch.testing.assert_close(weight, expected[1][name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("noise", [0.0, 0.1], ids=["index", "tensors"])  # what the captured graph begins with
@pytest.mark.parametrize("objective", [rc.AtSpike(0.6, 0.05), rc.UntilSpike(0.6)], ids=["at", "until"])
def test_training_is_the_same(objective, noise, device, runs, monkeypatch):
    replays, replay = [], torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda graph: (replays.append(1), replay(graph)))
    results = trained(objective, device, input_noise=noise)
    assert any(blocks[-1][0] < 64 for blocks in runs)
    assert len(runs) + len(replays) // 2 >= 25  # of 40 batches
    runs.clear()
    monkeypatch.setattr(scheduled, "MAX_STEPS", 1)
    assert_same(results, trained(objective, device, input_noise=noise))
    assert not runs


@pytest.mark.parametrize("device", DEVICES)
def test_batches_with_too_few_places_are_run_again(device, runs, monkeypatch):
    monkeypatch.setattr(scheduled.Schedule, "_best", lambda schedule: ((64, 1), (1, 11)))
    results = trained(rc.AtSpike(0.6), device)
    assert runs
    monkeypatch.setattr(scheduled, "MAX_STEPS", 1)
    assert_same(results, trained(rc.AtSpike(0.6), device))


@pytest.mark.parametrize("device", DEVICES)
def test_without_enough_memory_training_goes_on_without_a_schedule(device, runs, monkeypatch):
    def run(*given):
        runs.append(given[-1])
        raise torch.OutOfMemoryError("no memory is left")

    monkeypatch.setattr("rankcode.training.scheduled_update.run", run)
    results = trained(rc.AtSpike(0.6), device)
    assert len(runs) == 1  # it is not tried again
    monkeypatch.setattr(scheduled, "MAX_STEPS", 1)
    assert_same(results, trained(rc.AtSpike(0.6), device))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("wrong", ["input", "label"])
def test_a_wrong_value_is_found_and_named(wrong, device, runs, monkeypatch):
    monkeypatch.setattr(scheduled, "MIN_BATCHES", 1)
    inputs, labels = task()
    last = int(arrays_in_order(inputs, labels)[-1])  # in the last batch of the first epoch
    if wrong == "input":
        inputs[last, 0] = torch.nan
    else:
        labels[last] = 7
    with pytest.raises(ValueError, match=f"row {last} of the training data"):
        trained(rc.AtSpike(0.6), device, data=(inputs, labels))
    assert runs


def arrays_in_order(inputs, labels):
    return rc.data.Arrays(inputs, labels).index(4, 64, 0)
