"""Files that list files."""

import csv
from pathlib import Path

import pytest

from rankcode.data.manifest import is_manifest, listed_files
from rankcode.data.sources import BadData

NAMES = ["a.wav", "deep/b c.flac", "/elsewhere/d.wav", 'with, comma "and" quotes.wav', "ü.wav"]


def table(path, columns):
    if path.suffix == ".csv":
        with open(path, "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([list(columns), *zip(*columns.values(), strict=True)])
    else:
        pyarrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table(columns), path)
    return path


def text(path, lines):
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "write",
    [
        lambda folder: text(folder / "list.txt", ["# a comment", *NAMES, "", "  "]),
        lambda folder: text(folder / "list.TXT", ["\ufeff" + NAMES[0], *NAMES[1:]]),
        lambda folder: table(folder / "list.csv", {"id": range(5), "Path": NAMES}),
        lambda folder: table(folder / "list.csv", {NAMES[0]: NAMES[1:]}),  # no header
        lambda folder: table(folder / "list.parquet", {"file": NAMES, "label": ["x"] * 5}),
        lambda folder: table(folder / "list.parquet", {"anything": [*NAMES, None]}),
    ],
)
def test_the_files_of_a_manifest(write, tmp_path):
    expected = [str(tmp_path / name) for name in NAMES]
    assert list(listed_files(write(tmp_path))) == expected
    assert expected[2] == "/elsewhere/d.wav"


def test_a_table_without_a_column_of_names(tmp_path):
    for name in ("list.csv", "list.parquet"):
        with pytest.raises(BadData, match="none of its columns is called path, file, filename; they are 'x', 'y'"):
            list(listed_files(table(tmp_path / name, {"x": ["1"], "y": ["2"]})))
    with pytest.raises(FileNotFoundError, match="there is no file"):
        list(listed_files(tmp_path / "none.txt"))
    (tmp_path / "damaged.parquet").write_bytes(b"PAR1, not really")
    with pytest.raises(BadData, match=r"damaged\.parquet: not a Parquet file"):
        list(listed_files(tmp_path / "damaged.parquet"))


def test_a_table_is_a_manifest_where_it_cannot_be_data():
    assert is_manifest(Path("list.csv"), (".wav",)) and not is_manifest("list.csv", (".csv", ".npz"))
    assert is_manifest("list.txt", (".csv",)) and not is_manifest("one.wav", (".wav",))
