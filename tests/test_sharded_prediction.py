"""Answers in shards: those of `predict`, each exactly once, however often the work is cut off."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import rankcode as rc
from new_process import ENVIRONMENT
from rankcode import sharded_prediction
from rankcode.data.sources import BadData
from rankcode.saving.files import alone_in
from rankcode.sharded_prediction import AnswerWorker, left_out_file, predict_to_parquet
from test_prediction import sound_network
from wav_files import write_wav

pandas = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")
CPU = {"device": "cpu", "progress": False}
WITH_RAY = {**ENVIRONMENT, "RAY_USAGE_STATS_ENABLED": "0"}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The file of a network that answers noise at different steps, and in different ways."""
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    network = sound_network()
    network.rule = rc.Threshold(0.6)
    rc.save(network, path)
    return str(path)


@pytest.fixture
def network(model):
    return rc.load(model)


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    """Short recordings in two folders, of which one is broken, and a name that is no text."""
    folder = tmp_path_factory.mktemp("recordings")
    for number in range(60):
        write_wav(folder / ("loud" if number % 2 else "quiet") / f"{number:02}.wav", 800 + 60 * number, seed=number)
    (folder / "loud" / "broken.wav").write_bytes((folder / "loud" / "01.wav").read_bytes()[:300])
    write_wav(Path(os.fsdecode(os.fsencode(folder / "quiet") + b"/\xff.wav")), 900)
    return folder


@pytest.fixture
def small_shards(monkeypatch):
    monkeypatch.setattr(sharded_prediction, "SHARD_ROWS", 7)


def check_same(output, network, data, tolerance=1e-6):
    """The answers in a file are those of `predict`, in the same order."""
    found, left_out = pandas.read_parquet(output), []
    expected = list(rc.prediction.predict_rows(network, data, None, True, left_out))
    names = [name.encode(errors="backslashreplace").decode() for name, *_ in expected]
    assert found["from"].tolist() == names and len(set(names)) == len(names) > 0
    for column in ("label", "steps", "fired", *(["milliseconds"] if "milliseconds" in found else [])):
        assert found[column].tolist() == [getattr(answer, column) for *_, answer in expected]
    for name in network.label_names:
        there = [answer.probabilities[name] for *_, answer in expected]
        np.testing.assert_allclose(found[f"probability_{name}"], there, rtol=0, atol=tolerance)
    listed = left_out_file(output)
    lines = listed.read_text().splitlines()[1:] if listed.exists() else []
    assert lines == [line.encode(errors="backslashreplace").decode() for line in left_out]
    assert not output.with_name(f"{output.name}.parts").exists()
    return found


def test_the_answers_are_those_of_predict(network, recordings, small_shards, tmp_path):
    output = tmp_path / "answers.parquet"
    found = predict_to_parquet(network, str(recordings), output, **CPU)
    table = check_same(output, network, str(recordings))
    assert (found.answers, found.kept, found.left_out) == (len(table), 0, 1) == (61, 0, 1)
    assert "broken.wav is cut short" in left_out_file(output).read_text()
    assert table["label"].nunique() > 1 and table["steps"].nunique() > 3
    shutil.copytree(recordings / "quiet", tmp_path / "good")
    predict_to_parquet(network, str(tmp_path / "good"), output, **CPU)  # its own file is replaced
    check_same(output, network, str(tmp_path / "good"))
    assert not left_out_file(output).exists()


def test_whole_batches_give_the_same_bits(network, recordings, tmp_path):
    output = tmp_path / "answers.parquet"
    predict_to_parquet(network, str(recordings / "quiet"), output, **CPU)
    check_same(output, network, str(recordings / "quiet"), tolerance=0)


def test_a_manifest_with_files_that_cannot_be_read(network, recordings, small_shards, tmp_path):
    (tmp_path / "loop.wav").symlink_to(tmp_path / "loop.wav")
    names = ["loop.wav", "none.wav", str(recordings / "quiet"), str(recordings / "loud" / "01.wav")]
    (tmp_path / "list.txt").write_text("\n".join(names))
    output = tmp_path / "answers.parquet"
    found = predict_to_parquet(network, tmp_path / "list.txt", output, **CPU)
    check_same(output, network, str(tmp_path / "list.txt"))
    assert found.left_out == 2 and found.answers == 32


def test_rows_of_series(small_shards, tmp_path):
    values = np.random.default_rng(0).normal(size=(50, 9)).cumsum(1).astype(np.float32)
    values[13, 4] = np.inf
    np.savez(tmp_path / "rows.npz", X=values)
    np.savez(tmp_path / "damaged.npz", X=values)
    (tmp_path / "damaged.npz").write_bytes((tmp_path / "damaged.npz").read_bytes()[:500])
    network = rc.Network(rc.cells.GRU(1, 8), 3)
    network.front_end = rc.tasks.OwnData.of(values[:12], np.arange(12) % 3).front_end
    network.label_names = ("x", "y", "z")
    data = [str(tmp_path / "rows.npz"), str(tmp_path / "damaged.npz")]
    output = tmp_path / "answers.parquet"
    found = predict_to_parquet(network, data, output, rc.Threshold(0.4), **CPU)
    assert (found.answers, found.left_out) == (49, 2)
    network.rule = rc.Threshold(0.4)
    check_same(output, network, data)


class CutError(Exception):
    pass


