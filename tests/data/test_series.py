"""Series from arrays: layouts, masks, byte orders, labels, memory."""

import time

import numpy as np
import pytest

from rankcode.data.series import Options, label_name, series_of
from rankcode.data.series_formats.npz import read_npz
from rankcode.data.sources import BadData
from series_data import peak_of, saved

RANDOM = np.random.default_rng(0)


Y = np.arange(20) % 2


AEON = RANDOM.normal(size=(20, 1, 96))  # [rows, channels, steps]


def test_an_improbable_layout_is_asked_about(tmp_path):
    message = (
        r"X of the train split has 1 step of 96 values .*layout=\"channels-first\", otherwise layout=\"steps-first\"$"
    )
    for read in (
        lambda: series_of(AEON, Y),
        lambda: series_of(list(AEON), Y),
        lambda: read_npz(saved(tmp_path / "a.npz", X=AEON, y=Y), Options()),
    ):
        with pytest.raises(BadData, match=message):
            read()


@pytest.mark.parametrize("rows", [AEON, list(AEON)], ids=["array", "list"])
def test_the_layout_that_is_given(rows):
    series = series_of(rows, Y, options=Options(layout="channels-first"))
    assert series.lengths.tolist() == [96] * 20 and np.array_equal(series.values[:96, 0], AEON[0, 0])
    series = series_of(rows, Y, options=Options(layout="steps-first"))
    assert series.lengths.tolist() == [1] * 20 and np.array_equal(series.values, AEON[:, 0])
    series = series_of([row[0] for row in rows], Y, options=Options(layout="channels-first"))
    assert series.lengths.tolist() == [96] * 20, "rows without channels have no layout"


@pytest.mark.parametrize(("steps", "channels"), [(12, 29), (10, 49), (100, 6), (1, 4), (7, 7)])
def test_a_probable_layout_is_taken(steps, channels):
    values = RANDOM.normal(size=(20, steps, channels))
    assert np.array_equal(series_of(values, Y).values, values.reshape(-1, channels))


def test_the_channels_of_a_network_tell_the_layout(tmp_path):
    path = saved(tmp_path / "a.npz", X=AEON)
    assert read_npz(path, Options(labelled=False, channels=1))["train"].values.shape == (20 * 96, 1)
    assert read_npz(path, Options(labelled=False, channels=96))["train"].values.shape == (20, 96)
    square = saved(tmp_path / "b.npz", X=RANDOM.normal(size=(20, 3, 3)))
    expected = np.load(square)["X"].reshape(-1, 3)
    assert np.array_equal(read_npz(square, Options(labelled=False, channels=3))["train"].values, expected)


def test_masks_byte_orders_and_strides():
    values = RANDOM.normal(size=(20, 6))
    masked = np.ma.masked_array(values, mask=np.zeros_like(values))
    masked.mask[3, 2] = True
    found = series_of(masked, Y).rows()
    assert np.isnan(found[3]).flatten().tolist() == [False, False, True, False, False, False]
    found = series_of([masked[k] for k in range(20)], Y).rows()
    assert np.isnan(found[3]).sum() == 1 and np.isnan(np.concatenate(found)).sum() == 1
    for same in (values.astype(">f8"), values[::-1][::-1], np.asfortranarray(values)):
        assert np.array_equal(series_of(same, Y.astype(">i4")).values, values.reshape(-1, 1))
    assert series_of(values[::-1], Y).values[:6, 0].tolist() == values[-1].tolist()
    with pytest.raises(ValueError, match="complex"):
        series_of(values * 1j, Y)
    assert series_of(values, np.ma.masked_array(Y, mask=Y == 7)).labels == [str(label) for label in Y]


@pytest.mark.parametrize(
    ("X", "y", "says"),
    [
        (np.zeros((4, 3)), [0, 1], "y of the train split must be"),
        (np.zeros(4), [0, 1, 0, 1], "X of the train split must be"),
        ([np.zeros((3, 2)), np.zeros((3, 1))], [0, 1], r"X\[1\] of train: it has 1 channels, not 2"),
        ([["a"], ["b"]], [0, 1], r"X\[0\] of the train split must be numbers"),
        ([], [], "no rows"),
        (np.zeros((4, 3)), [0.5, 1, 0, 1], "label 0.5"),
        (np.full((2, 3), np.nan), [0, 1], r"X\[0\] of train: all of its values are missing; skip_bad=True leaves it"),
    ],
)
def test_arrays_that_do_not_go_together(X, y, says):  # noqa: N803
    with pytest.raises(BadData, match=says):
        series_of(X, y)


def test_a_masked_label_is_missing():
    with pytest.raises(BadData, match=r"X\[4\] of train: its label is missing"):
        series_of(np.ones((20, 3)), np.ma.masked_array(Y, mask=np.arange(20) == 4))


@pytest.mark.parametrize(
    ("written_as", "name"),
    [
        (" 1.0 ", "1"),
        ("-1.000", "-1"),
        ("1.0000000e+00", "1"),
        *((same, same) for same in ["1", "007", "1e5", "0.5", "v1.0"]),
    ],
)
def test_label_names(written_as, name):
    assert label_name(written_as) == name


def test_what_is_left_out_costs_one_copy():
    values = np.zeros((40, 100_000))
    values[3], values[5, -7:] = np.nan, np.nan
    left_out = []
    assert peak_of(lambda: series_of(values, np.arange(40) % 2, options=Options(left_out))) < 1.5 * values.nbytes
    assert len(left_out) == 1


def test_many_short_rows_are_read_in_seconds():
    begun = time.monotonic()
    assert len(series_of(np.zeros((20_000, 10), np.float32), np.arange(20_000) % 2).labels) == 20_000
    assert time.monotonic() - begun < 3


def test_one_long_row_does_not_make_the_others_long():
    rows = [np.zeros(1_000_000), *(np.zeros(5) for _ in range(999))]
    assert peak_of(lambda: series_of(rows, np.arange(1000) % 2)) < 60e6, "padded rows would take 8 GB"
