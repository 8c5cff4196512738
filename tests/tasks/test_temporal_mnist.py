import gzip
import tracemalloc
from fractions import Fraction
from itertools import islice
from math import ceil
from pathlib import Path

import numpy as np
import pytest
import torch

from rankcode.data.sources import BadData, Source
from rankcode.front_ends import LatencyCode
from rankcode.tasks import TASKS, TemporalMNIST, temporal_mnist

MNIST = Path(__file__).parents[3] / "shared" / "data" / "mnist"
NAMES = ["train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"]
TRAIN, TEST, HELD_OUT = 30, 12, 5


def idx(array, magic=None):
    head = bytes([0, 0, 8, array.ndim]) if magic is None else magic
    return head + b"".join(size.to_bytes(4, "big") for size in array.shape) + array.astype(np.uint8).tobytes()


def contents():
    """Digits whose first two pixels tell their split and number; some pixel of the others has every value."""
    random = np.random.default_rng(0)
    files = {}
    for split, count in (("train", TRAIN), ("t10k", TEST)):
        images = random.integers(0, 256, (count, 28, 28))
        images[:, 1:11] = np.arange(280).reshape(10, 28) % 256
        images[:, 0, 0], images[:, 0, 1] = split == "t10k", np.arange(count)
        files[f"{split}-images-idx3-ubyte"] = images
        files[f"{split}-labels-idx1-ubyte"] = (np.arange(count) * 7 + (split == "t10k")) % 10
    return files


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(temporal_mnist, "HELD_OUT", HELD_OUT)


@pytest.fixture
def folder(tmp_path, small):
    for name, array in contents().items():
        (tmp_path / name).write_bytes(idx(array))
    return tmp_path


def expected_steps(images, steps=10):
    def step(value):
        return steps if value == 0 else steps - ceil(steps * Fraction(value, 255)) + 1

    return np.vectorize(step)(images)


def which(source):
    """(split, number) of each row."""
    return [tuple(image[:2].tolist()) for image in source.inputs.flatten(1)]


def says(folder, *parts, error=BadData):
    """No split of the broken part can be had, and one line says why."""
    with pytest.raises(error) as caught:
        task = TemporalMNIST(str(folder))
        _ = task.train, task.test
    message = str(caught.value)
    assert "\n" not in message and all(part in message for part in (str(folder), *parts)), message


# What a digit becomes


@pytest.mark.parametrize(("flat", "features"), [(False, (1, 28, 28)), (True, (784,))])
@pytest.mark.parametrize("steps", [10, 4])
def test_every_byte_spikes_once_at_its_exact_step(folder, flat, features, steps):
    task = TemporalMNIST(str(folder), steps=steps, flat=flat)
    assert task.input_shape == features
    images = contents()[NAMES[2]]
    assert set(images.flatten()) == set(range(256))
    inputs, labels, lengths = next(task.test.scan(TEST, "cpu"))
    assert inputs.shape == (TEST, steps, *features) and inputs.dtype == torch.float32
    assert lengths is None and labels.tolist() == contents()[NAMES[3]].tolist()
    spikes = inputs.flatten(2)
    assert ((spikes == 0) | (spikes == 1)).all() and (spikes.sum(1) == 1).all()
    assert (spikes.argmax(1) + 1).tolist() == expected_steps(images, steps).reshape(TEST, 784).tolist()


def test_the_darkest_ink_is_first_and_no_ink_last():
    assert expected_steps([255, 230, 229, 26, 25, 1, 0]).tolist() == [1, 1, 2, 9, 10, 10, 10]
    coded, _ = TemporalMNIST().front_end(torch.arange(256, dtype=torch.uint8).repeat(4)[None, :784])
    fires = coded.flatten(2).argmax(1)[0] + 1
    assert fires[[255, 230, 229, 26, 25, 1, 0]].tolist() == [1, 1, 2, 9, 10, 10, 10]


