"""NumPy's .npz files: splits, wrong arrays, damage, memory, and headers that announce too much."""

import multiprocessing
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from rankcode.data.series import Options
from rankcode.data.series_files import read_series
from rankcode.data.series_formats.npz import read_npz
from rankcode.data.sources import BadData
from series_data import ONES, peak_of, rows, saved, says, single, train, written


def test_npz_of_two_and_of_three_dimensions(tmp_path):
    flat = saved(tmp_path / "flat.npz", X=[[1, 2], [3, 4]], y=[3, -1])
    assert rows(train(flat)) == [(single(1, 2), "3"), (single(3, 4), "-1")]
    deep = saved(tmp_path / "deep.npz", X=np.arange(12).reshape(2, 2, 3), y=[0, 1])
    assert rows(train(deep)) == [([[0, 1, 2], [3, 4, 5]], "0"), ([[6, 7, 8], [9, 10, 11]], "1")]


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (np.array([3, 10], dtype=np.uint8), ["3", "10"]),
        (np.array([3.0, -0.0], dtype=np.float32), ["3", "0"]),
        (np.array([True, False]), ["True", "False"]),
        (np.array(["no wave", "3.0"]), ["no wave", "3"]),
        (np.array([b"up", "né".encode()]), ["up", "né"]),
    ],
)
def test_npz_labels(tmp_path, labels, names):
    assert train(saved(tmp_path / "a.npz", X=np.ones((2, 4)), y=labels)).labels == names


def test_npz_lengths_and_missing_values(tmp_path):
    nan = np.nan
    inputs = [[nan, 1, nan, np.inf], [1, 2, 3, nan]]
    given = saved(tmp_path / "given.npz", X=inputs, y=[0, 1], lengths=[3, 4])
    assert rows(train(given)) == [(single(None, 1, None), "0"), (single(1, 2, 3, None), "1")]
    inputs = [[[1, nan], [nan, 2], [nan, nan]], [[1, 2], [nan, nan], [3, 4]]]
    ended = saved(tmp_path / "ended.npz", X=inputs, y=[0, 1])
    assert rows(train(ended)) == [([[1, None], [None, 2]], "0"), ([[1, 2], [None, None], [3, 4]], "1")]


@pytest.mark.parametrize(("first", "middle"), [("", "_val"), ("_train", "_validation")])
def test_npz_splits(tmp_path, first, middle):
    arrays = {}
    for number, end in enumerate((first, "_test", middle)):
        arrays |= {"X" + end: np.full((2, 3), number), "y" + end: [number] * 2, "lengths" + end: [number + 1] * 2}
    splits = read_series(saved(tmp_path / "a.npz", other=[1], **arrays), Options())
    assert list(splits) == ["train", "validation", "test"]
    assert rows(splits["train"]) == [(single(0), "0")] * 2
    assert rows(splits["validation"]) == [(single(2, 2, 2), "2")] * 2
    assert rows(splits["test"]) == [(single(1, 1), "1")] * 2


def test_arrays_of_no_known_split_are_named(tmp_path):
    np.savez(tmp_path / "data.npz", X=ONES, y=[0] * len(ONES), X_holdout=ONES, y_holdout=[0] * len(ONES))
    says(tmp_path / "data.npz", "data.npz", "X_holdout")
    np.savez(tmp_path / "data.npz", X=ONES, y=[0] * len(ONES), X_Test=ONES, y_Test=[1] * len(ONES))
    assert set(read_series(tmp_path / "data.npz", Options())["test"].labels) == {"1"}