def test_only_what_is_missing_is_computed_again(network, recordings, small_shards, tmp_path, monkeypatch):
    output, work, done = tmp_path / "answers.parquet", AnswerWorker.work, []

    def cut(worker, shard):
        if len(done) == 5:
            raise CutError
        done.append(shard.number)
        return work(worker, shard)

    monkeypatch.setattr(AnswerWorker, "work", cut)
    with pytest.raises(CutError):
        predict_to_parquet(network, str(recordings), output, **CPU)
    assert done == [0, 1, 2, 3, 4] and not output.exists()
    parts = tmp_path / "answers.parquet.parts"
    (parts / "000003.parquet").write_bytes((parts / "000003.parquet").read_bytes()[:100])  # damaged
    done.clear()
    monkeypatch.setattr(AnswerWorker, "work", lambda worker, shard: done.append(shard.number) or work(worker, shard))
    found = predict_to_parquet(network, str(recordings), output, **CPU)
    assert done == [3, 5, 6, 7, 8] and found.kept == 4 * 7 - 1
    check_same(output, network, str(recordings))


def test_parts_of_other_rows_or_another_rule_are_computed_again(network, recordings, small_shards, tmp_path):
    output, mine = tmp_path / "answers.parquet", tmp_path / "mine"
    shutil.copytree(recordings / "quiet", mine)
    parts = tmp_path / "answers.parquet.parts"

    def unfinished(rule=None):
        predict_to_parquet(network, str(mine), output, rule, **CPU)
        parts.mkdir()
        worker = AnswerWorker(None, network, rule or network.rule, "cpu")
        for shard in sharded_prediction._shards(network, rule or network.rule, str(mine)):
            (parts / f"{shard.number:06}.parquet").write_bytes(worker.work(shard)[2])

    unfinished()
    assert predict_to_parquet(network, str(mine), output, **CPU).kept == 31  # nothing has changed
    unfinished(rc.Threshold(0.5))
    assert predict_to_parquet(network, str(mine), output, **CPU).kept == 0
    unfinished()
    (mine / "15.wav").unlink(missing_ok=True)
    shutil.copy(mine / "00.wav", mine / "31a.wav")  # the first two shards stay as they are
    assert predict_to_parquet(network, str(mine), output, **CPU).kept == 14
    check_same(output, network, str(mine))


def test_one_process_at_a_time_writes_a_file(network, recordings, tmp_path):
    with (
        alone_in(tmp_path / "answers.parquet.parts", wait=False),
        pytest.raises(BadData, match=r"answers.parquet is being written by another process"),
    ):
        predict_to_parquet(network, str(recordings), tmp_path / "answers.parquet", **CPU)


@pytest.mark.usefixtures("ray_on_this_machine")
def test_workers_on_ray_give_the_same_file(network, recordings, small_shards, tmp_path):
    here, there = tmp_path / "here.parquet", tmp_path / "there.parquet"
    predict_to_parquet(network, str(recordings), here, **CPU)
    found = predict_to_parquet(network, str(recordings), there, workers=2, **CPU)
    assert pandas.read_parquet(here).equals(pandas.read_parquet(there)) and found.answers == 61
    assert left_out_file(here).read_text() == left_out_file(there).read_text()
    parts = tmp_path / "there.parquet.parts"
    assert not parts.exists()


class Deadly(rc.Audio):
    """Reading one of the files kills the process, once or always."""

    def read(self, raw):
        note = Path(raw).with_name("killed")
        if Path(raw).name == "20.wav" and (not note.exists() or note.read_text() == "always"):
            note.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().read(raw)


@pytest.mark.usefixtures("ray_on_this_machine")
def test_a_worker_that_dies_is_replaced(network, model, recordings, small_shards, tmp_path, monkeypatch):
    monkeypatch.setattr(sharded_prediction, "MAX_ATTEMPTS", 2)
    ray = pytest.importorskip("ray")
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the workers cannot import this file
    mine, output = tmp_path / "mine", tmp_path / "answers.parquet"
    shutil.copytree(recordings / "quiet", mine)
    deadly = rc.load(model)
    ordinary = deadly.front_end
    deadly.front_end = Deadly(ordinary.mean, ordinary.std, ordinary.log_mel, ordinary.context)
    try:
        predict_to_parquet(deadly, str(mine), output, workers=2, **CPU)
        assert (mine / "killed").exists()
        check_same(output, network, str(mine))
        (mine / "killed").write_text("always")
        with pytest.raises(RuntimeError, match=r"died, 2 times, with the rows from .*14.wav to .*26.wav"):
            predict_to_parquet(deadly, str(mine), output, workers=2, **CPU)
        (mine / "killed").write_text("never again")
        found = predict_to_parquet(deadly, str(mine), output, **CPU)
        assert found.kept >= 7
        check_same(output, network, str(mine))
    finally:
        ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("more", [(), ("--workers", "2")])
def test_killed_at_random_moments(network, model, tmp_path, more, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = ["--output", "answers.parquet", "--device", "cpu", *more]
    command = [sys.executable, "-m", "rankcode", "predict", model, "data", *flags]
    random = np.random.default_rng(len(more))
    for number in range(5_000):
        size = int(random.integers(800, 3000))
        write_wav(tmp_path / "data" / f"{number % 7}" / f"{number:05}.wav", size, seed=number % 50)
    parts = tmp_path / "answers.parquet.parts"
    kept = 0
    for _ in range(2):
        process = subprocess.Popen(command, env=WITH_RAY, stderr=subprocess.DEVNULL)
        wanted = len(list(parts.glob("*.parquet"))) + random.integers(1, 3)
        while process.poll() is None and len(list(parts.glob("*.parquet"))) < wanted:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not Path("answers.parquet").exists()
        assert len(list(parts.glob("*.parquet"))) > kept
        kept = len(list(parts.glob("*.parquet")))
    done = subprocess.run(command, env=WITH_RAY, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0 and f", {1024 * kept:,} of them before" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and "ray" not in done.stderr.lower(), done.stderr
    check_same(tmp_path / "answers.parquet", network, "data")
    assert not list(tmp_path.glob("*.left-out.txt"))
