"""A cache of frames is computed once, and again when files or settings changed or it is damaged."""

import json
import multiprocessing
import os
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch

import rankcode as rc
from rankcode.data import feature_cache
from rankcode.data.downloads import data_folder
from rankcode.data.feature_cache import Recording, cached_frames, is_cache, open_cache
from rankcode.data.sources import Packed
from rankcode.front_ends.audio import LogMel
from wav_files import read_wav, write_wav

LENGTHS = (1, 1000, 3199, 3200, 3201, 5945, 16_000)  # samples of the recordings
FILES = [f"{number}.wav" for number in range(7)]


@pytest.fixture(autouse=True)
def kept_in(tmp_path, monkeypatch):
    """Caches are in the test's own folder, with a line of the index for two recordings."""
    monkeypatch.setenv("RANKCODE_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(feature_cache, "RECORDINGS_PER_LINE", 2)


@pytest.fixture
def folder(tmp_path):
    for number, length in enumerate(LENGTHS):
        write_wav(tmp_path / "recordings" / "word" / FILES[number], length, number)
    return tmp_path / "recordings"


def listed(folder, split=""):
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.wav"))
    return [Recording(name, name.split("/")[0], split) for name in names]


LOG_MEL = LogMel()
READ = []  # the names of the files that were read


@pytest.fixture
def read():
    """The names of the files that are read from here on."""
    READ.clear()
    return READ


def cached(folder, recordings=None, log_mel=LOG_MEL, context=10, before=lambda path: None, **options):
    """`before` is called with each file before it is read."""

    def reading(path):
        before(path)
        READ.append(path.name)
        return log_mel.read(path, log_mel.shortest(context))

    settings = {"log_mel": asdict(log_mel), "context": context}
    return cached_frames(folder, recordings or listed(folder), reading, settings, progress=False, **options)


def the_cache(tmp_path):
    (cache,) = (tmp_path / "data" / "features").iterdir()
    return cache


def same(one, other):
    columns = ("values", "offsets", "lengths", "samples")
    return (
        all(getattr(one, name).equal(getattr(other, name)) for name in columns)
        and all(np.array_equal(getattr(one, name), getattr(other, name)) for name in ("names", "labels", "splits"))
        and (one.settings, one.left_out) == (other.settings, other.left_out)
    )


def is_right(frames, folder, least=3200):
    """Whether these are the frames of each recording in the folder."""
    waveforms = [torch.from_numpy(read_wav(path)) for path in sorted(folder.rglob("*.wav"))]
    padded = [torch.nn.functional.pad(each, (0, max(0, least - len(each)))) for each in waveforms]
    expected = [LogMel().frames(each) for each in padded]
    got = [frames.values[at : at + length] for at, length in zip(frames.offsets, frames.lengths, strict=True)]
    return len(got) == len(expected) and all(a.equal(b) for a, b in zip(got, expected, strict=True))


# Content


def test_frames_are_those_of_each_recording(folder):
    threads = torch.get_num_threads()
    frames = cached(folder)
    assert is_right(frames, folder) and torch.get_num_threads() == threads
    assert frames.values.dtype == torch.uint8 and len(frames.values) == int(frames.lengths.sum())
    assert frames.names.tolist() == [f"word/{name}" for name in FILES] and frames.left_out == ()
    assert frames.settings == {"log_mel": asdict(LOG_MEL), "context": 10}
    # Short recordings keep their length, and are padded up to one step.
    assert frames.samples.tolist() == list(LENGTHS) and frames.lengths.tolist() == [21, 21, 21, 21, 21, 38, 101]


def test_labels_and_splits_go_with_the_names(folder):
    frames = cached(folder, [Recording("word/6.wav", "six", "test"), Recording("word/1.wav", "one", "train")])
    assert frames.names.tolist() == ["word/6.wav", "word/1.wav"] and frames.lengths.tolist() == [101, 21]
    assert (frames.labels.tolist(), frames.splits.tolist()) == (["six", "one"], ["test", "train"])
    assert frames.values[:101].equal(LogMel().read(folder / "word" / "6.wav").values)


def test_the_number_of_recordings_in_a_line_changes_nothing(folder, tmp_path, monkeypatch):
    two = cached(folder)
    for size in (1, 3, 500):
        monkeypatch.setenv("RANKCODE_DATA", str(tmp_path / f"lines of {size}"))
        monkeypatch.setattr(feature_cache, "RECORDINGS_PER_LINE", size)
        assert same(cached(folder), two)


def test_a_cache_is_one_folder_that_can_be_opened_anywhere(folder, tmp_path):
    frames = cached(folder)
    cache = the_cache(tmp_path)
    assert {path.name for path in cache.iterdir()} == {"frames.u8", "index.jsonl"}
    assert is_cache(cache) and not is_cache(folder)
    cache.rename(tmp_path / "elsewhere")
    assert same(open_cache(tmp_path / "elsewhere"), frames)


# When it is computed again


def test_what_is_there_is_not_read_again(folder, read):
    first = cached(folder)
    assert sorted(read) == FILES
    read.clear()
    assert same(cached(folder), first) and same(cached(folder, skip_bad=True), first)
    assert read == []


def other_length(folder):
    """With the time of the file as it was."""
    path = folder / "word" / "6.wav"
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    write_wav(path, 8000, seed=6)
    os.utime(path, ns=times)


def touched(folder):
    path = folder / "word" / "4.wav"
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))


