import numpy as np
import pytest

from series_data import bad_row, rows, says, single, train, written

TS = "@classLabel true a b\n@data\n"


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
        (TS.replace("@data\n", "1,2:a\n"), ["line 2", "@data"]),
        (TS, ["no rows"]),
        ("@timeStamps true\n" + TS + "(0,1),(1,2):a\n", ["time stamps"]),
        ("@classLabel false\n@data\n1,2\n", ["class labels"]),
        ("@targetlabel true\n@data\n1,2:0.5\n", ["class labels"]),
        ("@classLabel\n@data\n1,2:a\n", ["class labels"]),
    ],
)
def test_ts_that_cannot_be_used(tmp_path, text, parts):
    says(written(tmp_path / "a.ts", text), *parts, skipped=[])


@pytest.mark.parametrize(
    ("header", "good", "bad", "reason"),
    [
        ("", "1,2:3,4:a", "1,x2:3,4:a", "'x2'"),
        ("", "1,2:3,4:a", "1,:3,4:a", "not a number"),
        ("", "1,2:3,4:a", "1,2:3,-1e40:a", "infinite"),
        ("", "1,2:3,4:a", "1,2::a", "differ in length"),
        ("", "1,2:3,4:a", "1,2:3,4:5,6:a", "3 channels, not 2"),
        ("", "1,2:3,4:a", "?,?:NaN,?:a", "missing"),
        ("", "1,2:3,4:a", ":a", "no values"),
        ("", "1,2:3,4:a", "1,2:3,4:", "label is missing"),
        ("", "1,2:3,4:a", "1,2:3,4:?", "label is missing"),
        ("", "1,2:3,4:a", "1,2", "label is missing"),
        ("", "1,2:3,4:a", "1,2:3,4", "'3,4'"),
        ("", "1,2:3,4:a", "1,2:" + "3," * 999, "listed"),
        ("@univariate true\n", "1,2:a", "1,2:3,4:a", "2 channels, not 1"),
        ("@univariate true\n@dimensions 3\n", "1,2:a", "1,2:3,4:a", "2 channels, not 1"),
        ("@Dimension 2\n", "1,2:3,4:a", "1,2:a", "1 channels, not 2"),
        ("@equalLength true\n", "1,2,3:a", "1,2:b", "2 steps, not 3"),
        ("@equalLength true\n", "1,2,3:a", "1,2,3,4:b", "4 steps, not 3"),
        ("@seriesLength 3\n", "1,2,3:a", "1,2:b", "2 steps, not 3"),
        ("@EQUALLENGTH TRUE\n@SERIESLENGTH 3\n", "1,2,3:a", "1,2,3,4:b", "4 steps, not 3"),
    ],
)
def test_bad_rows(tmp_path, header, good, bad, reason):
    bad_row(tmp_path, ".ts", header + TS, good, bad, reason)


def test_ts_of_the_wrong_length_altogether(tmp_path):
    says(written(tmp_path / "a.ts", f"@equalLength true\n@seriesLength 4\n{TS}1,2,3:a\n"), "3 steps, not 4")


@pytest.mark.parametrize("header", ["", "@equalLength false\n", "@equalLength false\n@seriesLength 9\n"])
def test_ts_rows_may_differ_in_length(tmp_path, header):
    file = written(tmp_path / "a.ts", f"{header}{TS}1,2,3:a\n1,2:b\n")
    assert train(file).lengths.tolist() == [3, 2]
