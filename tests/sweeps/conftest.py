"""Small data to sweep on."""

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def everything_is_kept_here(monkeypatch, tmp_path):
    """A test may write nowhere else."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


@pytest.fixture(scope="session")
def levels(tmp_path_factory):
    """A file of noisy series of 12 steps, about −0.5 or 0.5: the more is read, the surer the answer."""
    path = tmp_path_factory.mktemp("levels") / "levels.npz"
    random = np.random.default_rng(0)
    labels = np.array(["low", "high"] * 60)
    values = random.normal(size=(120, 12)) + np.where(labels == "high", 0.5, -0.5)[:, None]
    np.savez(path, X=values.astype(np.float32), y=labels)
    return str(path)
