import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from rankcode.data.series import Options
from rankcode.data.series_files import is_series, read_rows, read_series
from rankcode.data.sources import BadData

UCR = Path(__file__).parents[3] / "shared" / "data" / "ucr"
TS = "@univariate false\n@classLabel true a b\n@data\n"
ARFF = "@relation r\n@attribute s0 numeric\n@attribute s1 real\n@attribute class {a,b}\n@data\n"
BAG = "@relation r\n@attribute bag relational\n@attribute s0 numeric\n@end bag\n@attribute class {a,b}\n@data\n"


def written(path, content):
    path.write_bytes(content) if isinstance(content, bytes) else path.write_text(content, encoding="utf-8")
    return path


def saved(path, **arrays):
    np.savez(path, **arrays)
    return path


def train(path, skipped=None):
    return read_series(path, Options(skipped))["train"]


def rows(series):
    """Values as nested lists, None where they are missing, and labels."""
    assert series.values.dtype in (np.float32, np.float64)
    single = [row.astype(np.float32) for row in series.rows()]
    listed = [[[None if np.isnan(v) else float(v) for v in step] for step in row] for row in single]
    return list(zip(listed, series.labels, strict=True))


def single(*values):
    return [[value] for value in values]


def says(path, *parts, skipped=None):
    """The path cannot be read, and one line that names it says so."""
    with pytest.raises(BadData) as error:
        read_series(path, Options(skipped))
    message = str(error.value)
    assert "\n" not in message and len(message) < len(str(path)) + 250
    assert all(part in message for part in (Path(path).stem, *parts)), message


# Every format gives the same


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


# .npz


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


ONES = np.ones((2, 3))


@pytest.mark.parametrize(
    ("arrays", "parts"),
    [
        (dict(X=ONES), ["y"]),
        (dict(y=[1, 2]), ["X"]),
        (dict(X=ONES, y=[1, 2], X_test=ONES), ["test"]),
        (dict(X=ONES, y=[1, 2], y_test=[1, 2]), ["test"]),
        (dict(X_test=ONES, y_test=[1, 2]), ["train"]),
        (dict(inputs=ONES), ["must hold arrays X and y, and holds inputs"]),
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
    file = saved(tmp_path / "arrays.npz", **arrays)
    says(file, *parts)
    says(file, *parts, skipped=[])


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


# .ts


def test_ts_of_one_channel_with_comments_and_odd_spelling(tmp_path):
    text = "# a comment\n% another\n@PROBLEMNAME x\n@timestamps False\n@Univariate TRUE\n@CLASSLABEL True 1.0 2.0\n\n"
    text += "@DATA\n1,2.5,-3e-1:1.0\n# between\n\n4, ? ,NaN : 2.0"
    file = written(tmp_path / "a.ts", text.replace("\n", "\r\n"))
    expected = [(single(1, 2.5, np.float32(-0.3)), "1"), (single(4, None, None), "2")]
    assert rows(train(file)) == expected


def test_ts_of_several_channels(tmp_path):
    file = written(tmp_path / "a.ts", "@dimensions 2\n" + TS + "1,2:3,4:a\n5:?:b\n?,6:nan,?:a\n")
    assert rows(train(file)) == [([[1, 3], [2, 4]], "a"), ([[5, None]], "b"), ([[None, None], [6, None]], "a")]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (TS.replace("@data\n", ""), ["@data"]),
        (TS.replace("@data\n", "1,2:a\n"), ["line 3", "@data"]),
        (TS, ["no rows"]),
        ("@timeStamps true\n" + TS + "(0,1),(1,2):a\n", ["time stamps"]),
        ("@classLabel false\n@data\n1,2\n", ["class labels"]),
        ("@targetlabel true\n@data\n1,2:0.5\n", ["class labels"]),
        ("@classLabel\n@data\n1,2:a\n", ["class labels"]),
    ],
)
def test_ts_that_cannot_be_used(tmp_path, text, parts):
    file = written(tmp_path / "a.ts", text)
    says(file, *parts)
    says(file, *parts, skipped=[])


