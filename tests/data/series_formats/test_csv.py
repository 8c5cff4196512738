"""Tables in .csv files: both forms, which columns are what, headers, separators, and hostile content."""

import numpy as np
import pandas
import pytest

from rankcode.data.series import Options
from rankcode.data.series_files import read_rows, read_series
from rankcode.data.series_formats.csv import read_csv
from rankcode.data.sources import BadData
from series_data import bad_row, peak_of, rows, says, single, train, written

WIDE = "label,t0,t1,t2\n"
LONG = "id,time,x,y,label\n"


@pytest.mark.parametrize("mark", [",", ";", "\t", ", "])
def test_wide_form(tmp_path, mark):
    text = WIDE + 'up,1,-2.5e1,3\n"no, down",4,?,6\nup,7,NA,\n'
    series = train(written(tmp_path / "a.csv", text.replace(",", mark).replace(f'"no{mark}', '"no,')))
    expected = [(single(1, -25, 3), "up"), (single(4, None, 6), "no, down"), (single(7), "up")]
    assert [(values, " ".join(label.split())) for values, label in rows(series)] == expected
    assert series.places == ["row 1", "row 2", "row 3"]
    assert str(series.columns) == "wide form, a row for each series; label column 'label' (guessed)"


def test_long_form_is_sorted_by_time(tmp_path):
    text = LONG + "b,10,1,2,up\na,0,3,4,down\nb,9,5,6,up\nb,-1.5,7,,up\n"
    series = train(written(tmp_path / "a.csv", text))
    assert rows(series) == [([[7, None], [5, 6], [1, 2]], "up"), ([[3, 4]], "down")]
    assert series.places == ["id b", "id a"]
    expected = "long form with id 'id', time 'time' and values 'x', 'y'; label column 'label' (guessed)"
    assert str(series.columns) == expected


def test_long_form_with_dates(tmp_path):
    times = ["2024-03-01", "2024-02-28T23:59:59.999999", "2024-02-29 12:00Z", "2024-02-29T13:30+02:00"]
    lines = "".join(f"1,{time},{place},a\n" for place, time in enumerate(times))
    assert rows(train(written(tmp_path / "a.csv", "series_id,Timestamp,x,Class\n" + lines))) == [
        (single(1, 3, 2, 0), "a")
    ]


@pytest.mark.parametrize("name", ["id", "ID", "series", "series_id", "Case_ID"])
def test_an_id_without_repetition_names_the_rows_of_wide_form(tmp_path, name):
    file = written(tmp_path / "a.csv", f"{name},a,b,label\nr1,1,2,x\nr2,3,4,y\n")
    assert rows(train(file)) == [(single(1, 2), "x"), (single(3, 4), "y")] and train(file).places == ["id r1", "id r2"]
    says(written(tmp_path / "a.csv", f"{name},a,b,label\nr1,1,2,x\nr1,3,4,x\n"), "long form", "no column time")


@pytest.mark.parametrize(
    ("header", "label"),
    [
        ("LABEL,a,b", "LABEL"),
        ("a,b,Class", "Class"),
        ("a,Target,b", "Target"),
        ("y,a,b", "y"),
        ("x,y,label", "label"),
    ],
)
def test_the_label_is_guessed_from_its_name(tmp_path, header, label):
    series = train(written(tmp_path / "a.csv", header + "\n1,0,1\n0,1,0\n"))
    assert series.columns is not None and (series.columns.label, series.columns.guessed) == (label, True)
    assert series.labels == [str(each[header.split(",").index(label)]) for each in ([1, 0, 1], [0, 1, 0])]


@pytest.mark.parametrize(
    ("lines", "label"),
    [
        (["up,0.5,1", "down,1,1", "up,1,0"], "column 1"),
        (["0.5,1,up", "1,1,down", "1,0,up"], "column 3"),
        (["1,0.5,7", "2,.5,7", "1,1,7", "2,2,7"], "column 1"),
        (["-.5,.1,3.0", "1,.5,4", "1,1,3", "1,1,4"], "column 3"),
        (["1,512,509", "2,533,501", "1,505,502", "2,507,506"], "column 1"),  # whole numbers, but many
    ],
)
def test_the_label_is_guessed_from_the_content_of_the_first_or_last_column(tmp_path, lines, label):
    place = int(label[-1]) - 1
    for header in ("", "p,q,r\n"):
        series = train(written(tmp_path / "a.csv", header + "\n".join(lines)))
        assert series.columns is not None and series.columns.guessed
        assert series.columns.label == ("pqr"[place] if header else label)
        assert series.labels == [line.split(",")[place].removesuffix(".0") for line in lines]
        assert series.lengths.tolist() == [2] * len(lines)
        values = [[float(v) for v in np.delete(line.split(","), place)] for line in lines]
        assert np.array_equal(np.stack(series.rows())[:, :, 0], values)


