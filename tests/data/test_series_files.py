"""Sets of series: the same in every format, and which files hold their splits."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from rankcode.data.series import Options
from rankcode.data.series_files import is_series, read_rows, read_series
from rankcode.data.sources import BadData
from series_data import ONES, saved, says, train, written

UCR = Path(__file__).parents[3] / "shared" / "data" / "ucr"
TS = "@univariate false\n@classLabel true a b\n@data\n"


def as_ts(values, labels):
    lines = [":".join(",".join(map(str, channel)) for channel in row.T) for row in values]
    return "@classLabel true " + " ".join(sorted(set(labels))) + "\n@data\n" + joined(lines, labels, ":")


def as_tsv(values, labels):
    steps = max(map(len, values))
    fields = (
        [label, *map(str, row[:, 0]), *["NaN"] * (steps - len(row))] for row, label in zip(values, labels, strict=True)
    )
    return "".join("\t".join(row) + "\n" for row in fields)


def as_arff(values, labels):
    steps, channels = max(map(len, values)), values[0].shape[1]
    attributes = "".join(f"@attribute s{step} numeric\n" for step in range(steps))
    if channels > 1:
        attributes = f"@attribute bag relational\n{attributes}@end bag\n"
    texts = [[",".join([*map(str, c), *["?"] * (steps - len(row))]) for c in row.T] for row in values]
    lines = ["'" + "\\n".join(text) + "'" if channels > 1 else text[0] for text in texts]
    names = ",".join(sorted(set(labels)))
    return f"@relation r\n{attributes}@attribute class {{{names}}}\n@data\n" + joined(lines, labels, ",")


def joined(lines, labels, mark):
    return "".join(f"{line}{mark}{label}\n" for line, label in zip(lines, labels, strict=True))


def padded(values):
    inputs = np.full((len(values), max(map(len, values)), values[0].shape[1]), 7.0)
    for row, kept in zip(inputs, values, strict=True):
        row[: len(kept)] = kept
    return inputs


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("unequal", [False, True])
def test_a_set_is_the_same_in_every_format(tmp_path, channels, unequal):
    random = np.random.default_rng(channels)
    lengths = random.integers(1, 9, 20) if unequal else np.full(20, 8)
    values = [random.standard_normal((length, channels)).astype(np.float32) * 1e-3 for length in lengths]
    labels = [str(label) for label in random.integers(-2, 5, 20)]
    files = [
        written(tmp_path / "a.ts", as_ts(values, labels)),
        written(tmp_path / "a.arff", as_arff(values, labels)),
        saved(tmp_path / "a.npz", X=padded(values), y=np.array(labels, dtype=int), lengths=lengths),
    ]
    if channels == 1:
        files.append(written(tmp_path / "a.tsv", as_tsv(values, labels)))
    for file in files:
        series = train(file)
        assert series.labels == labels, file
        assert all(np.array_equal(a.astype(np.float32), b) for a, b in zip(series.rows(), values, strict=True)), file


def test_bad_rows_of_every_split_are_told(tmp_path):
    file = written(tmp_path / "a_TRAIN.tsv", "1\t2\n1\tx\n")
    written(tmp_path / "a_TEST.tsv", "1\ty\n1\t2\n")
    skipped = ["before"]
    splits = read_series(file, Options(skipped))
    assert [len(series.labels) for series in splits.values()] == [1, 1]
    assert [["_TRAIN.tsv, line 2" in text, "_TEST.tsv, line 1" in text] for text in skipped[1:]] == [[1, 0], [0, 1]]


def test_no_such_file(tmp_path):
    says(tmp_path / "none.tsv", "No such file")
    says(tmp_path / "nowhere" / "none.npz", "No such file")
    written(tmp_path / "a_TRAIN.tsv", "1\t2\n")
    says(tmp_path / "a_TEST.tsv", "No such file")
    says(written(tmp_path / "a.txt", "1,2\n"), ".tsv")


def filled(folder, *names):
    """Files whose one row has the file's name as its label."""
    folder.mkdir(exist_ok=True)
    for name in names:
        header = {".ts": "@classLabel true\n@data\n", ".arff": f"@attribute s real\n@attribute c {{{name}}}\n@data\n"}
        ending = Path(name).suffix.lower()
        row = {".ts": f"1:{name}", ".arff": f"1,{name}"}.get(ending, f"{name}\t1")
        if ending == ".npz":
            saved(folder / name, X=[[1]], y=[name])
        else:
            written(folder / name, header.get(ending, "") + row + "\n")
    return folder


def read_from(path):
    return {split: series.labels for split, series in read_series(path, Options()).items()}