# .tsv


@pytest.mark.parametrize("mark", ["\t", ",", " ", "   ", ", "])
def test_tsv_marks_between_values(tmp_path, mark):
    file = written(tmp_path / "a.tsv", "1 2 -3.5e1\nwave 4 5\n".replace(" ", mark))
    assert rows(train(file)) == [(single(2, -35), "1"), (single(4, 5), "wave")]


def test_tsv_rows_end_where_values_end(tmp_path):
    text = "1\tNaN\t2\tNaN\t3\tNaN\tnan\n2\t1\t2\t3\t4\t5\t6\n3\t1\t2\t\t\t\t\n4\t?\t2\t?\n\n5,1,2,,\n"
    assert rows(train(written(tmp_path / "a.tsv", text))) == [
        (single(None, 2, None, 3), "1"),
        (single(1, 2, 3, 4, 5, 6), "2"),
        (single(1, 2), "3"),
        (single(None, 2), "4"),
        (single(1, 2), "5"),
    ]


@pytest.mark.parametrize(
    ("written_as", "name"),
    [
        ("1", "1"),
        ("1.0", "1"),
        ("-1", "-1"),
        ("-1.000", "-1"),
        ("1.0000000e+00", "1"),
        ("007", "007"),
        ("1e5", "1e5"),
        ("0.5", "0.5"),
        ("go left", "go left"),
        ("v1.0", "v1.0"),
    ],
)
def test_label_names(tmp_path, written_as, name):
    assert train(written(tmp_path / "a.tsv", f"{written_as}\t1\t2\n")).labels == [name]


def test_old_columns_begin_with_spaces(tmp_path):
    text = "   1.0000000e+00  -7.5e-01   2.0e+00\n"
    assert rows(train(written(tmp_path / "a.tsv", text))) == [(single(-0.75, 2), "1")]


# .arff


def test_arff_of_one_channel(tmp_path):
    text = "% a comment\n@RELATION 'a b'\n@ATTRIBUTE 'step 0' NUMERIC\n@attribute\tstep1\treal\n@Attribute s2 Integer\n"
    text += (
        "@ATTRIBUTE class {1.0, 'to the left', \"it's, so\"}\n\n@DATA\n1,2,3,1\n% between\n\n?,5,NaN, 'to the left'\n"
    )
    text += '7,8.5,?,"it\'s, so"\n'
    assert rows(train(written(tmp_path / "a.arff", text))) == [
        (single(1, 2, 3), "1"),
        (single(None, 5), "to the left"),
        (single(7, 8.5), "it's, so"),
    ]


def test_arff_class_listed_without_a_space(tmp_path):
    file = written(tmp_path / "a.arff", ARFF.replace("class {a,b}", "class{a,'it\\'s'}") + "1,2,a\n1,2,'it\\'s'\n")
    assert train(file).labels == ["a", "it's"]


@pytest.mark.parametrize("quote", ["'", '"'])
def test_arff_of_several_channels(tmp_path, quote):
    text = BAG.upper().replace("{A,B}", "{a,b}") + r"'1,2,3\n4,5,6',a" + "\n" + r"'1,?,?\n?,5,?\n', 'b'" + "\n"
    file = written(tmp_path / "a.arff", text.replace("'", quote))
    assert rows(train(file)) == [([[1, 4], [2, 5], [3, 6]], "a"), ([[1, None], [None, 5]], "b")]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (ARFF.replace("@data\n", ""), ["@data"]),
        (ARFF, ["no rows"]),
        ("@relation r\n@data\n1,2\n", ["class"]),
        (ARFF.replace("{a,b}", "numeric") + "1,2,3\n", ["class"]),
        (ARFF.replace("real", "string") + "1,x,a\n", ["numeric"]),
        (ARFF.replace("@relation r", "relation r") + "1,2,a\n", ["line 1", "@"]),
    ],
)
def test_arff_that_cannot_be_used(tmp_path, text, parts):
    file = written(tmp_path / "a.arff", text)
    says(file, *parts)
    says(file, *parts, skipped=[])


