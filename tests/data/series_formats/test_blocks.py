"""Large .npy and .parquet files are read in blocks: the same rows, names and reasons as at once, in little memory."""

import tracemalloc

import numpy as np
import pytest

from rankcode.data.series import Options
from rankcode.data.series_files import read_rows
from rankcode.data.series_formats import npy, parquet
from rankcode.data.sources import BadData

RANDOM = np.random.default_rng(0)
VALUES = RANDOM.normal(size=(41, 6)).astype(np.float32)
VALUES[3, 2], VALUES[5:12], VALUES[20, 4:] = np.inf, np.nan, np.nan
CUBE = RANDOM.normal(size=(30, 2, 7))


def table(path, columns):
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table(columns), path, row_group_size=50)


def wide(path, **more):
    table(path, {**more, **{f"t{step}": VALUES[:, step] for step in range(6)}})


def long(path, order=None, ids=str, text_times=False):
    steps = np.concatenate([np.arange(each % 5 + 1)[::-1] for each in range(40)])
    names = np.repeat(np.arange(40), [each % 5 + 1 for each in range(40)])
    order = np.arange(len(steps)) if order is None else order(len(steps))
    values = RANDOM.normal(size=(len(steps), 2))
    values[7] = np.inf
    times = [str(each) for each in steps[order]] if text_times else steps[order]
    columns = {"id": [ids(each) for each in names[order]], "t": times}
    table(path, {**columns, "x": values[order, 0], "y": values[order, 1]})


FILES = {
    "plain.npy": lambda path: np.save(path, VALUES),
    "fortran.npy": lambda path: np.save(path, np.asfortranarray(VALUES)),
    "channels first.npy": lambda path: np.save(path, CUBE),
    "wide.parquet": wide,
    "labelled.parquet": lambda path: wide(path, label=["a"] * 41),
    "guessed.parquet": lambda path: wide(path, what=[["a", "b"][each % 2] for each in range(41)]),
    "named.parquet": lambda path: wide(path, id=range(41)),
    "long.parquet": long,
    "numbers.parquet": lambda path: long(path, ids=int),
    "mixed.parquet": lambda path: long(path, order=RANDOM.permutation),
    "text.parquet": lambda path: long(path, text_times=True),
}
AT_ONCE = ("guessed", "named", "mixed", "text")


def found_in(path, skip_bad=True):
    left_out = [] if skip_bad else None
    channels = 2 if path.stem in ("channels first", "long", "numbers", "mixed", "text") else 1
    rows = [(name, row.tolist()) for name, row in read_rows(path, Options(left_out, channels=channels))]
    return rows, left_out


@pytest.mark.parametrize("name", FILES)
def test_blocks_give_the_same_rows(name, tmp_path, monkeypatch):
    path = tmp_path / name
    FILES[name](path)
    rows, left_out = found_in(path)
    assert len(rows) > 20 and (left_out or name == "channels first.npy")
    for module in (npy, parquet):
        monkeypatch.setattr(module, "BLOCK_BYTES", 7 * 24)
    if path.suffix == ".parquet":
        with parquet.opened(path) as file:
            cuts = parquet._cuts(path, file, Options(labelled=False))
        assert (cuts is None) == (path.stem in AT_ONCE) and (cuts is None or len(cuts) > 5)
    assert found_in(path) == (rows, left_out)
    if left_out:
        with pytest.raises(BadData, match="skip_bad=True leaves it out"):
            found_in(path, skip_bad=False)


def test_a_file_without_a_good_row(tmp_path, monkeypatch):
    np.save(tmp_path / "bad.npy", np.full((40, 6), np.nan, np.float32))
    monkeypatch.setattr(npy, "BLOCK_BYTES", 7 * 24)
    with pytest.raises(BadData, match="no other row is good"):
        found_in(tmp_path / "bad.npy")


def test_blocks_take_little_memory(tmp_path):
    """An array of 200 MB, read in blocks of 16 MB."""
    np.lib.format.open_memmap(tmp_path / "large.npy", "w+", np.float32, (50_000, 1_000)).flush()
    tracemalloc.start()
    count = sum(1 for _ in read_rows(tmp_path / "large.npy", Options(channels=1)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 50_000 and peak < 60e6
