import warnings

import pytest

from series_data import bad_row, rows, says, single, train, written


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


def test_old_columns_begin_with_spaces(tmp_path):
    text = "   1.0000000e+00  -7.5e-01   2.0e+00\n"
    assert rows(train(written(tmp_path / "a.tsv", text))) == [(single(-0.75, 2), "1")]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("1\t2\tthree", "'three'"),
        ("1\t2\t" + "x" * 999, "not a number"),
        ("1\t2,5\t3", "'2,5'"),
        ("1\t\t3", "not a number"),
        ("1\t-inf\t3", "infinite"),
        ("1\tNaN\tNaN", "missing"),
        ("1", "no values"),
        ("1\t\t", "no values"),
        ("\t2\t3", "label is missing"),
        ("NaN\t2\t3", "label is missing"),
        (",2,3", "label is missing"),
    ],
)
def test_bad_rows(tmp_path, bad, reason):
    bad_row(tmp_path, ".tsv", "", "1\t2\t3", bad, reason)


@pytest.mark.parametrize("mark", ["\t", ",", " "])
def test_a_tsv_cut_in_its_last_line_is_an_error(tmp_path, mark):
    whole = "a 1 2 3\nb 4 5 6\na 7 8 9".replace(" ", mark)
    assert train(written(tmp_path / "a.tsv", whole)).labels == ["a", "b", "a"]  # no line end at the end, and whole
    file = written(tmp_path / "a.tsv", whole[:-2])
    says(file, "line 3: it is cut short: 3 fields, 4 on the lines before")
    left_out = []
    assert train(file, left_out).labels == ["a", "b"] and len(left_out) == 1


def test_a_file_that_may_be_cut_in_its_last_number_warns(tmp_path):
    whole = "a\t1.5\t2.25\nb\t4.5\t5.75\n"
    for content in (whole[:-1], whole[:-2], whole[:-4]):
        with pytest.warns(UserWarning, match=r"a\.tsv: its last line has no line end: if the file was cut short"):
            train(written(tmp_path / "a.tsv", content))
    with warnings.catch_warnings(action="error"):
        train(written(tmp_path / "a.tsv", whole))
        train(written(tmp_path / "a.tsv", whole + "\n \n"))


def test_tsv_rows_of_unequal_length_are_not_taken_for_cut(tmp_path):
    assert train(written(tmp_path / "a.tsv", "a\t1\t2\t3\nb\t4\t5\na\t7")).lengths.tolist() == [3, 2, 1]
    assert train(written(tmp_path / "a.tsv", "a\t1\t2\t3\nb\t4\t5\n")).lengths.tolist() == [3, 2]