# Bad rows of text


BAD = [
    (".ts", TS, "1,2:3,4:a", "1,x2:3,4:a", "'x2'"),
    (".ts", TS, "1,2:3,4:a", "1,:3,4:a", "not a number"),
    (".ts", TS, "1,2:3,4:a", "1,inf:3,4:a", "infinite"),
    (".ts", TS, "1,2:3,4:a", "1,2:3,-1e40:a", "infinite"),
    (".ts", TS, "1,2:3,4:a", "1,2:3:a", "differ in length"),
    (".ts", TS, "1,2:3,4:a", "1,2::a", "differ in length"),
    (".ts", TS, "1,2:3,4:a", "1,2:a", "1 channels, not 2"),
    (".ts", TS, "1,2:3,4:a", "1,2:3,4:5,6:a", "3 channels, not 2"),
    (".ts", TS, "1,2:3,4:a", "?,?:NaN,?:a", "missing"),
    (".ts", TS, "1,2:3,4:a", ":a", "no values"),
    (".ts", TS, "1,2:3,4:a", "1,2:3,4:", "label is missing"),
    (".ts", TS, "1,2:3,4:a", "1,2:3,4:?", "label is missing"),
    (".ts", TS, "1,2:3,4:a", "1,2", "label is missing"),
    (".ts", TS, "1,2:3,4:a", "1,2:3,4:c", "'c'"),
    (".ts", TS, "1,2:3,4:a", "1,2:3,4", "'3,4'"),
    (".ts", TS, "1,2:3,4:a", "1,2:" + "3," * 999, "listed"),
    (".ts", "@univariate true\n" + TS, "1,2:a", "1,2:3,4:a", "2 channels, not 1"),
    (".ts", "@dimensions 2\n" + TS, "1,2:3,4:a", "1,2:a", "1 channels, not 2"),
    (".tsv", "", "1\t2\t3", "1\t2\tthree", "'three'"),
    (".tsv", "", "1\t2\t3", "1\t2\t" + "x" * 999, "not a number"),
    (".tsv", "", "1\t2\t3", "1\t2,5\t3", "'2,5'"),
    (".tsv", "", "1\t2\t3", "1\t\t3", "not a number"),
    (".tsv", "", "1\t2\t3", "1\t-inf\t3", "infinite"),
    (".tsv", "", "1\t2\t3", "1\tNaN\tNaN", "missing"),
    (".tsv", "", "1\t2\t3", "1", "no values"),
    (".tsv", "", "1\t2\t3", "1\t\t", "no values"),
    (".tsv", "", "1\t2\t3", "\t2\t3", "label is missing"),
    (".tsv", "", "1\t2\t3", "NaN\t2\t3", "label is missing"),
    (".tsv", "", "1,2,3", ",2,3", "label is missing"),
    (".arff", ARFF, "1,2,a", "1,two,a", "'two'"),
    (".arff", ARFF, "1,2,a", "1,Infinity,a", "infinite"),
    (".arff", ARFF, "1,2,a", "?,?,a", "missing"),
    (".arff", ARFF, "1,2,a", "a", "no values"),
    (".arff", ARFF, "1,2,a", "1,2,?", "label is missing"),
    (".arff", ARFF, "1,2,a", "1,2,", "label is missing"),
    (".arff", ARFF, "1,2,a", "1,2,''", "label is missing"),
    (".arff", ARFF, "1,2,a", "1,2,c", "'c'"),
    (".arff", ARFF, "1,2,a", "1,a", "1 values for 2"),
    (".arff", ARFF, "1,2,a", "1,2,3,a", "3 values for 2"),
    (".arff", BAG, r"'1,2\n3,4',a", r"'1,2\n3,four',a", "'four'"),
    (".arff", BAG, r"'1,2\n3,4',a", r"'1,2\n3',a", "differ in length"),
    (".arff", BAG, r"'1,2\n3,4',a", r"'1,2',a", "1 channels, not 2"),
    (".arff", BAG, r"'1,2\n3,4',a", r"'?,?\n?,?',a", "missing"),
    (".arff", BAG, r"'1,2\n3,4',a", r"'',a", "no values"),
    (".arff", BAG, r"'1,2\n3,4',a", r"'1,2\n3,4',c", "'c'"),
    (".arff", BAG, r"'1,2\n3,4',a", r"'1,2\n3,4'", "label is missing"),
    (".arff", BAG, r"'1,2\n3,4',a", r"1,2\n3,4,a", "not in quotes"),
]