@pytest.mark.parametrize("ending", [".ts", ".tsv", ".arff", ".npz"])
def test_the_splits_beside_a_file(tmp_path, ending):
    names = [f"a_{word}{ending}" for word in ("TRAIN", "VAL", "Test")]
    folder = filled(tmp_path, *names, f"a{ending}", f"b_TRAIN{ending}", f"aa_TEST{ending}")
    expected = dict(zip(["train", "validation", "test"], ([name] for name in names), strict=True))
    for name in names:
        assert read_from(folder / name) == expected, name
        assert read_from(str(folder / name)) == expected, name
    assert read_from(folder / f"a{ending}") == {"train": [f"a{ending}"]}
    assert read_from(folder / f"b_TRAIN{ending}") == {"train": [f"b_TRAIN{ending}"]}
    assert read_from(folder / f"aa_TEST{ending}") == {"train": [f"aa_TEST{ending}"]}


def test_splits_of_another_format_are_not_of_the_set(tmp_path):
    folder = filled(tmp_path, "a_TRAIN.tsv", "a_TEST.ts", "a_validation.TSV")
    assert read_from(folder / "a_TRAIN.tsv") == {"train": ["a_TRAIN.tsv"], "validation": ["a_validation.TSV"]}


def test_npz_beside_npz(tmp_path):
    file = saved(tmp_path / "a_TRAIN.npz", X=ONES, y=[1, 2], X_val=ONES, y_val=[3, 4])
    saved(tmp_path / "a_TEST.npz", X_test=ONES, y_test=[5, 6])
    assert read_from(file) == {"train": ["1", "2"], "validation": ["3", "4"], "test": ["5", "6"]}
    saved(tmp_path / "a_TEST.npz", X=ONES, y=[7, 8])
    assert read_from(file)["test"] == ["7", "8"]
    saved(file, X=ONES, y=[1, 2], X_test=ONES, y_test=[3, 4])
    with pytest.raises(BadData, match="test split is given twice"):
        read_series(file, Options())


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a_TRAIN.tsv", "a_TEST.tsv", "README.md"], {"train": "a_TRAIN.tsv", "test": "a_TEST.tsv"}),
        (["a_TRAIN.tsv", "a_TRAIN.ts", "a_TEST.arff", "a_TEST.ts"], {"train": "a_TRAIN.ts", "test": "a_TEST.ts"}),
        (["a_TRAIN.npz", "a_TRAIN.arff", "a_TEST.npz"], {"train": "a_TRAIN.arff"}),
        (["a_TRAIN.tsv", "a_TEST.tsv", "a_TEST.ts"], {"train": "a_TRAIN.tsv", "test": "a_TEST.tsv"}),
        (["a.npz", "a.arff", "a.tsv"], {"train": "a.tsv"}),
        (["a.npz", "notes.txt", ".b.npz"], {"train": "a.npz"}),
        (["a_TEST.ts"], {"train": "a_TEST.ts"}),
        (["a.ts", "a_TEST.ts"], {"train": "a.ts", "test": "a_TEST.ts"}),
        (["a_TRAIN.arff", "aDimension1_TRAIN.arff", "aDimension12_TRAIN.arff"], {"train": "a_TRAIN.arff"}),
        (["aDimension1_TRAIN.arff"], {"train": "aDimension1_TRAIN.arff"}),
    ],
)
def test_folders(tmp_path, names, expected):
    folder = filled(tmp_path / "folder", *names)
    (folder / "deeper.tsv").mkdir()
    assert is_series(folder) and is_series(str(folder))
    assert read_from(folder) == {split: [name] for split, name in expected.items()}


@pytest.mark.parametrize(
    ("names", "parts"),
    [
        ([], [".tsv"]),
        (["notes.txt"], [".tsv"]),
        (["a_TRAIN.ts", "b_TRAIN.ts"], ["a_TRAIN.ts", "b_TRAIN.ts"]),
        (["a.npz", "b.tsv"], ["a.npz", "b.tsv"]),
        (["a.ts", "a_TRAIN.ts"], ["a.ts", "a_TRAIN.ts"]),
        (["a_TEST.ts", "a_VAL.ts"], ["a_TEST.ts", "a_VAL.ts"]),
        (["a_TRAIN.ts", "a_VAL.ts", "a_VALIDATION.ts"], ["a_VAL.ts", "a_VALIDATION.ts"]),
        ([f"{letter}.ts" for letter in "abcdefghijklmnopqrstuvwxyz"], ["a.ts", "…"]),
    ],
)
def test_folders_that_are_unclear(tmp_path, names, parts):
    says(filled(tmp_path / "folder", *names), *parts)


def test_channels_must_agree_between_splits(tmp_path):
    written(tmp_path / "a_TRAIN.ts", TS + "1:2:a\n")
    written(tmp_path / "a_TEST.ts", TS + "1:a\n")
    says(tmp_path, "train 2", "test 1")


def test_is_series(tmp_path):
    folder = filled(tmp_path / "folder", "a.txt", "b.xls")
    (folder / "one" / "c.tsv").mkdir(parents=True)
    assert not is_series(folder) and not is_series(folder / "a.txt") and not is_series(tmp_path / "none")
    assert is_series(tmp_path / "none.ARFF"), "by name only"
    filled(folder, "a.npz")
    assert is_series(folder) and is_series(str(folder / "a.npz"))


