"""The records of a finished run."""

import json

import pytest

pytest.importorskip("matplotlib")

from rankcode.experiments.reproduction import Reproduction
from rankcode.experiments.run_records import share_read
from rankcode.experiments.trainings.two_sequence import settings


def test_the_share_read_is_weighted_by_examples():
    records = [{"examples": 300, "training": {"mean_steps": 10.0}}, {"examples": 400, "training": {"mean_steps": 2.0}}]
    assert share_read(records, 10) == pytest.approx((300 * 10 + 100 * 2) / (400 * 10))


def test_records_keep_what_figures_read(tmp_path):
    place = Reproduction("smoke", tmp_path, device="cpu", progress=False)
    conventional, spike = (place.trained(settings(place)[name]) for name in ("conventional", "until-spike"))
    written = [json.loads(line) for line in (spike.path / "metrics.jsonl").read_text().splitlines()]
    assert all("validation" not in record for record in written)  # the same as first_spike
    assert all(record["validation"] == record["first_spike"] for record in spike.records)
    assert "steps_histogram" in conventional.records[-1]["first_spike"]  # Fig. 2 draws it
    assert "steps_histogram" not in spike.records[-1]["first_spike"]
    assert "classes" in spike.records[0]["first_spike"] and "classes" not in spike.records[-1]["first_spike"]
    assert spike.best["validation"]["accuracy"] == max(each["validation"]["accuracy"] for each in spike.records)
