"""`rankcode demo`."""

import json
from pathlib import Path

from small_data import says

from rankcode.cli.main import main


def test_demo_writes_a_page_that_stands_alone(tmp_path, capsys, coarse_limits):
    folder = tmp_path / "demo"
    main(["demo", "--folder", str(folder), "--examples", "256", "--hidden-size", "4", "--test-rows", "200"])
    text = capsys.readouterr().out
    assert "rank-coded" in text and "at the end" in text and str(folder / "report.html") in text
    page = (folder / "report.html").read_text()
    assert page.count("<svg") == 3 and "optimal stopping" in page
    assert not any(outside in page for outside in ("<script", "<link", 'src="http', "@import"))
    assert 'name="viewport"' in page and '<div class="wide"><table>' in page and ".wide { overflow-x: auto; }" in page
    records = (folder / "rank-coded" / "metrics.jsonl").read_text().splitlines()
    assert all(len(json.loads(line)["first_spike"]["steps_histogram"]) <= 40 for line in records)


def test_a_folder_with_other_files_is_left_alone():
    Path("notes").mkdir()
    Path("notes/report.html").write_text("mine")
    says(["demo", "--folder", "notes", "--examples", "64"], "notes exists and is not an empty folder", status=2)
    assert Path("notes/report.html").read_text() == "mine" and len(list(Path("notes").iterdir())) == 1