@pytest.mark.parametrize(("ending", "header", "good", "bad", "reason"), BAD)
def test_bad_rows_of_text(tmp_path, ending, header, good, bad, reason):
    file = written(tmp_path / f"rows{ending}", f"{header}{good}\n\n{bad}\n{good}\n{bad}\n")
    lines = [header.count("\n") + 3, header.count("\n") + 5]
    says(file, f"line {lines[0]}:", reason)
    skipped = []
    kept = rows(train(file, skipped))
    assert len(kept) == 2 and kept[0] == kept[1] == rows(train(written(tmp_path / f"good{ending}", header + good)))[0]
    assert len(skipped) == 2
    for line, message in zip(lines, skipped, strict=True):
        assert str(file) in message and f"line {line}:" in message and reason in message and "\n" not in message
        assert len(message) < len(str(file)) + 120


@pytest.mark.parametrize("header", ["@univariate true\n@dimensions 3\n", "@dimensions 1\n", "@Dimension 1\n"])
def test_the_header_of_ts_says_how_many_channels(tmp_path, header):
    file = written(tmp_path / "a.ts", header + "@classLabel true a b\n@data\n1:2:a\n1:b\n")
    says(file, "line", "2 channels, not 1")
    assert train(file, []).labels == ["b"]


def test_a_file_of_bad_rows_is_an_error_in_any_case(tmp_path):
    skipped = []
    says(written(tmp_path / "a.tsv", "1\tx\n2\ty\n"), "line 2", "'y'", skipped=skipped)
    assert len(skipped) == 2


def test_bad_rows_of_every_split_are_told(tmp_path):
    file = written(tmp_path / "a_TRAIN.tsv", "1\t2\n1\tx\n")
    written(tmp_path / "a_TEST.tsv", "1\ty\n1\t2\n")
    skipped = ["before"]
    splits = read_series(file, Options(skipped))
    assert [len(series.labels) for series in splits.values()] == [1, 1]
    assert [["_TRAIN.tsv, line 2" in text, "_TEST.tsv, line 1" in text] for text in skipped[1:]] == [[1, 0], [0, 1]]


# Files that are no such thing


@pytest.mark.parametrize("ending", [".ts", ".tsv", ".arff", ".npz"])
@pytest.mark.parametrize(
    "content",
    [b"", b"\n \n", bytes(range(256)) * 4, b"\xff\xfe1\x002\x00", b"rubbish", b"PK\x03\x04rubbish", b"\x89PNG\r\n\xfe"],
)
def test_rubbish(tmp_path, ending, content):
    file = written(tmp_path / f"rubbish{ending}", content)
    says(file)
    says(file, skipped=[])


@pytest.mark.parametrize("ending", [".ts", ".tsv", ".arff"])
def test_what_is_wrong_with_rubbish(tmp_path, ending):
    says(written(tmp_path / f"a{ending}", b""), "empty")
    says(written(tmp_path / f"a{ending}", "1\t2\n".encode("utf-16")), "not a text file")


