"""Small data to sweep on, and one Ray for all tests."""

import os
import shutil
import tempfile

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


@pytest.fixture(scope="session")
def ray_on_this_machine():
    """Ray with two CPUs, which sweeps use because it has been started: starting it takes seconds."""
    ray = pytest.importorskip("ray", reason="sweeps need ray")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    folder = tempfile.mkdtemp(prefix="rankcode-ray-")
    quiet = {"log_to_driver": False, "logging_level": "ERROR", "include_dashboard": False}
    ray.init(address="local", num_cpus=2, object_store_memory=100 * 2**20, _temp_dir=folder, **quiet)
    yield ray
    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)
