"""Pipes and devices are refused wherever data is read: opening one would wait for ever."""

import os
import signal

import numpy as np
import pytest

import rankcode as rc
from rankcode.data.feature_cache import open_cache
from rankcode.data.open_file import open_file
from rankcode.front_ends import Audio, Standardise
from rankcode.tasks import OwnData, TemporalMNIST

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")


@pytest.fixture(autouse=True)
def at_most_ten_seconds():
    def stop(*_):
        raise AssertionError("it waits for the pipe")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(10)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def network(front_end):
    made = rc.Network(rc.cells.GRU(*front_end.output_shape, 2), 2)
    made.front_end = front_end
    return made


READERS = {
    "series.npz": lambda path: OwnData(str(path)).train,
    "series.ts": lambda path: OwnData(str(path)).train,
    "series.tsv": lambda path: OwnData(str(path)).train,
    "series.arff": lambda path: OwnData(str(path)).train,
    "new.npz": lambda path: rc.predict(network(Standardise((0.0,), (1.0,))), path),
    "new.ts": lambda path: rc.predict(network(Standardise((0.0,), (1.0,))), path),
    "sound.wav": lambda path: rc.predict(network(Audio((0.0,) * 20, (1.0,) * 20)), path),
    "index.jsonl": lambda path: open_cache(path.parent),
    "anything": open_file,
}


@pytest.mark.parametrize("name", READERS)
def test_a_named_pipe_is_refused(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(rc.BadData, match=f"{name} is not a regular file") as error:
        READERS[name](tmp_path / name)
    assert "\n" not in str(error.value)


def test_pipes_among_files_are_passed_over(tmp_path):
    os.mkfifo(tmp_path / "a_TEST.npz")
    np.savez(tmp_path / "a_TRAIN.npz", X=np.ones((8, 3)), y=[0, 1] * 4)
    assert OwnData(str(tmp_path / "a_TRAIN.npz")).train.size == 4
    os.mkfifo(tmp_path / "train-images-idx3-ubyte")
    with pytest.raises(FileNotFoundError, match="there is no train-images"):
        TemporalMNIST(str(tmp_path)).train  # noqa: B018


def test_devices_and_folders(tmp_path):
    with pytest.raises(rc.BadData, match="/dev/zero is not a regular file"):
        open_file("/dev/zero")
    with pytest.raises(rc.BadData, match="is a folder"):
        open_file(tmp_path)
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("file")
    with open_file(tmp_path / "link") as file:
        assert file.read() == b"abc"