@pytest.mark.parametrize(
    ("arrays", "parts"),
    [
        (dict(X=ONES), ["y"]),
        (dict(y=[1, 2]), ["X"]),
        (dict(X=ONES, y=[1, 2], X_test=ONES), ["test"]),
        (dict(X=ONES, y=[1, 2], y_test=[1, 2]), ["test"]),
        (dict(inputs=ONES), ["must hold arrays X and y, but holds inputs"]),
        (dict(X=ONES, X_train=ONES, y=[1, 2]), ["X", "X_train"]),
        (dict(X=np.array([[1], [1, 2]], dtype=object), y=[1, 2]), ["X", "pad", "lengths"]),
        (dict(X=ONES, y=np.array(["a", 1], dtype=object)), ["y", "y.astype(str)"]),
        (dict(X=np.array([["a", "b"]]), y=[1]), ["X", "numbers"]),
        (dict(X=ONES * 1j, y=[1, 2]), ["X", "complex"]),
        (dict(X=np.ones(3), y=[1, 2, 3]), ["X", "[3]"]),
        (dict(X=np.ones((2, 3, 4, 5)), y=[1, 2]), ["X", "[2, 3, 4, 5]"]),
        (dict(X=5, y=5), ["X"]),
        (dict(X=ONES, y=[1, 2, 3]), ["y", "[2]", "[3]"]),
        (dict(X=ONES, y=[[1], [2]]), ["y", "[2, 1]"]),
        (dict(X=ONES, y=[1, 2], lengths=[3]), ["lengths", "[1]"]),
        (dict(X=ONES, y=[1, 2], lengths=[1.5, 2]), ["lengths", "float64"]),
        (dict(X=np.ones((0, 3)), y=np.ones(0)), ["no rows"]),
        (dict(X=np.ones((2, 0)), y=[1, 2]), []),
        (dict(X=np.ones((2, 3, 0)), y=[1, 2]), []),
        (dict(X=ONES, y=[1, 2], X_test=np.ones((2, 3, 2)), y_test=[1, 2]), ["train 1", "test 2"]),
    ],
)
def test_npz_that_cannot_be_used(tmp_path, arrays, parts):
    says(saved(tmp_path / "arrays.npz", **arrays), *parts, skipped=[])


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        (dict(X=[[1, 2], [1, np.inf], [1, 2]]), "infinite"),
        (dict(X=[[1, 2], [1, 1e39], [1, 2]]), "infinite"),
        (dict(X=[[1, 2], [np.nan, np.nan], [1, 2]]), "missing"),
        (dict(lengths=[2, 0, 2]), "length 0"),
        (dict(lengths=[2, 3, 2]), "length 3"),
        (dict(lengths=[2, -1, 2]), "length -1"),
        (dict(y=[0.0, 1.5, 2.0]), "label 1.5"),
        (dict(y=[0.0, np.inf, 2.0]), "label inf"),
        (dict(y=[0.0, np.nan, 2.0]), "label is missing"),
        (dict(y=["0", "", "2"]), "label is missing"),
    ],
)
def test_bad_rows_of_npz(tmp_path, arrays, reason):
    file = saved(tmp_path / "a.npz", **{"X": np.ones((3, 2)), "y": [0, 1, 2]} | arrays)
    says(file, "X[1] of train", reason)
    skipped = []
    assert train(file, skipped).labels == ["0", "2"]
    assert len(skipped) == 1 and str(file) in skipped[0] and "X[1]" in skipped[0] and reason in skipped[0]


def test_damaged_npz(tmp_path):
    good = saved(tmp_path / "good.npz", X=ONES, y=[1, 2]).read_bytes()
    for size in range(0, len(good), 7):
        says(written(tmp_path / "cut.npz", good[:size]), "cut.npz")
    for place in (0, 60, 170, 300, len(good) - 20):
        damaged = written(tmp_path / "cut.npz", good[:place] + b"\xff\x00rubbish" + good[place + 9 :])
        says(damaged, "cut.npz", skipped=[])
    np.save(tmp_path / "one.npy", ONES)
    says((tmp_path / "one.npy").rename(tmp_path / "one.npz"), "not an .npz")


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("lengths", [None, np.full(40, 100_000)])
def test_an_array_is_in_memory_once(tmp_path, kind, lengths):
    values = np.zeros((40, 100_000), kind)
    given = {} if lengths is None else {"lengths": lengths}
    np.savez_compressed(tmp_path / "a.npz", X=values, y=np.arange(40) % 2, **given)
    assert (tmp_path / "a.npz").stat().st_size < values.nbytes / 100
    assert peak_of(lambda: read_npz(tmp_path / "a.npz", Options())) < 1.5 * values.nbytes


@pytest.mark.parametrize("shape", [(10**7, 10**6), (2**40, 3), (20, 4)])
def test_a_header_that_promises_more_than_there_is(tmp_path, shape):
    path = saved(tmp_path / "a.npz", X=np.zeros((20, 3)), y=[0, 1] * 10)
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    head, body = content["X.npy"][:128], content["X.npy"][128:]
    new = str(shape).encode()
    head = head.replace(b"(20, 3)", new).replace(b" " * (len(new) - 7) + b"\n", b"\n", 1)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("X.npy", head + body)
        archive.writestr("y.npy", content["y.npy"])
    with pytest.raises(BadData, match=r"X is damaged: [\d,]+ bytes announced, 480 there"):
        read_npz(path, Options())


@pytest.mark.skipif(sys.platform != "linux", reason="memory cannot be limited here")
def test_data_larger_than_memory_is_not_called_damaged(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", X=np.zeros((40, 2_000_000), np.float32), y=np.arange(40) % 2)  # 320 MB
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def read():
        import resource

        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 40_000_000,) * 2)
        try:
            read_series(tmp_path / "a.npz", Options())
            sender.send("it was read")
        except MemoryError as error:
            sender.send(str(error))

    process = context.Process(target=read)
    process.start()
    assert receiver.recv() == f"{tmp_path / 'a.npz'} does not fit into memory: read a part of it"
    process.join()
