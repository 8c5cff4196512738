"""Whole trainings, rank-coded and conventional."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import rankcode as rc
from rankcode.bench import epochs as epochs_module
from rankcode.bench.cases import Shape
from rankcode.bench.epochs import (
    Epoch,
    conventional_seconds,
    epochs_table,
    epochs_task,
    measure_epochs,
    with_sizes_of,
)
from rankcode.cells import gated
from rankcode.compiled.library import functions
from rankcode.compiled.sequence import read_sequence
from rankcode.data.sources import as_source
from rankcode.engines import whole
from rankcode.experiments.tone_sweeps import ToneSweeps
from rankcode.tasks import SpeechCommands, TemporalDigits, TemporalMNIST

RESULTS = Path(__file__).parents[2] / "results" / "bench"


def epochs(*seconds, steps=40.0):
    return [Epoch(each, steps, 0.9) for each in seconds]


@pytest.mark.parametrize(("cell", "task"), [("lstm", ToneSweeps(rows=48)), ("conv-lstm", TemporalDigits())])
def test_both_trainings_are_measured_epoch_by_epoch(cell, task):
    shape = with_sizes_of(task, Shape(batch_size=24, hidden_size=4, cell=cell))
    assert (shape.steps, *shape.step_shape) == ((81, 420) if cell == "lstm" else (10, *task.input_shape))
    found = measure_epochs(shape, task, 3, "cpu", progress=False)
    assert [len(found[name]) for name in ("rank-coded", "conventional")] == [3, 3]
    for each in (*found["rank-coded"], *found["conventional"]):
        assert each.seconds > 0 and 0 < each.accuracy <= 1
    lengths = {each.mean_steps for each in found["conventional"]}
    assert len(lengths) == 1 and all(0 < each.mean_steps <= max(lengths) for each in found["rank-coded"])


def test_data_loaders_have_the_same_rows(monkeypatch):
    task, sources = ToneSweeps(rows=48), []

    def noted(network, data, objective, training):
        sources.append(data)
        return rc.fit(network, data, objective, training)

    monkeypatch.setattr(epochs_module, "fit", noted)
    shape = with_sizes_of(task, Shape(batch_size=24, hidden_size=4))
    found = measure_epochs(shape, task, 2, "cpu", progress=False, workers=0)
    assert [len(run) for run in found.values()] == [2, 2, 2, 2]
    whole = next(task.train.scan(48, "cpu"))
    for data, quick in zip(sources[2:], (True, False), strict=True):
        assert len(data.train) == -(-task.train.size // 24)
        assert (as_source(data.train).rows is not None) == quick
        for row in (0, task.train.size - 1):
            for got, expected in zip(data.train.dataset[row], whole, strict=False):
                assert torch.equal(got, expected[row])
    assert epochs_table({24: found}).splitlines()[0].endswith("DataLoader ÷ arrays: of tensors, of rows")


@pytest.mark.parametrize("cell", ["lstm", "gru", "stack"])
def test_conventional_training_runs_with_the_layer_of_pytorch(cell, monkeypatch):
    networks = []

    def noted(network, *_):
        networks.append(network)
        return SimpleNamespace(records=[])

    monkeypatch.setattr(epochs_module, "fit", noted)
    task = ToneSweeps(rows=48)
    measure_epochs(with_sizes_of(task, Shape(hidden_size=4, cell=cell)), task, 3, "cpu", progress=False)
    coded, conventional = networks
    inputs = torch.randn(5, 7, *coded.cell.input_shape)
    compiled = []
    monkeypatch.setattr(gated, "read_sequence", lambda *args: compiled.append(args) or read_sequence(*args))
    conventional.cell.load_state_dict(coded.cell.state_dict())
    (one, _), (other, _) = (each.cell.forward_sequence(inputs, each.initial_state(5)) for each in (coded, conventional))
    assert len(compiled) == (functions() is not None) * (2 if cell == "stack" else 1)  # layers
    torch.testing.assert_close(one, other)
    assert whole.can_run(conventional, inputs, rc.Never()) is None


def test_the_task_depends_on_the_cell_and_without_a_folder_needs_no_data():
    assert epochs_task("lstm", None, 512) == ToneSweeps(rows=1024)
    assert epochs_task("gru", "folder", 512) == SpeechCommands("folder")
    assert epochs_task("conv-lstm", None, 512) == TemporalDigits()
    assert epochs_task("glimpses", "folder", 512) == TemporalMNIST("folder")


def test_the_first_conventional_epoch_does_not_count():
    assert conventional_seconds({"conventional": epochs(9.0, 2.0, 3.0, 4.0)}) == 3.0
    assert conventional_seconds({"conventional": epochs(9.0)}) == 9.0


def test_the_table_compares_means_without_the_first_epoch():
    runs = {"rank-coded": epochs(1.0, 2.0, steps=20.0), "conventional": epochs(9.0, 3.0)}
    assert epochs_table({512: runs}).splitlines()[1].split() == ["512", "3.000", "s", "2.000", "s", "0.67", "50", "%"]


RATIOS = [
    ("h200", "512", 0.22),
    ("h200-stack", "512", 0.44),
    ("h200-conv-lstm", "64", 0.44),
    ("h200-glimpses", "256", 0.35),
    ("h200-lif", "128", 0.20),
    ("cpu", "512", 0.36),
]


@pytest.mark.parametrize(("file", "size", "ratio"), RATIOS)
def test_the_readme_has_the_kept_ratios(file, size, ratio):
    kept = json.loads((RESULTS / f"{file}-epochs.json").read_text())
    runs = {name: [Epoch(**each) for each in run] for name, run in kept["epochs"][size].items()}
    coded = [each.seconds for each in runs["rank-coded"]]
    assert f" {ratio:.2f} " in epochs_table({512: runs}).splitlines()[1]
    text = (RESULTS / "README.md").read_text()
    assert f"batch size {int(size):,}, {len(coded)} epochs" in text and f"| {ratio:.2f} |" in text
