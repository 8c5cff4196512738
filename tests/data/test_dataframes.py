"""Frames of pandas and polars in long form."""

import numpy as np
import pandas
import polars
import pytest

from rankcode.data.dataframes import is_long_frame, rows_of_frame
from rankcode.data.series import Columns

TABLE = {
    "id": ["b", "a", "b", "c", "a"],
    "time": [1, 0, 0, 5, 2],
    "x": [1.0, 2.0, 3.0, 4.0, 5.0],
    "y": [10, 20, 30, 40, 50],
}
ROWS = [[[3, 30], [1, 10]], [[2, 20], [5, 50]], [[4, 40]]]  # b, a, c
LABELS = [7, 3, 7, 9, 3]
frames = pytest.mark.parametrize("frame_of", [pandas.DataFrame, polars.DataFrame], ids=["pandas", "polars"])


def read(frame, y=None, like=None):
    rows, labels, columns = rows_of_frame(frame, y, like)
    return [row.tolist() for row in rows], None if labels is None else list(labels), columns


@frames
def test_rows_in_order_of_first_appearance(frame_of):
    rows, labels, columns = read(frame_of(TABLE), [1, 2, 3])
    assert rows == ROWS and labels == [1, 2, 3]
    assert columns == Columns(None, False, "id", "time", ("x", "y"))


@frames
def test_labels_keep_their_type(frame_of):
    rows, labels, columns = read(frame_of(TABLE | {"kind": LABELS}), "kind")
    assert rows == ROWS and labels == [7, 3, 9] and columns.label == "kind"
    assert isinstance(labels[0], np.integer)
    changed = frame_of(TABLE | {"kind": [7, 3, 7, 9, 8]})
    with pytest.raises(ValueError, match=r"^X, id 'a': it has two labels in column 'kind', '3' and '8'$"):
        rows_of_frame(changed, "kind")
    with pytest.raises(ValueError, match="X: it has no column 'sort'; its columns are 'id', 'time', 'x', 'y'"):
        rows_of_frame(frame_of(TABLE), "sort")


@frames
@pytest.mark.parametrize(
    "times",
    [
        np.array(["2024-01-02", "2024-01-01", "2024-01-01", "2024-03-01", "2024-01-03"], "datetime64[ns]"),
        ["2024-01-02", "2024-01-01", "2024-01-01", "2024-03-01", "2024-01-03"],
    ],
)
def test_dates(frame_of, times):
    assert read(frame_of(TABLE | {"time": times}))[0] == ROWS


def test_times_in_a_time_zone():
    times = pandas.to_datetime(["2024-01-02", "2024-01-01", "2024-01-01", "2024-03-01", "2024-01-03"], utc=True)
    assert read(pandas.DataFrame(TABLE | {"time": times}))[0] == ROWS


@pytest.mark.parametrize("kind", ["Int64", "float32", "int8", "Float64"])
def test_missing_values_of_pandas(kind):
    frame = pandas.DataFrame(TABLE)
    frame["y"] = frame["y"].astype(kind)
    assert read(frame)[0] == ROWS
    if kind.endswith("64"):
        frame.loc[1, "y"] = pandas.NA
        assert np.isnan(rows_of_frame(frame, None)[0][1][0, 1])


def test_missing_values_and_categories_of_polars():
    frame = polars.DataFrame(TABLE | {"y": [10, None, 30, 40, 50]}).cast({"id": polars.Categorical})
    rows, _, _ = rows_of_frame(frame, None)
    assert np.isnan(rows[1][0, 1]) and rows[0].tolist() == ROWS[0]


def test_a_series_is_indexed_by_id():
    labels = pandas.Series(["A", "B", "C", "D"], index=["a", "b", "c", "d"])
    assert read(pandas.DataFrame(TABLE), labels)[1] == ["B", "A", "C"]
    with pytest.raises(ValueError, match="y has no label for id 'b'"):
        rows_of_frame(pandas.DataFrame(TABLE), pandas.Series(["B", "A", "C"]))
    with pytest.raises(ValueError, match="two labels for the same id"):
        rows_of_frame(pandas.DataFrame(TABLE), pandas.Series(list("ABCD"), index=list("abca")))


@frames
def test_the_columns_of_the_fitted_frame_are_found_by_name(frame_of):
    fitted = read(frame_of(TABLE | {"kind": LABELS}), "kind")[2]
    other = frame_of({"note": ["text"] * 5, **dict(reversed(TABLE.items())), "kind": [0] * 5})
    assert read(other, None, fitted)[0] == ROWS
    with pytest.raises(ValueError, match=r"^X: it has no column 'y', which was trained on"):
        rows_of_frame(frame_of({name: TABLE[name] for name in ("id", "time", "x")}), None, fitted)


@frames
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"x": ["1", "2", "3", "4", "up"]}, r"^X, id 'a': row 5: not a number: 'up' in column 'x'$"),
        ({"time": [1, 0, 1, 5, 2]}, r"^X, id 'b': time 1 occurs twice, in row 1 and row 3$"),
        ({"time": [1, None, 0, 5, 2]}, r"^X, id 'a': row 2: its time is missing$"),
        ({"id": ["b", None, "b", "c", "a"]}, r"^X, id '': row 2: its id is missing$"),
        ({"series": ["b", "a", "b", "c", "a"]}, "'id' and 'series' could both be the id"),
    ],
)
def test_frames_that_cannot_be_used(frame_of, change, reason):
    with pytest.raises(ValueError, match=reason):
        rows_of_frame(frame_of(TABLE | change), None)


def test_what_is_a_frame_in_long_form():
    assert is_long_frame(pandas.DataFrame(TABLE)) and is_long_frame(polars.DataFrame({"Case_ID": [1]}))
    assert not is_long_frame(pandas.DataFrame(np.ones((2, 3)))) and not is_long_frame(np.ones((2, 3)))
    with pytest.raises(ValueError, match="X has two columns called 'x'"):
        rows_of_frame(pandas.DataFrame([[1, 2, 3]], columns=["id", "x", "x"]), None)
    with pytest.raises(ValueError, match="ids are repeated in 'id', so it is in long form, but it has no column time"):
        rows_of_frame(pandas.DataFrame({"id": [1, 1], "x": [2, 3]}), None)
