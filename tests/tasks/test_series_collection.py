"""Series as the rows of a task: how precisely values are kept, and fingerprints."""

import numpy as np
import pytest
import torch

import rankcode as rc
from rankcode.front_ends import Standardise
from rankcode.tasks import OwnData, rows_for

ROWS, ROW_LABELS = np.random.default_rng(0).normal(size=(30, 6)), np.arange(30) % 2
CHANGES = {
    "labels flipped": (ROWS, 1 - ROW_LABELS),
    "rows reversed": (ROWS[::-1], ROW_LABELS),
    "one value": (np.where(np.arange(30)[:, None] == 3, ROWS + 1e-3, ROWS), ROW_LABELS),
    "other steps": ([row[: 6 - (k == 4)] for k, row in enumerate(ROWS)], ROW_LABELS),
}


@pytest.mark.parametrize(("offset", "width"), [(0, torch.float32), (1e3, torch.float32), (1e7, torch.float64)])
def test_what_varies_little_around_a_large_mean_is_kept(offset, width):
    labels = np.arange(60) % 2
    signal = 0.3 * labels[:, None] + 0.05 * np.random.default_rng(0).normal(size=(60, 10))
    task = OwnData.of(offset + signal, labels)
    assert task.train.values.dtype == width
    inputs = torch.cat([batch.inputs for batch in task.train.scan(7, "cpu")])
    expected = (signal[task._index["train"]] - signal[task._index["train"]].mean()) / signal[task._index["train"]].std()
    assert np.abs(inputs[..., 0].numpy() - expected).max() < 1e-3


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.longdouble, np.int8, np.int64, bool])
def test_numbers_of_any_width(kind):
    values = (np.arange(40).reshape(8, 5) % 3).astype(kind)
    task = OwnData.of(values, np.arange(8) % 2)
    assert task.train.values.dtype == torch.float32


def test_what_the_network_reads_says_how_fine_values_are_kept(tmp_path):
    """One row far off does not make the others coarse."""
    random = np.random.default_rng(0)
    values, labels = 1e6 + random.normal(size=(40, 6)), np.array(["a", "b"] * 20)
    network = rc.Network(rc.cells.GRU(1, 3), 2)
    network.front_end, network.label_names = Standardise((1e6,), (1.0,)), ("a", "b")
    far = values.copy()
    far[7] += 3e5
    np.savez(tmp_path / "far.npz", X=far, y=labels)
    (batch,) = rows_for(network, tmp_path / "far.npz").scan(40, "cpu")
    others = np.arange(40) != 7
    assert np.abs(batch.inputs[..., 0].numpy()[others] - (values - 1e6)[others]).max() < 1e-6


def test_fine_values_are_told_apart(tmp_path):
    labels, found = np.array(["a", "b"] * 20), set()
    for seed in (0, 1):
        np.savez(tmp_path / f"{seed}.npz", X=1e9 + np.random.default_rng(seed).normal(size=(40, 6)), y=labels)
        found.add(OwnData(str(tmp_path / f"{seed}.npz")).collection.fingerprint())
    assert len(found) == 2


def test_the_scale_of_ordinary_values_is_that_of_what_is_read():
    values = np.random.default_rng(0).normal(size=(40, 6))
    double, single = (OwnData.of(values.astype(kind), np.arange(40) % 2) for kind in (np.float64, np.float32))
    assert double.front_end == single.front_end
    assert double.collection.fingerprint() == single.collection.fingerprint()


@pytest.mark.parametrize("change", CHANGES)
def test_arrays_have_a_fingerprint(change):
    task = OwnData.of(ROWS, ROW_LABELS)
    assert task.fingerprint == OwnData.of(ROWS.copy(), ROW_LABELS.astype(str)).fingerprint != ""
    assert OwnData.of(*CHANGES[change]).fingerprint != task.fingerprint
