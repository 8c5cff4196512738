import pytest

from series_data import rows, says, single, train, written


@pytest.mark.parametrize("ending", [".ts", ".tsv", ".arff", ".npz"])
@pytest.mark.parametrize(
    "content",
    [b"", b"\n \n", bytes(range(256)) * 4, b"\xff\xfe1\x002\x00", b"rubbish", b"PK\x03\x04rubbish", b"\x89PNG\r\n\xfe"],
)
def test_files_of_something_else(tmp_path, ending, content):
    file = written(tmp_path / f"other{ending}", content)
    says(file, *(["not a text file"] if b"\0" in content and ending != ".npz" else []), skipped=[])


def test_text_need_not_be_utf8(tmp_path):
    for encoding in ("utf-8", "utf-8-sig", "latin-1"):
        file = written(tmp_path / "a.tsv", "né\t1\t2\n".encode(encoding))
        assert rows(train(file)) == [(single(1, 2), "né")], encoding


def test_only_line_ends_end_lines(tmp_path):
    file = written(tmp_path / "a.tsv", "a\x0bb\u2028c\t1\t2\rb\t3\t4\r\nc\t5\t6\nd\tx")
    assert train(file, []).labels == ["a\x0bb\u2028c", "b", "c"]
    says(file, "line 4")
