"""Speech Commands: labels and splits of a folder as published, and training; on real recordings where there are any."""

import io
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

import rankcode as rc
from rankcode.tasks.sound_collection import NOISE
from rankcode.tasks.speech_commands import KEYWORDS, SpeechCommands, split_by_speaker
from wav_files import write_wav

REAL = Path(__file__).parents[3] / "shared" / "data" / "speech_commands_v0.01"
real = pytest.mark.skipif(not REAL.is_dir(), reason="the recordings of Speech Commands v0.01 are not here")
SPEAKERS = {  # where the publisher put them
    "004ae714": "train",
    "00f0204f": "train",
    "8b775397": "validation",
    "2643992f": "validation",
    "2aa787cf": "test",
    "ffa76c4a": "test",
}
QUIET = {"device": "cpu", "progress": False}


@pytest.fixture(autouse=True)
def kept_in(tmp_path, monkeypatch):
    monkeypatch.setenv("RANKCODE_DATA", str(tmp_path / "data"))


def made(folder, words=(*KEYWORDS, "bird", "backward")):
    """A folder as published, of noise: every speaker says every word."""
    for number, word in enumerate(words):
        for other, speaker in enumerate(SPEAKERS):
            write_wav(folder / word / f"{speaker}_nohash_0.wav", 3500 + 100 * number, 10 * number + other)
    write_wav(folder / NOISE / "white_noise.wav", 40_000)
    (folder / NOISE / "README.md").write_text("noise")
    return folder


def told(rows):
    """What the rows are called: word by label."""
    return {name.split("/")[0]: label for name, label in zip(rows.names, rows.labels.tolist(), strict=True)}


def network(task, seed=0):
    torch.manual_seed(seed)
    return rc.Network(rc.cells.GRU(*task.input_shape, 6), task.num_classes)


# Labels and splits


def test_ten_keywords_and_every_other_word(tmp_path):
    task = SpeechCommands(str(made(tmp_path / "speech")))
    expected = {word: label for label, word in enumerate(KEYWORDS)} | {"bird": 10, "backward": 10}
    for split in ("train", "validation", "test"):
        assert told(getattr(task, split)) == expected
    assert task.label_names == (*KEYWORDS, "unknown") and task.num_classes == 11
    assert KEYWORDS == ("yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go")


def test_without_lists_the_speaker_decides_the_split(tmp_path):
    task = SpeechCommands(str(made(tmp_path / "speech", ("yes", "no", "bird"))))
    for split in ("train", "validation", "test"):
        speakers = {name.split("/")[1].split("_")[0] for name in getattr(task, split).names}
        assert speakers == {speaker for speaker, own in SPEAKERS.items() if own == split}
        assert getattr(task, split).size == 6


def test_the_publishers_lists_decide_the_split_where_there_are_any(tmp_path):
    folder = made(tmp_path / "speech", ("yes", "bird"))
    (folder / "validation_list.txt").write_text("yes/004ae714_nohash_0.wav\n")
    (folder / "testing_list.txt").write_text("bird/004ae714_nohash_0.wav\nyes/8b775397_nohash_0.wav\n")
    task = SpeechCommands(str(folder))
    assert task.validation.names.tolist() == ["yes/004ae714_nohash_0.wav"]
    assert task.test.names.tolist() == ["bird/004ae714_nohash_0.wav", "yes/8b775397_nohash_0.wav"]
    assert task.train.size == 9


def test_background_noise_is_in_no_split(tmp_path):
    task = SpeechCommands(str(made(tmp_path / "speech", ("yes", "bird"))))
    names = [name for split in ("train", "validation", "test") for name in getattr(task, split).names]
    assert len(names) == 12 and not any(NOISE in name for name in names)
    with_noise = SpeechCommands(str(tmp_path / "speech"), augment=True)
    assert len(with_noise.train.augment.noise) == 1 + 40_000 // 160
    assert with_noise.validation.augment is None and with_noise.test.augment is None


# Where it is


def test_it_is_looked_for_where_data_is_kept(tmp_path):
    made(tmp_path / "data" / "speech-commands", ("yes", "bird"))
    assert SpeechCommands().train.size == 4


@pytest.mark.parametrize("holds", ["nothing", "a file", "other folders", "no folder"])
def test_a_folder_that_does_not_hold_it_says_how_to_get_it(tmp_path, holds):
    folder = tmp_path / "speech"
    if holds != "no folder":
        folder.mkdir()
    if holds == "a file":
        (folder / "yes.wav").touch()
    if holds == "other folders":
        write_wav(folder / "cat" / "1.wav")
    with pytest.raises(FileNotFoundError, match=r'rc\.data\.download\("speech-commands"') as error:
        SpeechCommands(str(folder)).train  # noqa: B018
    assert str(folder) in str(error.value) and "\n" not in str(error.value)


