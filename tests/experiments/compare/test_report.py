"""`report.py`: the tables and the picture of a comparison."""

from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("scipy")

from rankcode.experiments.compare.ranks import finished
from rankcode.experiments.compare.report import plot_ranks, summary, tables, write_report
from rankcode.experiments.compare.running import read_records

ROOT = Path(__file__).parents[3]


def record(method, each, seed, cost, **more):
    fixed = {"accuracy": 0.9, "earliness": 0.5, "harmonic_mean": 0.643, "area": None, "fit_seconds": 1.25}
    values = {"set": each, "method": method, "seed": seed, "alpha": 0.5, **fixed, "milliseconds": 0.125, "cost": cost}
    return {**values, **more}


RECORDS = [
    record("kernels", "A", 0, 0.1, area=0.75),
    record("kernels", "A", 1, 0.2, area=0.85),
    record("kernels", "B", 0, 0.35, area=0.9),
    record("teaser", "A", 0, 0.4),
    {"set": "B", "method": "teaser", "seed": 0, "alpha": 0.5, "left_out": "reads rows of one length only"},
]


def test_the_tables():
    text = tables(RECORDS)
    assert "| kernels | 1.00 | 0.2500 | 0.900 | 0.500 | 0.643 | 0.850 | 1.2 | 0.12 | 2 | 2 |" in text
    without_times = [{**each, "fit_seconds": None, "milliseconds": None} for each in RECORDS if "cost" in each]
    assert "| 0.643 | 0.850 |  |  | 2 | 2 |" in tables(without_times[:3])
    assert "| teaser | 2.00 | 0.4000 | 0.900 | 0.500 | 0.643 |  | 1.2 | 0.12 | 1 | 1 |" in text
    assert "| A | **0.150** | 0.400 |" in text and "| B | **0.350** | – |" in text
    assert "Not ranked" not in text
    assert "- teaser on B: reads rows of one length only (seed 0)" in text


def test_sets_that_are_not_finished_are_shown_and_not_ranked():
    other = [record("kernels", "C", 0, 0.9), record("teaser", "C", 0, 1.9, alpha=0.1)]  # teaser at another α only
    text = tables([*[{**each, "alpha": alpha} for each in RECORDS for alpha in (0.1, 0.5)], *other])
    assert "| kernels | 1.00 | 0.2500 |" in text and "| C | **0.900** | – |" in text
    assert "Not ranked, because not every method has been run: C." in text


def test_the_picture_names_every_method(tmp_path):
    write_report(RECORDS, tmp_path)
    assert (tmp_path / "ranks.png").read_bytes()[:4] == b"\x89PNG" and "teaser" in (tmp_path / "table.md").read_text()
    (axes,) = plot_ranks(RECORDS).axes
    shown = {text.get_text() for text in axes.texts}
    assert {"kernels  1.00", "2.00  teaser", "1", "2"} <= shown


def test_the_page_has_the_kept_results():
    records = read_records(ROOT / "results" / "compare" / "results.jsonl")
    page = (ROOT / "docs" / "compare.md").read_text()
    assert (ROOT / "results" / "compare" / "table.md").read_text() == tables(records)
    for alpha in (0.1, 0.5, 1.0):
        assert summary(finished(records), alpha) in page
