"""The page of the reproduction."""

import json

from rankcode.experiments.page import write_page

NUMBERS = [
    {"what": "accuracy", "paper": 98.14, "ours": 97.5, "unit": "%", "spread": 0.2, "note": ""},
    {"what": "lost", "paper": None, "ours": None, "unit": "steps", "spread": None, "note": "never fired"},
]


def test_the_page_has_a_section_for_each_figure_there_is(tmp_path):
    data = [{"task": "digits", "rows": 4000, "fingerprint": "1f"}, {"task": "two-sequence", "rows": 5}]
    found = {"title": "Table 1", "scale": "quick", "data": data, "text": "What was found.", "figure": False}
    (tmp_path / "results" / "table1").mkdir(parents=True)
    (tmp_path / "results" / "table1" / "numbers.json").write_text(json.dumps({**found, "numbers": NUMBERS}))
    write_page(tmp_path / "results", tmp_path / "docs" / "page.md")
    text = (tmp_path / "docs" / "page.md").read_text()
    assert "## Table 1" in text and "| accuracy | 98.14 % | 97.50 % ± 0.20 |  |" in text and "Fig. 2" not in text
    assert "| lost |  |  | never fired |" in text and "![" not in text
    assert "Made by `rankcode reproduce table1 --scale quick` (small networks, short training)." in text
    assert "digits, 4,000 test rows, fingerprint `1f`; two-sequence, 5 test rows, generated.\n\nWhat was found." in text
    assert "Not made yet: fig1, fig2, fig3, fig4" in text