UNIVARIATE = {  # steps, rows of each class in the test split
    "ECG200": (96, [36, 64]),
    "ItalyPowerDemand": (24, [513, 516]),
    "Plane": (144, [15, 16, 21, 14, 17, 12, 10]),
    "UMD": (150, [48, 48, 48]),
}
MULTIVARIATE = {  # channels, steps, rows of train and test, classes
    "BasicMotions": (6, (100, 100), 40, 40, ["Badminton", "Running", "Standing", "Walking"]),
    "JapaneseVowels": (12, (7, 29), 270, 370, list("123456789")),
}


needs_archive = pytest.mark.skipif(not UCR.is_dir(), reason="the UCR and UEA archives' files are not there")


@needs_archive
@pytest.mark.parametrize("name", UNIVARIATE)
def test_sets_of_the_ucr_archive(name):
    steps, counts = UNIVARIATE[name]
    splits = read_series(UCR / name, Options())
    assert list(splits) == ["train", "test"]
    for split, series in splits.items():
        assert {row.shape for row in series.rows()} == {(steps, 1)}
        table = np.loadtxt(UCR / name / f"{name}_{split.upper()}.tsv", dtype=np.float32)  # NumPy's own reader
        assert np.array_equal(np.stack(series.rows())[:, :, 0].astype(np.float32), table[:, 1:])
        assert [int(label) for label in series.labels] == table[:, 0].tolist()
    assert [count for _, count in sorted(Counter(splits["test"].labels).items())] == counts


@needs_archive
@pytest.mark.parametrize("name", MULTIVARIATE)
def test_sets_of_the_uea_archive(name):
    channels, lengths, *sizes, classes = MULTIVARIATE[name]
    splits = read_series(UCR / name / f"{name}_TEST.ts", Options())
    assert list(splits) == ["train", "test"]
    every = [row for series in splits.values() for row in series.rows()]
    assert {row.shape[1] for row in every} == {channels}
    assert (min(map(len, every)), max(map(len, every))) == lengths
    for (split, series), size in zip(splits.items(), sizes, strict=True):
        assert len(series.lengths) == len(series.labels) == size and sorted(set(series.labels)) == classes
        lines = (UCR / name / f"{name}_{split.upper()}.ts").read_text().split("@data\n")[1].split()
        for line, row, label in list(zip(lines, series.rows(), series.labels, strict=True))[:: size // 10]:
            *expected, written_label = line.split(":")
            assert written_label.removesuffix(".0") == label
            assert [[float(value) for value in text.split(",")] for text in expected] == pytest.approx(row.T, rel=1e-6)


def test_a_file_alone_is_read_without_the_splits_beside_it(tmp_path):
    for split, label in (("TRAIN", "a"), ("TEST", "b")):
        (tmp_path / f"Set_{split}.tsv").write_text(f"{label}\t1\t2\n")
    found = read_series(tmp_path / "Set_TEST.tsv", Options(), alone=True)
    assert {name: series.labels for name, series in found.items()} == {"train": ["b"]}
    assert read_series(tmp_path, Options(), alone=True).keys() == {"train", "test"}


def test_rows_to_answer_to_need_no_labels(tmp_path):
    found = [("row 1", [1, 2, 3]), ("row 2", [4, 5])]
    (tmp_path / "new.ts").write_text("@univariate true\n@classLabel false\n@data\n1,2,3\n4,5\n")
    assert [(at, row[:, 0].tolist()) for at, row in read_rows(tmp_path / "new.ts", Options())] == found
    (tmp_path / "old.ts").write_text("@univariate true\n@classLabel true a b\n@data\n1,2,3:a\n4,5:b\n")
    assert [(at, row[:, 0].tolist()) for at, row in read_rows(tmp_path / "old.ts", Options())] == found
    skipped = []
    (tmp_path / "bad.tsv").write_text("a\t1\t2\na\tinf\t2\na\t3\t4\n")
    assert [place for place, _ in read_rows(tmp_path / "bad.tsv", Options(skipped))] == ["row 1", "row 3"]
    assert len(skipped) == 1 and "line 2" in skipped[0]
    saved(tmp_path / "both.npz", X=ONES[:1], y=[0], X_test=ONES[:2], y_test=[0, 1])
    assert [place for place, _ in read_rows(tmp_path / "both.npz", Options())] == [
        "train, row 1",
        "test, row 1",
        "test, row 2",
    ]


def test_the_name_of_a_link_says_what_it_leads_to(tmp_path):
    saved(tmp_path / "data.npz", X=ONES, y=[1, 2]).rename(tmp_path / "blob")
    (tmp_path / "link.npz").symlink_to("blob")
    assert is_series(tmp_path / "link.npz") and train(tmp_path / "link.npz").labels == ["1", "2"]
