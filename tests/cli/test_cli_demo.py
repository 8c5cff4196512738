"""`rankcode demo`."""

import json

from rankcode.cli.main import main


def test_demo_writes_a_page_that_stands_alone(tmp_path, capsys):
    folder = tmp_path / "demo"
    main(["demo", "--folder", str(folder), "--examples", "640", "--hidden-size", "4", "--test-rows", "200"])
    text = capsys.readouterr().out
    assert "rank-coded" in text and "at the end" in text and str(folder / "report.html") in text
    page = (folder / "report.html").read_text()
    assert page.count("<svg") == 3 and "optimal stopping" in page
    assert not any(outside in page for outside in ("<script", "<link", 'src="http', "@import"))
    records = (folder / "rank-coded" / "metrics.jsonl").read_text().splitlines()
    assert all(len(json.loads(line)["first_spike"]["steps_histogram"]) <= 40 for line in records)