CHANGES = {
    "content": lambda folder: write_wav(folder / "word" / "1.wav", 1000, seed=99),
    "length": other_length,
    "time": touched,
    "added": lambda folder: write_wav(folder / "word" / "3a.wav", 700, seed=5),
    "removed": lambda folder: (folder / "word" / "2.wav").unlink(),
    "renamed": lambda folder: (folder / "word" / "6.wav").rename(folder / "word" / "0a.wav"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_it_is_computed_again_when_a_file_changed(folder, read, change):
    cached(folder)
    CHANGES[change](folder)
    read.clear()
    frames = cached(folder)
    assert read and is_right(frames, folder)
    assert frames.names.tolist() == [recording.name for recording in listed(folder)]
    read.clear()
    assert same(cached(folder), frames) and read == []


def test_it_is_computed_again_for_other_splits(folder):
    cached(folder)
    frames = cached(folder, listed(folder, "train"))
    assert set(frames.splits) == {"train"} and is_right(frames, folder)


def test_other_settings_have_another_cache(folder, read):
    ten = cached(folder)
    read.clear()
    five = cached(folder, context=5)
    assert len(read) == 7 and five.settings["context"] == 5 and is_right(five, folder, least=1600)
    read.clear()
    assert same(cached(folder), ten) and same(cached(folder, context=5), five) and read == []
    assert cached(folder, log_mel=LogMel(n_mels=8)).values.shape[1] == 8


def test_folders_of_one_name_do_not_share_a_cache(tmp_path):
    for number, place in enumerate(("a", "b")):
        os.utime(write_wav(tmp_path / place / "recordings" / "word" / "0.wav", seed=number), ns=(0, 0))
    one, other = (cached(tmp_path / place / "recordings") for place in ("a", "b"))
    assert not one.values.equal(other.values)
    assert same(cached(tmp_path / "a" / "recordings"), one)


DAMAGE = {
    "no index": ("index.jsonl", lambda _: None),
    "index cut in a line": ("index.jsonl", lambda content: content[:-20]),
    "index without a line": ("index.jsonl", lambda content: content[: content.index(b"\n") + 1]),
    "index empty": ("index.jsonl", lambda _: b""),
    "not text": ("index.jsonl", lambda content: b"\xff\xfe" + content),
    "other JSON": ("index.jsonl", lambda _: b"[]\n"),
    "other format": ("index.jsonl", lambda content: content.replace(b'"format": 3', b'"format": 99')),
    "no frames": ("frames.u8", lambda _: None),
    "frames cut": ("frames.u8", lambda content: content[:-1]),
    "frames empty": ("frames.u8", lambda _: b""),
    "frames too long": ("frames.u8", lambda content: content + b"\0"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_cache_is_named_if_opened_and_otherwise_computed_again(folder, tmp_path, damage):
    before = cached(folder)
    values, (name, change) = before.values.clone(), DAMAGE[damage]
    path = the_cache(tmp_path) / name
    content = change(path.read_bytes())
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(rc.BadData) as error:
        open_cache(the_cache(tmp_path))
    assert str(the_cache(tmp_path)) in str(error.value) and "\n" not in str(error.value)
    frames = cached(folder)
    assert frames.values.equal(values) and same(open_cache(the_cache(tmp_path)), frames)


# When the computation was interrupted


def interrupted(path):
    if path.name == "4.wav":
        raise KeyboardInterrupt


def test_what_was_done_before_an_interrupt_is_not_done_again(folder, tmp_path, read):
    with pytest.raises(KeyboardInterrupt):
        cached(folder, before=interrupted)
    assert not is_cache(the_cache(tmp_path))
    with open(the_cache(tmp_path) / "index.jsonl.part", "ab") as file:
        file.write(b'{"key": "a line that was cut')  # as after a kill
    read.clear()
    frames = cached(folder)
    assert sorted(read) == FILES[4:] and is_right(frames, folder)


@pytest.mark.parametrize("damage", ["frames missing", "index damaged", "other file"])
def test_a_part_that_does_not_fit_is_not_used(folder, tmp_path, read, damage):
    with pytest.raises(KeyboardInterrupt):
        cached(folder, before=interrupted)
    if damage == "frames missing":
        (the_cache(tmp_path) / "frames.u8.part").unlink()
    elif damage == "index damaged":
        (the_cache(tmp_path) / "index.jsonl.part").write_bytes(b"[1]\n" * 3)
    else:
        write_wav(folder / "word" / "0.wav", 500)
    read.clear()
    assert is_right(cached(folder), folder) and sorted(read) == FILES


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("old_cache", [False, True])
def test_new_frames_are_never_taken_with_an_old_index(folder, tmp_path, monkeypatch, read, number, old_cache):
    """Stopped when one of the two files is about to get its name."""
    if old_cache:
        cached(folder)
        other_length(folder)
    replace, count = os.replace, iter(range(1, 100))

    def stopping(*arguments):
        if next(count) == number:
            raise KeyboardInterrupt
        return replace(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", stopping)
        with pytest.raises(KeyboardInterrupt):
            cached(folder)
    assert not is_cache(the_cache(tmp_path))
    read.clear()
    assert is_right(cached(folder), folder)
    assert read == [] or number == 2, "all frames were there"


forks = pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="processes cannot fork here")


def forked(call):
    process = multiprocessing.get_context("fork").Process(target=call)
    process.start()
    return process


@forks
def test_what_was_done_before_a_kill_is_not_done_again(folder, tmp_path, read):
    def kill_at_the_end(path):
        if path.name == "6.wav":
            while not any(part.stat().st_size for part in tmp_path.rglob("index.jsonl.part")):
                time.sleep(0.01)  # until a line is written
            os.kill(os.getpid(), signal.SIGKILL)

    killed = forked(lambda: cached(folder, before=kill_at_the_end))
    killed.join(60)
    assert killed.exitcode == -signal.SIGKILL
    lines = (the_cache(tmp_path) / "index.jsonl.part").read_text().splitlines()
    done = [row[0].split("/")[1] for line in lines for row in json.loads(line)["recordings"]]
    frames = cached(folder)
    assert sorted(read) == sorted(set(FILES) - set(done)) != FILES and is_right(frames, folder)


@forks
def test_two_processes_that_compute_it_at_once_both_have_it(folder, tmp_path):
    go, report = tmp_path / "go", tmp_path / "report"

    def wait_for(path):
        while not path.exists():
            time.sleep(0.01)

    def compute_too():
        wait_for(go)
        report.write_text("begun")
        report.write_bytes(cached(folder).values.numpy().tobytes())

    def let_the_other_begin(path):
        if path.name == "6.wav":  # the other begins and, unless it waits for this one, ends first
            go.touch()
            wait_for(report)
            other.join(0.3)

    other = forked(compute_too)
    frames = cached(folder, before=let_the_other_begin)
    other.join(60)
    assert other.exitcode == 0
    assert is_right(frames, folder) and report.read_bytes() == frames.values.numpy().tobytes()


# Files that cannot be used


@pytest.fixture
def with_bad(folder):
    (folder / "word" / "2.wav").write_bytes(b"not sound at all")
    (folder / "word" / "5.wav").write_bytes(b"")
    return folder


def test_a_bad_file_is_named_or_left_out_and_listed(with_bad, read):
    for _ in range(2):  # computed, and found
        with pytest.raises(rc.BadData, match=r"2\.wav is not sound.*1 more.*skip_bad=True") as error:
            cached(with_bad)
        assert "\n" not in str(error.value)
    read.clear()
    frames = cached(with_bad, skip_bad=True)
    assert read == [], "a bad file was read again"
    assert "2.wav is not sound" in frames.left_out[0] and "5.wav is empty" in frames.left_out[1]
    assert frames.names.tolist() == [f"word/{FILES[number]}" for number in (0, 1, 3, 4, 6)]
    assert len(frames.labels) == len(frames.splits) == len(frames.lengths) == len(frames.samples) == 5
    for name in ("2.wav", "5.wav"):
        (with_bad / "word" / name).unlink()
    assert is_right(frames, with_bad)


def test_a_bad_file_that_was_replaced_is_used(with_bad):
    cached(with_bad, skip_bad=True)
    for name in ("2.wav", "5.wav"):
        write_wav(with_bad / "word" / name)
    frames = cached(with_bad)
    assert frames.left_out == () and is_right(frames, with_bad)


def test_only_bad_files(folder):
    for path in folder.rglob("*.wav"):
        path.write_bytes(b"no")
    frames = cached(folder, skip_bad=True)
    assert len(frames.left_out) == 7 and len(frames.names) == len(frames.values) == 0


def test_a_missing_package_is_not_blamed_on_the_file(folder, monkeypatch):
    (folder / "word" / "2.wav").write_bytes(b"fLaC" + bytes(50))
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "soundfile", None)
        with pytest.raises(ImportError, match=r"rankcode\[audio\]"):
            cached(folder, skip_bad=True)
    assert len(cached(folder, skip_bad=True).left_out) == 1


def memory(pid, path):
    """Of the mapping of a file in a process: all of it that is in memory, and what of that the process has for itself;
    then the memory of the process that is no file. In bytes."""
    found, here = {"Rss": 0, "Private_Clean": 0, "Private_Dirty": 0, "Anonymous": 0}, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        name, *values = line.split()
        if not name.endswith(":"):
            here = line.endswith(str(path))
        elif here and name[:-1] in found:
            found[name[:-1]] += 1024 * int(values[0])
    status = dict(line.split(":\t") for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line)
    own = found["Private_Clean"] + found["Private_Dirty"] + found["Anonymous"]
    return found["Rss"], own, 1024 * int(status["RssAnon"].split()[0])


def rows_of(path):
    """The rows of an array, of shards or of a cache, and the file that is mapped."""
    if path.suffix == ".npy":
        return rc.tasks.OwnData(str(path)).train, path
    if path.name == "shards":
        rows = rc.tasks.OwnData(str(path)).train
        return rows, next((data_folder() / "features").glob("shards-*/frames.f32"))
    frames = open_cache(path)
    rows = Packed(frames.values, frames.offsets, frames.lengths, torch.zeros(len(frames.names), dtype=torch.long))
    return rows, path / "frames.u8"


def train_on(paths, barrier, results):
    """Read the rows of each file twice, in shuffled batches, at the same time as another process."""
    torch.set_num_threads(1)
    rc.tasks.OwnData.of(np.eye(12), np.arange(12) % 2).train.take(torch.arange(2), "cpu")  # loads what is loaded once
    for path in paths:
        before = memory(os.getpid(), path)[2]
        (rows, file), grown = rows_of(path), []
        for number in range(2 * rows.epoch(16)):
            rows.take(rows.index(number, 16, seed=0), "cpu")
            if number % 50 == 0:
                grown.append(memory(os.getpid(), file)[2] - before)
        barrier.wait(60)
        results.put((*memory(os.getpid(), file)[:2], max(grown)))
        barrier.wait(60)
        del rows


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="tells the memory of a mapping")
def test_two_processes_share_mapped_files(tmp_path):
    """A feature cache, an array, and shards in eight files, of 160 MB each, of which no process has a copy."""
    size, rows, cache, array = 160_000_000, 4_000, tmp_path / "cache", tmp_path / "large.npy"
    shards = tmp_path / "shards"
    cache.mkdir()
    (cache / "frames.u8").write_bytes(np.random.default_rng(0).bytes(size))
    recordings = [[f"{row}.wav", "word", "train", 1, size // 20 // rows] for row in range(rows)]
    line = {"format": feature_cache.FORMAT, "key": "", "settings": {}, "bytes": size, "left_out": []}
    (cache / "index.jsonl").write_text(json.dumps(line | {"recordings": recordings}) + "\n")
    np.save(array, np.random.default_rng(0).random((rows, size // 4 // rows), np.float32))
    np.save(tmp_path / "large_labels.npy", np.arange(rows) % 2)
    shards.mkdir()
    for number, (values, labels) in enumerate(
        zip(np.split(np.load(array), 8), np.split(np.arange(rows) % 2, 8), strict=True)
    ):
        np.savez(shards / f"part-{number}.npz", X=values, y=labels)
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(2), context.Queue()
    children = [context.Process(target=train_on, args=([cache, array, shards], barrier, results)) for _ in range(2)]
    for child in children:
        child.start()
    found = [results.get(timeout=100) for _ in range(6)]
    for child in children:
        child.join(60)
    for mapped, own, grown in found:
        assert mapped > 0.6 * size  # all training rows
        assert own < 0.01 * size and grown < 0.35 * size


def test_a_cache_may_be_larger_than_the_memory(tmp_path):
    """Linux refuses a mapping of this size if it may be written to."""
    size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") + 2**36
    cache = tmp_path / "cache"
    cache.mkdir()
    with open(cache / "frames.u8", "wb") as file:
        file.truncate(size)
    line = {"format": feature_cache.FORMAT, "key": "", "settings": {}, "bytes": size, "left_out": []}
    line["recordings"] = [["a", "word", "train", 1, size // 4096]]
    (cache / "index.jsonl").write_text(json.dumps(line) + "\n")
    assert open_cache(cache).values.shape == (size // 4096, 4096)
