import time

import pytest

from series_data import bad_row, rows, says, single, train, written

ARFF = "@relation r\n@attribute s0 numeric\n@attribute s1 real\n@attribute class {a,b}\n@data\n"


BAG = "@relation r\n@attribute bag relational\n@attribute s0 numeric\n@end bag\n@attribute class {a,b}\n@data\n"


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
    says(written(tmp_path / "a.arff", text), *parts, skipped=[])


@pytest.mark.parametrize(
    ("header", "good", "bad", "reason"),
    [
        (ARFF, "1,2,a", "1,two,a", "'two'"),
        (ARFF, "1,2,a", "1,Infinity,a", "infinite"),
        (ARFF, "1,2,a", "?,?,a", "missing"),
        (ARFF, "1,2,a", "a", "no values"),
        (ARFF, "1,2,a", "1,2,", "label is missing"),
        (ARFF, "1,2,a", "1,2,''", "label is missing"),
        (ARFF, "1,2,a", "1,2,c", "'c'"),
        (ARFF, "1,2,a", "1,a", "1 values for 2"),
        (ARFF, "1,2,a", "1,2,3,a", "3 values for 2"),
        (BAG, r"'1,2\n3,4',a", r"'1,2\n3,four',a", "'four'"),
        (BAG, r"'1,2\n3,4',a", r"'1,2\n3',a", "differ in length"),
        (BAG, r"'1,2\n3,4',a", r"'1,2',a", "1 channels, not 2"),
        (BAG, r"'1,2\n3,4',a", r"'?,?\n?,?',a", "missing"),
        (BAG, r"'1,2\n3,4',a", r"'',a", "no values"),
        (BAG, r"'1,2\n3,4',a", r"'1,2\n3,4'", "label is missing"),
        (BAG, r"'1,2\n3,4',a", r"1,2\n3,4,a", "not in quotes"),
    ],
)
def test_bad_rows(tmp_path, header, good, bad, reason):
    bad_row(tmp_path, ".arff", header, good, bad, reason)


@pytest.mark.parametrize(
    "row", ["1," + " " * 300_000 + "x,", " " * 300_000 + "1,2", "1" + " " * 300_000 + "b", "1,'" + "\\'" * 150_000]
)
def test_an_arff_row_of_blanks_is_read_in_no_time(tmp_path, row):
    header = "@relation r\n@attribute s real\n@attribute c {a,b}\n@data\n"
    file = written(tmp_path / "a.arff", f"{header}1,a\n{row}\n2,b\n")
    begun, left_out = time.monotonic(), []
    assert train(file, left_out).labels == ["a", "b"] and len(left_out) == 1
    assert time.monotonic() - begun < 5, "its time grows with the square of its length"