def test_bytes_are_stored_and_coded_when_they_are_taken(folder):
    task = TemporalMNIST(str(folder))
    for split in (task.train, task.validation, task.test):
        assert isinstance(split, Source)
        assert split.inputs.dtype == torch.uint8 and split.inputs.shape[1:] == (28, 28)
        assert split.encode == task.front_end == LatencyCode(255, 10, (1, 28, 28))
    batch = next(task.train.batches(4, 0, "cpu"))
    assert batch.inputs.shape == (4, 10, 1, 28, 28) and batch.labels.dtype == torch.int64


# Splits


def test_the_last_training_digits_validate(folder):
    task = TemporalMNIST(str(folder))
    assert which(task.train) == [(0, number) for number in range(TRAIN - HELD_OUT)]
    assert which(task.validation) == [(0, number) for number in range(TRAIN - HELD_OUT, TRAIN)]
    assert which(task.test) == [(1, number) for number in range(TEST)]
    labels = contents()[NAMES[1]].tolist()
    assert task.train.labels.tolist() == labels[:-HELD_OUT] and task.validation.labels.tolist() == labels[-HELD_OUT:]


def test_training_never_sees_what_is_set_aside(folder):
    task = TemporalMNIST(str(folder))
    first = {tuple(image.flatten().tolist()) for image in next(task.validation.scan(99, "cpu")).inputs}
    for batch in islice(task.train.batches(8, 0, "cpu"), 8):
        assert first.isdisjoint(tuple(image.flatten().tolist()) for image in batch.inputs)


# Files


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("mark", ["-idx", ".idx"])
def test_files_gzipped_or_not_and_with_a_dot(tmp_path, small, ending, mark):
    for name, array in contents().items():
        content = idx(array)
        path = tmp_path / (name.replace("-idx", mark) + ending)
        path.write_bytes(gzip.compress(content) if ending else content)
    task = TemporalMNIST(str(tmp_path))
    assert (task.train.size, task.validation.size, task.test.size) == (TRAIN - HELD_OUT, HELD_OUT, TEST)
    assert task.test.inputs.tolist() == contents()[NAMES[2]].tolist()


def test_what_a_file_is_tells_its_content_and_not_its_name(folder):
    for name in NAMES[:2]:
        (folder / name).write_bytes(gzip.compress((folder / name).read_bytes()))
    assert TemporalMNIST(str(folder)).train.size == TRAIN - HELD_OUT