def test_text_need_not_be_utf8(tmp_path):
    for encoding in ("utf-8", "utf-8-sig", "latin-1"):
        file = written(tmp_path / "a.tsv", "né\t1\t2\n".encode(encoding))
        assert rows(train(file)) == [(single(1, 2), "né")], encoding


def test_only_line_ends_end_lines(tmp_path):
    file = written(tmp_path / "a.tsv", "a\x0bb\u2028c\t1\t2\rb\t3\t4\r\nc\t5\t6\nd\tx")
    assert train(file, []).labels == ["a\x0bb\u2028c", "b", "c"]
    says(file, "line 4")


def test_no_such_file(tmp_path):
    says(tmp_path / "none.tsv", "No such file")
    says(tmp_path / "nowhere" / "none.npz", "No such file")
    written(tmp_path / "a_TRAIN.tsv", "1\t2\n")
    says(tmp_path / "a_TEST.tsv", "No such file")
    says(written(tmp_path / "a.csv", "1,2\n"), ".tsv")


# Which files are read


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
    folder = filled(tmp_path / "folder", "a.txt", "b.csv")
    (folder / "one" / "c.tsv").mkdir(parents=True)
    assert not is_series(folder) and not is_series(folder / "a.txt") and not is_series(tmp_path / "none")
    assert is_series(tmp_path / "none.ARFF"), "by name only"
    filled(folder, "a.npz")
    assert is_series(folder) and is_series(str(folder / "a.npz"))


# The archives' own files


UNIVARIATE = {  # steps; rows of each class, in the order of their names, of train and test
    "ArrowHead": (251, [12, 12, 12], [69, 53, 53]),
    "ECG200": (96, [31, 69], [36, 64]),
    "GunPoint": (150, [24, 26], [76, 74]),
    "ItalyPowerDemand": (24, [34, 33], [513, 516]),
    "MoteStrain": (84, [10, 10], [675, 577]),
    "Plane": (144, [15, 14, 9, 16, 13, 18, 20], [15, 16, 21, 14, 17, 12, 10]),
    "SyntheticControl": (60, [50] * 6, [50] * 6),
    "Trace": (275, [26, 21, 22, 31], [24, 29, 28, 19]),
    "TwoLeadECG": (82, [12, 11], [569, 570]),
    "UMD": (150, [12, 12, 12], [48, 48, 48]),
}
MULTIVARIATE = {  # channels, steps, rows of train and test, classes
    "BasicMotions": (6, (100, 100), 40, 40, ["Badminton", "Running", "Standing", "Walking"]),
    "JapaneseVowels": (12, (7, 29), 270, 370, list("123456789")),
    "UWaveGestureLibrary": (3, (315, 315), 120, 320, list("12345678")),
}
needs_archive = pytest.mark.skipif(not UCR.is_dir(), reason="the UCR and UEA archives' files are not there")


@needs_archive
@pytest.mark.parametrize("name", UNIVARIATE)
def test_sets_of_the_ucr_archive(name):
    steps, *counts = UNIVARIATE[name]
    splits = read_series(UCR / name, Options())
    assert list(splits) == ["train", "test"]
    for (split, series), expected in zip(splits.items(), counts, strict=True):
        assert {row.shape for row in series.rows()} == {(steps, 1)}
        table = np.loadtxt(UCR / name / f"{name}_{split.upper()}.tsv", dtype=np.float32)  # a reader of its own
        assert np.array_equal(np.stack(series.rows())[:, :, 0].astype(np.float32), table[:, 1:])
        assert [int(label) for label in series.labels] == table[:, 0].tolist()
        assert [count for _, count in sorted(Counter(series.labels).items())] == expected


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


def test_arrays_of_no_known_split_are_named(tmp_path):
    np.savez(tmp_path / "data.npz", X=ONES, y=[0] * len(ONES), X_holdout=ONES, y_holdout=[0] * len(ONES))
    says(tmp_path / "data.npz", "data.npz", "X_holdout")
    np.savez(tmp_path / "data.npz", X=ONES, y=[0] * len(ONES), X_Test=ONES, y_Test=[1] * len(ONES))
    assert set(read_series(tmp_path / "data.npz", Options())["test"].labels) == {"1"}


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