@pytest.mark.parametrize("lines", [["0,1,1", "1,0,0", "0,0,1", "1,1,0"], ["0.5,1.5,2.5", "0.1,0.2,0.3"]])
def test_a_label_that_cannot_be_guessed_is_asked_for(tmp_path, lines):
    file = written(tmp_path / "a.csv", "p,q,r\n" + "\n".join(lines))
    says(file, "which column holds the labels: label=… names it; its columns are 'p', 'q', 'r'")
    series = read_series(file, Options(label="q"))["train"]
    assert series.labels == [line.split(",")[1] for line in lines] and str(series.columns).endswith("label column 'q'")


def test_a_named_label_wins_over_other_candidates(tmp_path):
    file = written(tmp_path / "a.csv", "label,class,x\n1,0,0.5\n0,1,0.25\n")
    says(file, "'label' and 'class' could both be the label", "label=…")
    series = read_series(file, Options(label="class"))["train"]
    assert rows(series) == [(single(1, 0.5), "0"), (single(0, 0.25), "1")]
    with pytest.raises(BadData, match="it has no column 'Klasse'; its columns are 'label', 'class', 'x'"):
        read_series(file, Options(label="Klasse"))
    with pytest.raises(BadData, match="2 of its columns are called 'x'"):
        read_series(written(tmp_path / "b.csv", "x,x,z\n1,2,3\n"), Options(label="x"))


@pytest.mark.parametrize(
    ("header", "kept"),
    [
        ("label,0,1,2,3,4,5,6,7", 1),
        ("up,1,2,3,4,5,6,7,8", 1),
        (",label,b,c,d,e,f,g,h", 1),
        ("up,1,2,3,4,5,6,7,9", 2),
        ("up,5,6,7,8,9,10,11,12", 2),
    ],
)
def test_a_header_is_recognised(tmp_path, header, kept):
    text = header + "\n" + "up,1.5,1,1,1,1,1,1,1\n".replace("up", "3,up" if header[0] == "," else "up")
    text = text.replace(",1\n", "\n") if header[0] == "," else text
    series = train(written(tmp_path / "a.csv", text))
    assert series.labels == ["up"] * kept and series.lengths.tolist() == [7 if header[0] == "," else 8] * kept


def test_the_index_of_pandas_is_not_a_step(tmp_path):
    frame = pandas.DataFrame({"class": ["a", "b"], "0": [1.0, 2.0], "1": [3.0, None]})
    for index in (False, True):
        frame.to_csv(tmp_path / "a.csv", index=index)
        assert rows(train(tmp_path / "a.csv")) == [(single(1, 3), "a"), (single(2), "b")]
        frame.to_parquet(tmp_path / "a.parquet", index=index)
        assert rows(train(tmp_path / "a.parquet")) == [(single(1, 3), "a"), (single(2), "b")]


def test_bom_and_line_ends(tmp_path):
    content = b"\xef\xbb\xbfLabel,a,b\r\nn\xc3\xa4h,1,2\r\n\r\nfern,3,4"
    assert rows(train(written(tmp_path / "a.csv", content))) == [(single(1, 2), "näh"), (single(3, 4), "fern")]


def test_splits_in_a_column(tmp_path):
    wide = written(tmp_path / "a.csv", "label,x,split\na,1,train\nb,2,Test\na,3,val\nb,4,training\n")
    long = written(tmp_path / "b.csv", LONG.strip() + ",split\n" + "1,0,1,2,a,dev\n2,0,1,2,b,train\n1,1,1,2,a,dev\n")
    assert {split: series.labels for split, series in read_series(wide, Options()).items()} == {
        "train": ["a", "b"],
        "validation": ["a"],
        "test": ["b"],
    }
    found = read_series(long, Options())
    assert {split: series.lengths.tolist() for split, series in found.items()} == {"train": [1], "validation": [2]}
    says(written(tmp_path / "a.csv", "label,x,split\na,1,hold\n"), "line 2", "its split 'hold' is none of train")
    says(written(tmp_path / "b.csv", LONG.strip() + ",split\n1,0,1,2,a,dev\n1,1,1,2,a,test\n"), "two splits", "id '1'")


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("a,1,x,3", "not a number: 'x' in column 't1'"),
        ("a,1," + "x" * 999 + ",3", "not a number"),
        ('a,1,"2,5",3', "'2,5' has a decimal comma"),
        ("a,1,inf,3", "infinite"),
        ("a,,NaN,", "values are missing"),
        ("a,1,2", "number of its fields is 3, not 4"),
        ("a,1,2,3,4", "number of its fields is 5, not 4"),
        (",1,2,3", "label is missing"),
    ],
)
def test_bad_rows_of_wide_form(tmp_path, bad, reason):
    bad_row(tmp_path, ".csv", WIDE, "a,1,2,3", bad, reason)


