"""A cache of frames: made once, made anew when anything changed, and never believed when it is not whole."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import wave
from dataclasses import asdict

import numpy as np
import pytest
import torch

import rankcode as rc
from rankcode.data import feature_cache
from rankcode.data.feature_cache import Recording, cached_frames, is_cache, open_cache
from rankcode.front_ends.audio import LogMel

LENGTHS = (1, 1000, 3199, 3200, 3201, 5945, 16_000)  # samples of the recordings


@pytest.fixture(autouse=True)
def kept_in(tmp_path, monkeypatch):
    """Caches go into the test's own folder, in shards of two recordings."""
    monkeypatch.setenv("RANKCODE_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(feature_cache, "SHARD", 2)


@pytest.fixture
def folder(tmp_path):
    for number, length in enumerate(LENGTHS):
        write(tmp_path / "recordings" / "word" / f"{number}.wav", length, number)
    return tmp_path / "recordings"


def write(path, samples=2000, seed=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", ""))
        file.writeframes((3000 * np.random.default_rng(seed).standard_normal(samples)).astype("<i2").tobytes())
    return path


def listed(folder, split=""):
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.wav"))
    return [Recording(name, name.split("/")[0], split) for name in names]


LOG_MEL = LogMel()
READ = []  # the names of the files that were read


def of(log_mel=LOG_MEL, context=10):
    """How frames are made of a file, and the settings that say so."""

    def read(path):
        READ.append(path.name)
        return log_mel.read(path, log_mel.shortest(context))

    return read, {"log_mel": asdict(log_mel), "context": context}


def cached(folder, context=10, before=lambda path: None, **options):
    """`before` is called with each file before it is read."""
    read, settings = of(context=context)

    def reading(path):
        before(path)
        return read(path)

    return cached_frames(folder, listed(folder), reading, settings, progress=False, **options)


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


def by_hand(folder, least=3200):
    """The frames of each recording, without a cache."""
    for path in sorted(folder.rglob("*.wav")):
        with wave.open(str(path)) as file:
            waveform = torch.from_numpy(np.frombuffer(file.readframes(-1), "<i2") / np.float32(32768))
        yield LogMel().frames(torch.nn.functional.pad(waveform, (0, max(0, least - len(waveform)))))


def is_right(frames, folder, least=3200):
    expected = list(by_hand(folder, least))
    got = [frames.values[at : at + length] for at, length in zip(frames.offsets, frames.lengths, strict=True)]
    return len(got) == len(expected) and all(a.equal(b) for a, b in zip(got, expected, strict=True))


@pytest.fixture
def read():
    """The names of the files that are read from here on."""
    READ.clear()
    return READ


# What is in it


def test_frames_are_those_of_each_recording(folder):
    frames = cached(folder)
    assert is_right(frames, folder)
    assert frames.values.dtype == torch.uint8 and len(frames.values) == int(frames.lengths.sum())
    assert frames.names.tolist() == [f"word/{number}.wav" for number in range(7)]
    assert (frames.settings, frames.left_out) == (of()[1], ())


def test_short_recordings_keep_their_length_and_are_padded_up_to_one_step(folder):
    frames = cached(folder)
    assert frames.samples.tolist() == list(LENGTHS)
    assert frames.lengths.tolist() == [21, 21, 21, 21, 21, 38, 101]
    frames = cached(folder, context=0)
    assert frames.lengths.tolist() == [1 + length // 160 for length in LENGTHS] and is_right(frames, folder, least=0)


def test_labels_and_splits_go_with_the_names(folder):
    some = [Recording("word/6.wav", "six", "test"), Recording("word/1.wav", "one", "train")]
    frames = cached_frames(folder, some, *of(), progress=False)
    assert frames.names.tolist() == ["word/6.wav", "word/1.wav"] and frames.lengths.tolist() == [101, 21]
    assert (frames.labels.tolist(), frames.splits.tolist()) == (["six", "one"], ["test", "train"])
    whole = LogMel().read(folder / "word" / "6.wav").values
    assert frames.values[:101].equal(whole)


def test_the_size_of_a_shard_changes_nothing(folder, tmp_path, monkeypatch):
    two = cached(folder)
    for size in (1, 3, 500):
        monkeypatch.setenv("RANKCODE_DATA", str(tmp_path / f"shards of {size}"))
        monkeypatch.setattr(feature_cache, "SHARD", size)
        assert same(cached(folder), two)


def test_a_cache_is_one_folder_without_leftovers_that_can_be_opened_anywhere(folder, tmp_path):
    frames = cached(folder)
    cache = the_cache(tmp_path)
    assert {"frames.u8", "index.npz", "manifest.json"} <= {path.name for path in cache.iterdir()}
    assert not list(cache.rglob("*.part")) and not list(cache.rglob("shards/*"))
    assert is_cache(cache) and not is_cache(folder)
    cache.rename(tmp_path / "elsewhere")
    assert same(open_cache(tmp_path / "elsewhere"), frames)


def test_threads_are_as_they_were(folder):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        cached(folder)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


# When it is made anew


def test_what_is_there_is_not_read_again(folder, read):
    first = cached(folder)
    assert sorted(read) == [f"{number}.wav" for number in range(7)]
    read.clear()
    assert same(cached(folder), first) and same(cached(folder, skip_bad=True), first)
    assert read == []


def other_content(folder):
    write(folder / "word" / "1.wav", 1000, seed=99)


def other_length(folder):
    path = folder / "word" / "6.wav"
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    write(path, 8000, seed=6)
    os.utime(path, ns=times)


def touched(folder):
    path = folder / "word" / "4.wav"
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))


def added(folder):
    write(folder / "word" / "3a.wav", 700, seed=5)


def removed(folder):
    (folder / "word" / "2.wav").unlink()


def renamed(folder):
    (folder / "word" / "6.wav").rename(folder / "word" / "0a.wav")


@pytest.mark.parametrize("change", [other_content, other_length, touched, added, removed, renamed])
def test_it_is_made_anew_when_a_file_changed(folder, read, change):
    cached(folder)
    change(folder)
    read.clear()
    frames = cached(folder)
    assert read and is_right(frames, folder)
    assert frames.names.tolist() == [recording.name for recording in listed(folder)]
    read.clear()
    assert same(cached(folder), frames) and read == []


def test_it_is_made_anew_for_other_labels_and_splits(folder):
    cached(folder)
    frames = cached_frames(folder, listed(folder, "train"), *of(), progress=False)
    assert set(frames.splits) == {"train"} and is_right(frames, folder)


def test_another_context_has_a_cache_of_its_own(folder, read):
    ten = cached(folder)
    read.clear()
    five = cached(folder, context=5)
    assert len(read) == 7 and five.settings["context"] == 5 and is_right(five, folder, least=1600)
    read.clear()
    assert same(cached(folder), ten) and same(cached(folder, context=5), five) and read == []


def test_other_bands_have_a_cache_of_their_own(folder):
    cached(folder)
    frames = cached_frames(folder, listed(folder), *of(LogMel(n_mels=8)), progress=False)
    assert frames.values.shape[1] == 8 and frames.settings["log_mel"]["n_mels"] == 8


def test_folders_of_one_name_do_not_share_a_cache(tmp_path):
    for number, place in enumerate(("a", "b")):
        os.utime(write(tmp_path / place / "recordings" / "word" / "0.wav", seed=number), ns=(0, 0))
    one, other = (cached(tmp_path / place / "recordings") for place in ("a", "b"))
    assert not one.values.equal(other.values)
    assert same(cached(tmp_path / "a" / "recordings"), one)


DAMAGE = {
    "no manifest": ("manifest.json", lambda _: None),
    "no JSON": ("manifest.json", lambda content: content[:-20]),
    "no text": ("manifest.json", lambda content: b"\xff\xfe" + content),
    "other JSON": ("manifest.json", lambda _: b"[]"),
    "no fingerprint": ("manifest.json", lambda content: content.replace(b"fingerprint", b"footprint")),
    "other fingerprint": ("manifest.json", lambda content: content.replace(b'rint": "', b'rint": "0')),
    "no frames": ("frames.u8", lambda _: None),
    "frames cut": ("frames.u8", lambda content: content[:-1]),
    "frames empty": ("frames.u8", lambda _: b""),
    "frames too long": ("frames.u8", lambda content: content + b"\0"),
    "no index": ("index.npz", lambda _: None),
    "index cut": ("index.npz", lambda content: content[:-30]),
    "index empty": ("index.npz", lambda _: b""),
    "index of something else": ("index.npz", lambda _: b"something else"),
}


def damaged(cache, name, damage):
    content = damage((cache / name).read_bytes())
    (cache / name).unlink()
    if content is not None:
        (cache / name).write_bytes(content)


@pytest.mark.parametrize(("name", "damage"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_cache_is_made_anew(folder, tmp_path, name, damage):
    before = (cached(folder).values.clone(), cached(folder).names)
    damaged(the_cache(tmp_path), name, damage)
    frames = cached(folder)
    assert frames.values.equal(before[0]) and np.array_equal(frames.names, before[1])
    assert same(open_cache(the_cache(tmp_path)), frames)


@pytest.mark.parametrize(
    ("name", "damage"),
    [damage for kind, damage in DAMAGE.items() if "fingerprint" not in kind],
    ids=[kind for kind in DAMAGE if "fingerprint" not in kind],
)
def test_a_damaged_cache_that_is_opened_itself_is_named(folder, tmp_path, name, damage):
    cached(folder)
    damaged(the_cache(tmp_path), name, damage)
    with pytest.raises(rc.BadData) as error:
        open_cache(the_cache(tmp_path))
    assert str(the_cache(tmp_path)) in str(error.value) and "\n" not in str(error.value)


def test_a_cache_of_another_format_is_refused(folder, tmp_path):
    cached(folder)
    cache = the_cache(tmp_path)
    manifest = json.loads((cache / "manifest.json").read_text())
    (cache / "manifest.json").write_text(json.dumps(manifest | {"format": 99}))
    with pytest.raises(rc.BadData, match="99"):
        open_cache(cache)


# When making it was cut off


def test_what_was_done_before_an_interrupt_is_not_done_again(folder, read):
    def interrupted(path):
        if path.name == "4.wav":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached(folder, before=interrupted)
    done = [*read]
    read.clear()
    assert {"0.wav", "1.wav", "2.wav", "3.wav"} <= set(done)
    finished = {"0.wav", "1.wav", "2.wav", "3.wav", *({"6.wav"} & set(done))}
    frames = cached(folder)
    assert sorted(read) == sorted({f"{number}.wav" for number in range(7)} - finished)
    assert is_right(frames, folder)


def stopped_at(number, monkeypatch, folder):
    """Stop when the number-th file is about to get its name: four shards, frames, index, manifest."""
    replace, count = os.replace, iter(range(1, 100))

    def stopping(*arguments):
        if next(count) == number:
            raise KeyboardInterrupt
        return replace(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", stopping)
        with pytest.raises(KeyboardInterrupt):
            cached(folder)


@pytest.mark.parametrize("number", range(1, 8))
def test_nothing_half_written_is_taken_for_finished(folder, tmp_path, monkeypatch, read, number):
    stopped_at(number, monkeypatch, folder)
    assert not is_cache(the_cache(tmp_path))
    read.clear()
    assert is_right(cached(folder), folder)
    assert read == [] or number <= 4, "all shards were there"


@pytest.mark.parametrize("number", range(1, 8))
def test_an_old_cache_does_not_outlive_its_files(folder, tmp_path, monkeypatch, number):
    cached(folder)
    other_length(folder)
    stopped_at(number, monkeypatch, folder)
    assert number <= 5 or not is_cache(the_cache(tmp_path)), "new frames with the old manifest"
    frames = cached(folder)
    assert frames.samples.tolist() == [*LENGTHS[:-1], 8000] and is_right(frames, folder)


KILLED = """
import os, signal, sys
from pathlib import Path
from rankcode.data import feature_cache
from rankcode.front_ends.audio import LogMel

os.cpu_count = lambda: 1
feature_cache.SHARD, count, replace = 2, iter(range(1, 100)), os.replace

def killing(*arguments):
    if next(count) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return replace(*arguments)

os.replace = killing
folder = Path(sys.argv[1])
listed = [feature_cache.Recording(f"word/{number}.wav", "word", "") for number in range(7)]
settings = {"log_mel": {"sample_rate": 16_000, "n_mels": 20}, "context": 10}
feature_cache.cached_frames(folder, listed, lambda path: LogMel().read(path, 3200), settings, progress=False)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no SIGKILL here")
def test_what_was_done_before_a_kill_is_not_done_again(folder, tmp_path, read):
    killed = subprocess.run([sys.executable, "-c", KILLED, folder], capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert list(the_cache(tmp_path).rglob("*.part")), "it was not killed while it wrote"
    frames = cached(folder)
    assert sorted(read) == ["4.wav", "5.wav", "6.wav"]
    assert is_right(frames, folder) and frames.names.tolist() == [f"word/{number}.wav" for number in range(7)]


ANOTHER = """
import sys
from pathlib import Path
from rankcode.data import feature_cache
from rankcode.front_ends.audio import LogMel

feature_cache.SHARD = 2
folder, report = Path(sys.argv[1]), Path(sys.argv[2])
listed = [feature_cache.Recording(f"word/{number}.wav", "word", "") for number in range(7)]
report.write_text("begun")
settings = {"log_mel": {"sample_rate": 16_000, "n_mels": 20}, "context": 10}
frames = feature_cache.cached_frames(folder, listed, lambda path: LogMel().read(path, 3200), settings, progress=False)
report.write_bytes(frames.values.numpy().tobytes())
"""


def test_two_processes_that_make_it_at_once_both_have_it(folder, tmp_path):
    report, others = tmp_path / "report", []

    def begin_another(path):
        if path.name == "6.wav":  # the other begins and, unless it waits for this one, ends first
            others.append(subprocess.Popen([sys.executable, "-c", ANOTHER, folder, report], stderr=subprocess.PIPE))
            while not report.exists() and others[0].poll() is None:
                time.sleep(0.01)
            with contextlib.suppress(subprocess.TimeoutExpired):
                others[0].wait(timeout=1)

    try:
        frames = cached(folder, before=begin_another)
    finally:
        message = others[0].communicate()[1].decode()
    assert others[0].returncode == 0, message
    assert is_right(frames, folder) and report.read_bytes() == frames.values.numpy().tobytes()


# Files that cannot be used


@pytest.fixture
def with_bad(folder):
    (folder / "word" / "2.wav").write_bytes(b"not sound at all")
    (folder / "word" / "5.wav").write_bytes(b"")
    return folder


def test_a_bad_file_is_named(with_bad):
    for _ in range(2):  # made, and found
        with pytest.raises(rc.BadData, match=r"2\.wav is not sound.*1 more.*skip_bad=True") as error:
            cached(with_bad)
        assert "\n" not in str(error.value)


def test_bad_files_are_left_out_and_listed(with_bad, read):
    frames = cached(with_bad, skip_bad=True)
    assert [name.split("/")[-1].split()[0] for name in frames.left_out] == ["2.wav", "5.wav"]
    assert "not sound" in frames.left_out[0] and "empty" in frames.left_out[1]
    assert frames.names.tolist() == [f"word/{number}.wav" for number in (0, 1, 3, 4, 6)]
    assert len(frames.labels) == len(frames.splits) == len(frames.lengths) == len(frames.samples) == 5
    for name in ("2.wav", "5.wav"):
        (with_bad / "word" / name).unlink()
    assert frames.values.equal(torch.cat(list(by_hand(with_bad))))


def test_what_was_bad_is_known_without_reading_it_again(with_bad, read):
    with pytest.raises(rc.BadData):
        cached(with_bad)
    read.clear()
    assert len(cached(with_bad, skip_bad=True).names) == 5 and read == []


def test_a_bad_file_that_was_put_right_is_used(with_bad):
    cached(with_bad, skip_bad=True)
    write(with_bad / "word" / "2.wav", 4000)
    write(with_bad / "word" / "5.wav", 5000)
    frames = cached(with_bad)
    assert frames.left_out == () and is_right(frames, with_bad)


def test_nothing_but_bad_files(folder):
    for path in folder.rglob("*.wav"):
        path.write_bytes(b"no")
    frames = cached(folder, skip_bad=True)
    assert len(frames.left_out) == 7 and len(frames.names) == len(frames.values) == 0


def test_a_package_that_is_missing_is_no_fault_of_the_file(folder, tmp_path, monkeypatch):
    (folder / "word" / "2.wav").write_bytes(b"fLaC" + bytes(50))
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "soundfile", None)
        with pytest.raises(ImportError, match=r"rankcode\[audio\]"):
            cached(folder, skip_bad=True)
    assert len(cached(folder, skip_bad=True).left_out) == 1
