import gzip
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch

from latency_steps import expected_step
from rankcode.data.sources import BadData
from rankcode.tasks import TemporalMNIST, temporal_mnist

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


def test_digits_are_stored_as_bytes_and_coded_when_they_are_taken(folder):
    task = TemporalMNIST(str(folder))
    inputs, labels, lengths = next(task.test.scan(TEST, "cpu"))
    assert task.test.inputs.dtype == torch.uint8 and task.test.inputs.tolist() == contents()[NAMES[2]].tolist()
    assert inputs.equal(task.front_end(task.test.inputs)[0]) and lengths is None
    assert labels.tolist() == contents()[NAMES[3]].tolist()


# Splits


def test_the_last_training_digits_validate(folder):
    task = TemporalMNIST(str(folder))
    assert which(task.train) == [(0, number) for number in range(TRAIN - HELD_OUT)]
    assert which(task.validation) == [(0, number) for number in range(TRAIN - HELD_OUT, TRAIN)]
    assert which(task.test) == [(1, number) for number in range(TEST)]
    labels = contents()[NAMES[1]].tolist()
    assert task.train.labels.tolist() == labels[:-HELD_OUT] and task.validation.labels.tolist() == labels[-HELD_OUT:]


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


def flipped(content):
    packed = bytearray(gzip.compress(content))
    packed[len(packed) // 2] ^= 0xFF
    return bytes(packed)


IMAGES = contents()[NAMES[0]]
DAMAGE = {
    "a byte less": (lambda content: content[:-1], "cut short"),
    "half": (lambda content: content[: len(content) // 2], "cut short"),
    "packed, a byte less": (lambda content: gzip.compress(content)[:-1], "cut short"),
    "packed, half": (lambda content: gzip.compress(content)[: len(content) // 2], "cut short"),
    "packed, a bit flipped": (flipped, "damaged"),
    "too long": (lambda content: content + b"\0", "too long"),
    "huge images": (lambda _: b"\0\0\x08\x03" + b"\xff" * 12, "does not hold MNIST"),
    "too many images": (lambda _: b"\0\0\x08\x03" + b"\xff" * 4 + b"\0\0\0\x1c" * 2, "does not hold MNIST"),
    "empty": (lambda _: b"", "not an idx file"),
    "only a magic number": (lambda _: b"\0\0\x08\x03", "not an idx file"),
    "a page": (lambda _: b"<html>not found</html>", "begins '3c68746d'"),
    "labels": (lambda _: idx(IMAGES, b"\0\0\x08\x01"), "3 dimensions"),
    "floats": (lambda _: idx(IMAGES, b"\0\0\x0d\x03"), "not an idx file of bytes"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_named(folder, damage):
    change, reason = DAMAGE[damage]
    (folder / NAMES[0]).write_bytes(change((folder / NAMES[0]).read_bytes()))
    says(folder, NAMES[0], reason)


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
    steps = [[expected_step(value, 255, 10) for value in image] for image in task.test.inputs[:3].flatten(1).tolist()]
    assert (batch.inputs.argmax(1) + 1).tolist() == steps


def test_no_more_is_unpacked_than_the_header_announces(folder):
    """A small packed file can hold gigabytes."""
    with gzip.open(folder / NAMES[0], "wb") as file:
        file.write(idx(contents()[NAMES[0]]))
        for _ in range(30):
            file.write(bytes(1_000_000))
    tracemalloc.start()
    says(folder, NAMES[0], "too long")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10e6