@pytest.mark.parametrize(
    ("lines", "parts"),
    [
        ("2,0,1,x,b", ["line 3: not a number: 'x' in column 'y'"]),
        ("2,0,1,2,b\n2,1,1", ["line 4: the number of its fields"]),
        ("2,0,1,2,b\n2,1,1,2,c", ["it has two labels in column 'label', 'b' and 'c'"]),
        (
            "2,1700000000.25,1,2,b\n2,3,1,2,b\n2,17e8,1,2,b\n2,1.70000000025e9,1,2,b",
            ["time 1700000000.25 occurs twice, in line 3 and line 6"],
        ),
        ("2,,1,2,b", ["line 3: its time is missing"]),
        ("2,now,1,2,b", ["line 3: its time 'now' is not a number"]),
        ("2,0,,,b\n2,1,,,b", ["values are missing"]),
        ("2,0,1,2,", ["label is missing"]),
        (",0,1,2,b", ["line 3: its id is missing"]),
    ],
)
def test_bad_series_of_long_form(tmp_path, lines, parts):
    file = written(tmp_path / "a.csv", f"{LONG}1,0,1,2,a\n{lines}\n3,0,5,6,b\n")
    says(file, f"id '{lines.split(',')[0]}': ", *parts)
    skipped = []
    assert rows(train(file, skipped)) == [([[1, 2]], "a"), ([[5, 6]], "b")] and len(skipped) == 1


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ["empty"]),
        ("\n \n", ["empty"]),
        (WIDE, ["no rows"]),
        (LONG, ["no rows"]),
        ("label\na\n", ["line 1", "separated by commas"]),
        ("label,id\na,1\n", ["no column of values"]),
        ("id,time,x\n1,0,2\n1,1,2\n", ["which column holds the labels"]),
        ("time,x,label\n0,2,a\n", ["'time' looks like the time of long form"]),
        ("id,date,time,x,label\n1,2,3,4,a\n", ["'date' and 'time' could both be the time"]),
        ("id,time,x,label\n1,31.12.2024,4,a\n", ["'31.12.2024' is neither a number nor an ISO date"]),
        ('label,x\na,"1\n' + "2\n" * 100_000, ["field larger than field limit"]),
        ("label,x\na,\0\n", ["not a text file"]),
    ],
)
def test_files_that_cannot_be_used(tmp_path, text, parts):
    says(written(tmp_path / "a.csv", text), *parts)


def test_a_hundred_thousand_columns(tmp_path):
    header = ",".join(f"t{step}" for step in range(100_000))
    line = ",".join(["0.5"] * 100_000)
    series = train(written(tmp_path / "a.csv", f"kind,{header}\n" + f"a,{line}\nb,{line}\n"))
    assert series.lengths.tolist() == [100_000] * 2 and series.labels == ["a", "b"]
    says(written(tmp_path / "a.csv", f"{header}\n{line}\n"), "which column holds the labels", "'t4', …")


@pytest.mark.parametrize("form", ["wide", "long"])
def test_memory_is_bounded_by_the_values(tmp_path, form):
    text = "1.23456789012345,-2.23456789012345,"
    if form == "wide":
        file = written(tmp_path / "a.csv", f"label,{'t,' * 99}t\n" + f"a,{text * 49}1.5,2.5\n" * 2_000)
        values, overhead = 200_000 * 8, 2_000 * 500
    else:
        lines = (f"{step % 100},{step}.25,{text}a\n" for step in range(50_000))
        file = written(tmp_path / "a.csv", LONG + "".join(lines))
        values, overhead = 100_000 * 8, 50_000 * 80  # times, lines, ids and labels
    assert peak_of(lambda: read_csv(file, Options())) < 2.2 * values + overhead


def test_rows_to_predict_on(tmp_path):
    def found(text, **options):
        options = {"channels": 1} | options
        return [
            (place, row.tolist()) for place, row in read_rows(written(tmp_path / "n.csv", text), Options(**options))
        ]

    both = [("row 1", single(1, 2)), ("row 2", single(3, 4))]
    assert found("gesture,a,b\nup,1,2\n,3,4\n", label="gesture") == both
    assert found("a,b\n1,2\n3,4\n", label="gesture") == both
    assert found("1,2\n3,4\n", label="gesture") == both
    assert found("label,a,b\nup,1,2\n,3,4\n") == both  # of a network that was not trained on a table
    assert found("up,1,2\nup,3,4\n") == both
    assert found("a,label,b\n1,9,2\n3,9,4\n", label="gesture")[0] == ("row 1", single(1, 9, 2))
    long = "y,time,id,x\n2,1,7,1\n4,0,7,3\n6,0,8,5\n"
    known = {"channels": 2, "label": "gesture", "channel_names": ("x", "y")}
    assert found(long, **known) == [("id 7", [[3, 4], [1, 2]]), ("id 8", [[5, 6]])]
    extra = "y,time,id,x,note,split\n2,1,7,1,text,\n4,0,7,3,text,hold\n6,0,8,5,,\n"
    assert found(extra, **known) == found(long, **known)


def test_the_test_file_has_the_columns_of_the_training_file_in_any_order(tmp_path):
    file = written(tmp_path / "a_TRAIN.csv", LONG + "1,0,1,2,a\n2,0,3,4,b\n")
    written(tmp_path / "a_TEST.csv", "label,y,x,time,id\nb,6,5,0,9\n")
    splits = read_series(file, Options())
    assert rows(splits["test"]) == [([[5, 6]], "b")]
    written(tmp_path / "a_TEST.csv", "class,y,x,time,id\nb,6,5,0,9\n")
    with pytest.raises(BadData, match=r"a_TEST\.csv: it has no column 'label'"):
        read_series(file, Options())
