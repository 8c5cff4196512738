"""Every test of the command line runs in its own folder, and writes nowhere else."""

import pytest
from small_data import QUICK, tones, two_levels

from rankcode.cli.main import main
from rankcode.tasks import two_sequence
from rankcode.tasks.two_sequence_stopping import StoppingLimit


@pytest.fixture(autouse=True)
def everything_is_kept_here(monkeypatch, tmp_path):
    """A test may write nowhere else."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("RANKCODE_DATA", str(tmp_path / "kept"))


@pytest.fixture
def coarse_limits(monkeypatch):
    """The limits of two-sequence on a coarse grid, which takes a second instead of ten."""
    monkeypatch.setattr(StoppingLimit, "SUM_NODES", 12)
    monkeypatch.setattr(StoppingLimit, "NOISE_NODES", 9)
    two_sequence._optimal_stopping.cache_clear()
    yield
    two_sequence._optimal_stopping.cache_clear()


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A folder with series and sound, and a run on each."""
    place = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANKCODE_DATA", str(place / "kept"))
        series, sound = two_levels(place / "levels.npz"), tones(place / "sounds")
        main(["train", series, *QUICK, "--epochs", "40", "--folder", str(place / "series-run"), "--threshold", "0.9"])
        main(["train", sound, *QUICK, "--epochs", "15", "--folder", str(place / "sound-run"), "--objective", "at-end"])
    return place