def test_the_default_folder_is_where_data_is_kept(folder, monkeypatch, tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("RANKCODE_DATA", str(home))
    with pytest.raises(FileNotFoundError, match=str(home / "mnist")):
        _ = TemporalMNIST().test
    folder.rename(home / "mnist")
    assert TemporalMNIST().test.size == TEST


@pytest.mark.parametrize("missing", NAMES)
def test_a_missing_file_is_named_and_how_to_get_it(folder, missing):
    (folder / missing).unlink()
    says(folder, f"{missing}.gz", f'rc.data.download("mnist", "{folder}")', error=FileNotFoundError)


def test_a_folder_that_is_not_there(tmp_path):
    says(tmp_path / "nowhere", "rc.data.download", error=FileNotFoundError)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("packed", [False, True])
def test_a_file_cut_short(folder, name, packed):
    content = (folder / name).read_bytes()
    content = gzip.compress(content) if packed else content
    for size in (len(content) - 1, len(content) // 2):
        (folder / name).write_bytes(content[:size])
        says(folder, name, "cut short")


def test_a_packed_file_that_is_damaged(folder):
    content = bytearray(gzip.compress((folder / NAMES[0]).read_bytes()))
    content[len(content) // 2] ^= 0xFF
    (folder / NAMES[0]).write_bytes(content)
    says(folder, NAMES[0], "damaged")


@pytest.mark.parametrize("content", [b"", b"\0", b"\0\0\x08\x03", b"\0\0\x08\x03\0\0", b"<html>not found</html>"])
def test_a_file_of_something_else(folder, content):
    (folder / NAMES[0]).write_bytes(content)
    says(folder, NAMES[0], "not an idx file", repr(content[:4].hex()))


@pytest.mark.parametrize("magic", [b"\0\0\x08\x01", b"\0\0\x0d\x03", b"\x01\0\x08\x03"])
def test_a_wrong_magic_number(folder, magic):
    (folder / NAMES[0]).write_bytes(idx(contents()[NAMES[0]], magic))
    says(folder, NAMES[0], "3 dimensions", magic.hex())


@pytest.mark.parametrize("name", NAMES)
def test_a_file_too_long(folder, name):
    with open(folder / name, "ab") as file:
        file.write(b"\0")
    says(folder, name, "too long")


def test_sizes_that_nothing_could_hold(folder):
    (folder / NAMES[0]).write_bytes(b"\0\0\x08\x03" + b"\xff" * 12)
    says(folder, NAMES[0], "does not hold MNIST")
    (folder / NAMES[0]).write_bytes(b"\0\0\x08\x03" + b"\xff" * 4 + b"\0\0\0\x1c" * 2)
    says(folder, NAMES[0], "cut short")


def test_a_label_that_is_no_digit(folder):
    labels = contents()[NAMES[3]]
    labels[7] = 10
    (folder / NAMES[3]).write_bytes(idx(labels))
    says(folder, NAMES[3], "label 10", "0…9")


def test_counts_that_differ(folder):
    (folder / NAMES[1]).write_bytes(idx(contents()[NAMES[1]][:-1]))
    says(folder, NAMES[1], f"{TRAIN - 1} labels for {TRAIN} images")


@pytest.mark.parametrize("shape", [(TRAIN, 8, 8), (TRAIN, 28, 27), (HELD_OUT, 28, 28), (0, 28, 28)])
def test_images_that_are_not_mnist(folder, shape):
    (folder / NAMES[0]).write_bytes(idx(np.zeros(shape)))
    (folder / NAMES[1]).write_bytes(idx(np.zeros(shape[0])))
    says(folder, "does not hold MNIST", str(list(shape)))


def test_names():
    assert TASKS["temporal-mnist"] is TemporalMNIST
    assert (TemporalMNIST.num_classes, TemporalMNIST.label_names) == (10, tuple("0123456789"))
    with pytest.raises(ValueError, match="steps must be at least 1, not 0"):
        TemporalMNIST(steps=0)


# The real thing


@pytest.mark.skipif(not MNIST.exists(), reason="MNIST is not on this machine")
def test_the_real_digits():
    task = TemporalMNIST(str(MNIST), flat=True)
    assert (task.train.size, task.validation.size, task.test.size) == (55_000, 5_000, 10_000)
    counts = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert task.test.labels.bincount().tolist() == counts
    trained = torch.cat([task.train.labels, task.validation.labels])
    assert trained.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert task.train.labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert task.test.labels[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    ink = torch.cat([task.train.inputs, task.validation.inputs]).double().mean() / 255
    assert ink.item() == pytest.approx(0.1307, abs=5e-5)  # the well-known mean
    digits = [set(map(bytes, split.inputs.numpy())) for split in (task.train, task.validation, task.test)]
    assert [len(each) for each in digits] == [55_000, 5_000, 10_000]
    assert not digits[0] & digits[1] and not digits[0] & digits[2] and not digits[1] & digits[2]
    batch = next(task.test.scan(3, "cpu"))
    assert batch.inputs.shape == (3, 10, 784) and (batch.inputs.sum(1) == 1).all()
    images = task.test.inputs[:3].flatten(1).numpy()
    assert (batch.inputs.argmax(1) + 1).tolist() == expected_steps(images).tolist()


def test_no_more_is_unpacked_than_the_header_announces(folder):
    """A small packed file can hold gigabytes."""
    with gzip.open(folder / NAMES[0], "wb") as file:
        file.write(idx(contents()[NAMES[0]]))
        for _ in range(100):
            file.write(bytes(1_000_000))
    tracemalloc.start()
    says(folder, NAMES[0], "too long")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10e6
