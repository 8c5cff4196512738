"""NumPy's .npy files, and the files of their labels."""

import numpy as np
import pytest

from rankcode.data.series import Options
from rankcode.data.series_files import is_series, read_rows, read_series
from rankcode.data.series_formats.npy import read_npy
from series_data import ONES, peak_of, rows, says, single, train, written


def stored(folder, **arrays):
    for name, values in arrays.items():
        np.save(folder / f"{name}.npy", values)
    return folder


@pytest.mark.parametrize(("name", "labels"), [("waves", "waves_labels"), ("X", "y"), ("X_all", "y_all")])
def test_labels_lie_beside(tmp_path, name, labels):
    stored(tmp_path, **{name: [[1, 2, np.nan], [3, 4, 5]], labels: ["up", "down"]})
    expected = [(single(1, 2), "up"), (single(3, 4, 5), "down")]
    assert rows(train(tmp_path / f"{name}.npy")) == expected
    assert is_series(tmp_path) and rows(train(tmp_path)) == expected


@pytest.mark.parametrize("ends", [("_TRAIN", "_TEST"), ("_train", "_test")])
def test_splits(tmp_path, ends):
    values = np.arange(12.0).reshape(2, 2, 3)
    for number, end in enumerate(ends):
        stored(tmp_path, **{f"X{end}": values + number, f"y{end}": [number, 7]})
    for path in (tmp_path, tmp_path / f"X{ends[0]}.npy", tmp_path / f"X{ends[1]}.npy"):
        found = read_series(path, Options())
        assert {split: series.labels for split, series in found.items()} == {"train": ["0", "7"], "test": ["1", "7"]}
        assert found["test"].values.tolist() == (values + 1).reshape(-1, 3).tolist()


def test_rows_to_predict_on_need_no_labels(tmp_path):
    stored(tmp_path, new=[[1, 2], [3, 4]])
    says(tmp_path / "new.npy", "no file of its labels, new_labels.npy")
    found = read_rows(tmp_path / "new.npy", Options())
    assert [(place, row.tolist()) for place, row in found] == [("row 1", single(1, 2)), ("row 2", single(3, 4))]
    stored(tmp_path, X=[[1, 2]])
    says(tmp_path / "X.npy", "X_labels.npy or y.npy")


@pytest.mark.parametrize(
    ("values", "labels", "parts"),
    [
        (np.array([[1], [1, 2]], dtype=object), [1, 2], ["X is an array of objects"]),
        (ONES, np.array(["a", 1], dtype=object), ["y_labels.npy: y is an array of objects", "y.astype(str)"]),
        (ONES, [1, 2, 3], ["y of the train split must be", "[3]"]),
        (np.ones(3), [1, 2, 3], ["[3]"]),
        (np.ones((2, 0)), [1, 2], ["missing"]),
        (np.ones((0, 2)), [], ["no rows"]),
        (5.0, [1], ["X"]),
        (ONES * 1j, [1, 2], ["complex"]),
    ],
)
def test_arrays_that_cannot_be_used(tmp_path, values, labels, parts):
    stored(tmp_path, array_y=values, array_y_labels=labels)
    says(tmp_path / "array_y.npy", *parts)


def test_damaged_files(tmp_path):
    good = (stored(tmp_path, a=ONES, a_labels=[1, 2]) / "a.npy").read_bytes()
    for size in range(0, len(good), 5):
        says(written(tmp_path / "a.npy", good[:size]), "damaged")
    says(written(tmp_path / "a.npy", good.replace(b"(2, 3)", b"(9, 9)")), "648 bytes announced, 48 there")


def test_an_array_is_in_memory_once(tmp_path):
    values = np.zeros((40, 50_000), np.float32)
    stored(tmp_path, a=values, a_labels=np.arange(40) % 2)
    assert peak_of(lambda: read_npy(tmp_path / "a.npy", Options())) < 1.5 * values.nbytes