# Sizes that the header announces, and files cut short


EQUAL = "@univariate true\n@classLabel true a b\n"


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("@equalLength true\n", "1,2:b"),
        ("@equalLength true\n", "1,2,3,4:b"),
        ("@equalLength true\n@seriesLength 3\n", "1,2:b"),
        ("@seriesLength 3\n", "1,2:b"),
        ("@EQUALLENGTH TRUE\n@SERIESLENGTH 3\n", "1,2,3,4:b"),
    ],
)
def test_ts_rows_have_the_length_that_is_announced(tmp_path, header, row):
    file = written(tmp_path / "a.ts", f"{EQUAL}{header}@data\n1,2,3:a\n{row}\n4,5,6:b\n")
    line = EQUAL.count("\n") + header.count("\n") + 3
    says(file, f"line {line}:", f"it has {row.count(',') + 1} steps, not 3")
    left_out = []
    assert train(file, left_out).labels == ["a", "b"] and len(left_out) == 1


def test_ts_of_the_wrong_length_altogether(tmp_path):
    says(written(tmp_path / "a.ts", f"{EQUAL}@equalLength true\n@seriesLength 4\n@data\n1,2,3:a\n"), "3 steps, not 4")


@pytest.mark.parametrize("header", ["", "@equalLength false\n", "@equalLength false\n@seriesLength 9\n"])
def test_ts_rows_may_differ_in_length(tmp_path, header):
    file = written(tmp_path / "a.ts", f"{EQUAL}{header}@data\n1,2,3:a\n1,2:b\n")
    assert train(file).lengths.tolist() == [3, 2]


@pytest.mark.parametrize("mark", ["\t", ",", " "])
def test_a_tsv_cut_in_its_last_line_is_an_error(tmp_path, mark):
    whole = "a 1 2 3\nb 4 5 6\na 7 8 9".replace(" ", mark)
    assert train(written(tmp_path / "a.tsv", whole)).labels == ["a", "b", "a"]  # no line end at the end, and whole
    file = written(tmp_path / "a.tsv", whole[:-2])
    says(file, "line 3: it is cut short: 3 fields, 4 on the lines before")
    left_out = []
    assert train(file, left_out).labels == ["a", "b"] and len(left_out) == 1


def test_tsv_rows_of_unequal_length_are_not_taken_for_cut(tmp_path):
    assert train(written(tmp_path / "a.tsv", "a\t1\t2\t3\nb\t4\t5\na\t7")).lengths.tolist() == [3, 2, 1]
    assert train(written(tmp_path / "a.tsv", "a\t1\t2\t3\nb\t4\t5\n")).lengths.tolist() == [3, 2]


@pytest.mark.parametrize(
    "row", ["1," + " " * 300_000 + "x,", " " * 300_000 + "1,2", "1" + " " * 300_000 + "b", "1,'" + "\\'" * 150_000]
)
def test_an_arff_row_of_blanks_is_read_in_no_time(tmp_path, row):
    file = written(
        tmp_path / "a.arff", f"@relation r\n@attribute s real\n@attribute c {{a,b}}\n@data\n1,a\n{row}\n2,b\n"
    )
    begun, left_out = time.monotonic(), []
    assert train(file, left_out).labels == ["a", "b"] and len(left_out) == 1
    assert time.monotonic() - begun < 5, "it took minutes"


def test_the_name_of_a_link_says_what_it_leads_to(tmp_path):
    saved(tmp_path / "data.npz", X=ONES, y=[1, 2]).rename(tmp_path / "blob")
    (tmp_path / "link.npz").symlink_to("blob")
    assert is_series(tmp_path / "link.npz") and train(tmp_path / "link.npz").labels == ["1", "2"]
