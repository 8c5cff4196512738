"""Tables in Parquet files: types of columns, damage, and what a .csv file of the same table gives."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import numpy as np
import pyarrow
import pytest
from pyarrow import csv, parquet

from rankcode.data.series import Options
from rankcode.data.series_files import read_series
from series_data import rows, says, single, train, written


def stored(path, columns, **options):
    parquet.write_table(pyarrow.table(columns), path, **options)
    return path


@pytest.mark.parametrize("form", ["wide", "long"])
def test_a_table_is_the_same_in_both_formats(tmp_path, form):
    random = np.random.default_rng(0)
    values = random.standard_normal((40, 3)).astype(np.float32)
    labels, split = random.choice(["up", "down"], 40), random.choice(["train", "test"], 40)
    columns = {"class": labels, **{f"t{step}": values[:, step] for step in range(3)}, "split": split}
    if form == "long":
        ids, times = np.arange(40) % 8, random.permutation(40)
        columns = {"id": ids, "time": times, "x": values[:, 0], "y": values[:, 1]}
        columns |= {"class": labels[ids], "split": split[ids]}
    file = stored(tmp_path / "a.parquet", columns, row_group_size=7)
    csv.write_csv(pyarrow.table(columns), tmp_path / "a.csv")
    found, same = (read_series(path, Options()) for path in (file, tmp_path / "a.csv"))
    assert list(found) == list(same) == ["train", "test"]
    for split, series in found.items():
        assert rows(series) == rows(same[split]) and series.places == same[split].places
        assert series.columns == same[split].columns


NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    "times",
    [
        [NOON + timedelta(days=day) for day in (2, 0, 1)],
        [(NOON + timedelta(days=day)).date() for day in (2, 0, 1)],
        [(NOON + timedelta(hours=hour)).isoformat() for hour in (2, 0, 1)],
        np.array([7, 5, 6], "datetime64[ns]"),
        [timedelta(seconds=second) for second in (2, 0, 1)],
        [2.5, -1, 0],
        ["10", "8", "9"],
    ],
)
def test_times_of_any_type(tmp_path, times):
    table = {"id": [1, 1, 1], "time": times, "x": [30, 10, 20], "label": ["a"] * 3}
    assert rows(train(stored(tmp_path / "a.parquet", table))) == [(single(10, 20, 30), "a")]
    for missing in (True, False):
        changed = [None if missing else times[1], *times[1:]]
        reason = "row 1: its time is missing" if missing else "occurs twice, in row 1 and row 2"
        table["time"] = pyarrow.array(changed, pyarrow.array(times).type)
        says(stored(tmp_path / "a.parquet", table), "id '1': ", reason)


@pytest.mark.parametrize(
    "values",
    [
        pyarrow.array([1, 2, None], pyarrow.int8()),
        pyarrow.array([1.0, 2.0, None], pyarrow.float32()),
        pyarrow.array([Decimal(1), Decimal(2), None]),
        pyarrow.array(["1", "2", ""]),
        pyarrow.array(["1", "2", None]).dictionary_encode(),
    ],
)
def test_values_of_any_type(tmp_path, values):
    table = {"label": pyarrow.array(["a", "b", "a"]).dictionary_encode(), "s": [9, 8, 7], "t": values}
    expected = [(single(9, 1), "a"), (single(8, 2), "b"), (single(7), "a")]
    assert rows(train(stored(tmp_path / "a.parquet", table))) == expected


@pytest.mark.parametrize("labels", [[1, 2, 1], [1.0, 2.0, 1.0], ["1", "2", "1"], [b"1", b"2", b"1"]])
def test_labels_of_any_type(tmp_path, labels):
    table = {"kind": labels, "s": [0.5, 0.25, 0.125], "t": [0.1, 0.2, 0.3]}
    series = read_series(stored(tmp_path / "a.parquet", table), Options(label="kind"))["train"]
    assert series.labels == ["1", "2", "1"]


@pytest.mark.parametrize(
    ("columns", "parts"),
    [
        ({}, ["no columns"]),
        ({"label": [], "x": []}, ["no rows"]),
        ({"label": ["a", "b"], "x": ["1", "up"]}, ["row 2: not a number: 'up' in column 'x'"]),
        ({"label": ["a"], "x": [[1.0, 2.0]]}, ["row 1: not a number"]),
        ({"label": ["a"], "x": [NOON]}, ["row 1: not a number"]),
        ({"label": ["a", None], "x": [1, 2]}, ["row 2: its label is missing"]),
        ({"label": ["a"], "class": ["b"], "x": [1]}, ["'label' and 'class'"]),
        ({"x": [0.5], "z": [1.5]}, ["which column holds the labels"]),
    ],
)
def test_tables_that_cannot_be_used(tmp_path, columns, parts):
    says(stored(tmp_path / "a.parquet", columns), *parts)


def test_damaged_files(tmp_path):
    good = stored(tmp_path / "a.parquet", {"label": ["a", "b"] * 50, "x": list(range(100))}).read_bytes()
    for size in range(0, len(good), 41):
        says(written(tmp_path / "a.parquet", good[:size]), "damaged")
    says(written(tmp_path / "a.parquet", good[:-8] + b"\xff" * 4 + good[-4:]), "damaged")


def test_a_flipped_bit_in_values_with_a_checksum(tmp_path):
    values = np.random.default_rng(0).normal(size=100)
    columns = {"label": ["a", "b"] * 50, "x": values}
    good = stored(tmp_path / "a.parquet", columns, write_page_checksum=True, compression="none").read_bytes()
    place = good.index(values[:2].tobytes())
    for offset in range(0, 800, 97):
        damaged = bytearray(good)
        damaged[place + offset] ^= 1
        says(written(tmp_path / "a.parquet", bytes(damaged)), "damaged")


def test_text_that_is_not_utf_8(tmp_path):
    offsets = pyarrow.array([0, 2, 4], pyarrow.int32()).buffers()[1]
    text = pyarrow.Array.from_buffers(pyarrow.string(), 2, [None, offsets, pyarrow.py_buffer(b"\xff\xfea\xff")])
    for columns in ({"label": text, "x": [1.0, 2.0]}, {"label": text.dictionary_encode(), "x": [1.0, 2.0]}):
        says(stored(tmp_path / "a.parquet", columns), "column 'label'", "not UTF-8")
    says(stored(tmp_path / "a.parquet", {"label": ["a", "b"], "x": text}), "column 'x'", "not UTF-8")
