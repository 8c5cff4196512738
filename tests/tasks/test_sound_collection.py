"""Recordings of a folder: which they are, what they are called and which split they are in; their rows."""

import numpy as np
import pytest
import torch

import rankcode as rc
from rankcode.front_ends.audio import LOWEST, UNIT, LogMel
from rankcode.tasks.sound_collection import NOISE, SoundCollection, recordings_by_class
from wav_files import write_wav


@pytest.fixture(autouse=True)
def kept_in(tmp_path, monkeypatch):
    monkeypatch.setenv("RANKCODE_DATA", str(tmp_path / "data"))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "sounds").mkdir()
    return tmp_path / "sounds"


def touch(folder, *names):
    """Files without content: to list recordings, they are not opened."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def found(folder):
    return [tuple(recording) for recording in recordings_by_class(folder)]


# Which recordings there are


def test_a_folder_for_each_class_in_order_of_name(folder):
    touch(folder, "dog/b.wav", "dog/a.wav", "cat/c.flac", "cat/B.OGG", "readme.wav")
    assert found(folder) == [
        ("cat/B.OGG", "cat", ""),
        ("cat/c.flac", "cat", ""),
        ("dog/a.wav", "dog", ""),
        ("dog/b.wav", "dog", ""),
    ]


def test_folders_inside_a_class_belong_to_it(folder):
    touch(folder, "cat/monday/1.wav", "cat/2.wav", "dog/take.wav/1.wav")
    names = ["cat/2.wav", "cat/monday/1.wav", "dog/take.wav/1.wav"]
    assert found(folder) == [(name, name[:3], "") for name in names]


def test_what_is_hidden_or_no_sound_is_passed_over(folder):
    touch(folder, "cat/1.wav", "cat/._1.wav", "cat/.trash/2.wav", ".git/3.wav", "cat/notes.txt", "dog/cover.jpg")
    assert found(folder) == [("cat/1.wav", "cat", "")]


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (("train", "validation", "test"), ("train", "validation", "test")),
        (("Training", "Val", "Testing"), ("train", "validation", "test")),
        (("train", "dev"), ("train", "validation")),
        (("train", "valid"), ("train", "validation")),
        (("train", "test"), ("train", "test")),
        (("train",), ("train",)),
    ],
)
def test_a_folder_for_each_split(folder, names, splits):
    for name in names:
        touch(folder, f"{name}/cat/1.wav", f"{name}/dog/1.wav")
    expected = [
        (f"{name}/{word}/1.wav", word, split)
        for name, split in sorted(zip(names, splits, strict=True))
        for word in ("cat", "dog")
    ]
    assert found(folder) == expected


def test_classes_that_happen_to_be_called_like_splits(folder):
    touch(folder, "test/1.wav", "validation/1.wav")
    assert {label for _, label, _ in found(folder)} == {"test", "validation"}
    touch(folder, "train/1.wav", "car/1.wav")
    assert {label for _, label, _ in found(folder)} == {"car", "test", "train", "validation"}


def test_the_publishers_lists_decide_the_split(folder):
    touch(folder, "cat/1.wav", "cat/2.wav", "cat/3.wav", "big dog/1.wav", f"{NOISE}/hum.wav")
    (folder / "validation_list.txt").write_text("cat/2.wav\r\ncat/none.wav\n")
    assert {split for *_, split in found(folder)} == {"", NOISE}, "one list is no split"
    (folder / "testing_list.txt").write_text("big dog/1.wav\n\n")
    assert {name: split for name, _, split in found(folder)} == {
        f"{NOISE}/hum.wav": NOISE,
        "cat/1.wav": "train",
        "cat/2.wav": "validation",
        "cat/3.wav": "train",
        "big dog/1.wav": "test",
    }


@pytest.mark.parametrize("place", [NOISE, f"train/{NOISE}", f"test/{NOISE}"])
def test_background_noise_is_no_class_beside_splits_or_in_one(folder, place):
    touch(folder, "train/cat/1.wav", "train/dog/1.wav", "test/cat/1.wav", f"{place}/hum.wav")
    others = [recording for recording in found(folder) if NOISE not in recording[0]]
    assert others == [
        ("test/cat/1.wav", "cat", "test"),
        ("train/cat/1.wav", "cat", "train"),
        ("train/dog/1.wav", "dog", "train"),
    ]
    assert [split for name, _, split in found(folder) if NOISE in name] == [NOISE]


# Their rows


@pytest.fixture
def sound(folder):
    for number, samples in enumerate((1000, 4000, 8000, 16_000)):
        write_wav(folder / ("cat", "dog")[number % 2] / f"{number}.wav", samples, number)
    write_wav(folder / NOISE / "hum.wav", 20_000, 9)
    return SoundCollection.read(folder, 10)  # in order: noise, cat/0, cat/2, dog/1, dog/3


def test_rows_are_the_recordings_that_were_chosen(sound, folder):
    front_end = sound.front_end(np.array([1, 2]))
    rows = sound.rows(np.array([4, 1, 3]), [1, 0, 1], front_end)
    assert rows.names.tolist() == ["dog/3.wav", "cat/0.wav", "dog/1.wav"]
    assert rows.samples.tolist() == [16_000, 1000, 4000] and rows.size == 3
    (batch,) = rows.scan(10, "cpu")
    assert batch.labels.tolist() == [1, 0, 1] and batch.lengths.tolist() == [81, 1, 6]
    for row, name in enumerate(rows.names):
        stored = front_end.read(folder / name).values
        assert batch.inputs[row, : batch.lengths[row]].equal(front_end(stored[None])[0][0])


def test_a_front_end_is_of_the_chosen_recordings_alone(sound):
    chosen = np.array([2, 4])
    audio = sound.front_end(chosen)
    frames = sound.frames
    parts = [frames.values[frames.offsets[k] : frames.offsets[k] + frames.lengths[k]] for k in chosen]
    values = torch.cat(parts).double() * UNIT + LOWEST
    np.testing.assert_allclose(audio.mean, values.mean(0), rtol=1e-5)
    np.testing.assert_allclose(audio.std, values.std(0, correction=0), rtol=1e-5)
    assert audio.context == 10 and audio.log_mel == LogMel()


def test_rows_know_what_was_heard_of_each(sound):
    rows = sound.rows(np.array([4, 1, 3]), [1, 0, 1], sound.front_end(np.array([1])))
    assert rows.heard(torch.tensor([3, 1, 6])).tolist() == [232.5, 62.5, 250]
    assert rows.heard(torch.tensor([1, 2]), first=1).tolist() == [62.5, 222.5]


def test_a_folder_and_its_cache_are_the_same(sound, tmp_path):
    (cache,) = (tmp_path / "data" / "features").iterdir()
    again = SoundCollection.read(cache, 10)
    assert again.frames.values.equal(sound.frames.values)
    assert np.array_equal(again.labels, sound.labels) and np.array_equal(again.splits, sound.splits)
    with pytest.raises(ValueError, match="context of 10 frames, not 4") as error:
        SoundCollection.read(cache, 4)
    assert "\n" not in str(error.value)
    rows, cached = (each.rows(np.arange(2), [0, 0], each.front_end(np.arange(2))) for each in (sound, again))
    assert rows.raw(1).is_file()
    with pytest.raises(rc.BadData, match="without the recordings"):
        cached.raw(1)


def test_noise_for_augmentation_is_the_background_noise(sound, folder):
    front_end = sound.front_end(np.array([1]))
    augmentation = sound.augmentation(front_end)
    hum = LogMel().read(folder / NOISE / "hum.wav").values
    assert augmentation.noise.equal(hum) and augmentation.mean == front_end.mean
    assert sound.rows(np.array([1]), [0], front_end).augment is None
    (folder / NOISE / "hum.wav").unlink()
    assert SoundCollection.read(folder, 10).augmentation(front_end).noise is None


def test_a_bad_file_is_named_or_left_out(sound, folder):
    (folder / "cat" / "5.wav").write_text("no sound")
    with pytest.raises(rc.BadData, match=r"5\.wav is not sound"):
        SoundCollection.read(folder, 10)
    without = SoundCollection.read(folder, 10, skip_bad=True)
    assert without.labels.tolist() == [NOISE, "cat", "cat", "dog", "dog"]
    assert len(without.left_out) == 1 and "5.wav" in without.left_out[0]