def test_a_split_that_is_missing(tmp_path):
    for word in ("yes", "bird"):
        write_wav(tmp_path / "speech" / word / "004ae714_nohash_0.wav")
    task = SpeechCommands(str(tmp_path / "speech"))
    assert task.train.size == 2
    with pytest.raises(rc.BadData, match="no recording for the test split"):
        task.test  # noqa: B018


def test_settings_are_checked():
    with pytest.raises(ValueError, match="context must be at least 0, not -1"):
        SpeechCommands(context=-1)
    assert SpeechCommands().input_shape == (420,) and SpeechCommands(context=3).input_shape == (140,)


# Training


def test_a_network_is_trained_on_altered_recordings(tmp_path):
    task = SpeechCommands(str(made(tmp_path / "speech", ("yes", "no", "bird"))), augment=True)
    trained = network(task)
    before = [parameter.clone() for parameter in trained.parameters()]
    history = rc.fit(trained, task, rc.AtSpike(0.3), rc.Training(epochs=2, batch_size=3, **QUIET))
    assert len(history.records) == 2 and np.isfinite(history.records[-1]["training"]["loss"])
    assert all(not old.equal(new) for old, new in zip(before, trained.parameters(), strict=True))
    assert trained.front_end == task.front_end and trained.label_names == task.label_names


# Real recordings


@real
def test_the_rule_gives_the_publishers_lists():
    names = []
    for path in REAL.glob("[a-z]*.zip"):
        with zipfile.ZipFile(path) as packed:
            names += [f"{path.stem}/{Path(name).stem}.wav" for name in packed.namelist()]
    lists = {
        split: set((REAL / f"{file}_list.txt").read_text().split())
        for split, file in (("validation", "validation"), ("test", "testing"))
    }
    by_rule = {name: split_by_speaker(name.split("/")[1]) for name in names}
    assert len(by_rule) == len(names) == 64_721
    for split, listed in lists.items():
        assert {name for name, own in by_rule.items() if own == split} == listed
    assert Counter(by_rule.values()) == {"train": 51_088, "validation": 6798, "test": 6835}
    keywords = Counter(split for name, split in by_rule.items() if name.split("/")[0] in KEYWORDS)
    assert keywords == {"train": 18_538, "validation": 2577, "test": 2567}


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """Two words by two dozen speakers, and five seconds of each noise, as WAV files."""
    soundfile = pytest.importorskip("soundfile")
    folder = tmp_path_factory.mktemp("speech")
    for word in ("yes", "bed", NOISE):
        (folder / word).mkdir()
        with zipfile.ZipFile(REAL / f"{word}.zip") as packed:
            chosen = {}
            for name in sorted(packed.namelist()):
                chosen.setdefault(NOISE if word == NOISE else split_by_speaker(name), []).append(name)
            for name in (name for several in chosen.values() for name in several[:8]):
                samples, rate = soundfile.read(io.BytesIO(packed.read(name)), dtype="int16")
                soundfile.write(folder / word / f"{Path(name).stem}.wav", samples[: 5 * rate], rate, subtype="PCM_16")
    return folder


@real
def test_real_recordings_from_files_to_milliseconds(unpacked):
    task = SpeechCommands(str(unpacked), augment=True)
    assert [getattr(task, split).size for split in ("train", "validation", "test")] == [16, 16, 16]
    assert told(task.test) == {"yes": 0, "bed": 10}
    assert next(task.train.scan(16, "cpu")).inputs.shape == (16, 81, 420)
    trained = network(task)
    rc.fit(trained, task, rc.AtSpike(0.3), rc.Training(epochs=3, batch_size=8, learning_rate=0.01, **QUIET))
    report = rc.evaluate(trained, task, rc.Threshold(0.3))
    (batch,) = task.test.scan(99, "cpu")
    steps = rc.decide(trained, batch.inputs, batch.lengths, rc.Threshold(0.3)).steps
    heard = np.minimum(task.test.samples.numpy() / 16, 10 * (steps.numpy() - 1) + 212.5)
    assert report.rows == 16 and report.milliseconds == pytest.approx(heard.mean())
    assert f"({heard.mean():.0f} ms heard)" in str(report)
    assert rc.tradeoff(trained, task, [0.3], batch_size=5).milliseconds == pytest.approx((heard.mean(),))
    assert {each.name for each in report.classes} == {"yes", "unknown"}
