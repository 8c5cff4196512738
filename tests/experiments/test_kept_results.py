"""results/reproduction: figures are redrawn from what is kept there, with the same numbers and without training."""

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("matplotlib")

from rankcode.data import Arrays
from rankcode.experiments import EXPERIMENTS, experiment, reproduction
from rankcode.experiments.reproduction import Reproduction, data_of
from rankcode.experiments.tone_sweeps import ToneSweeps
from rankcode.tasks import Limit, TwoSequence

RESULTS = Path(__file__).parents[2] / "results"
KEPT = RESULTS / "reproduction"


def numbers_of(name):
    return json.loads((KEPT / name / "numbers.json").read_text())


@pytest.mark.parametrize("name", ["fig1", "fig2", "fig7"])  # the others need data
def test_a_figure_is_redrawn_from_what_is_kept(name, monkeypatch):
    def fail(*_):
        raise AssertionError("this is not kept")

    for each in ("fit", "evaluate", "tradeoff"):
        monkeypatch.setattr(reproduction, each, fail)
    limits = numbers_of("fig2")["curves"]["limits"]  # a minute's work, tested with the task

    def limit_curves(task):
        def column(values):
            return torch.tensor(values, dtype=torch.float64)

        return {key: Limit(column(each["accuracy"]), column(each["mean_steps"])) for key, each in limits.items()}

    monkeypatch.setattr(TwoSequence, "limit_curves", limit_curves)
    result = experiment(name).reproduce(Reproduction("paper", KEPT, device="cpu", progress=False))
    kept = numbers_of(name)
    assert [number.what for number in result.numbers] == [number["what"] for number in kept["numbers"]]
    for number, other in zip(result.numbers, kept["numbers"], strict=True):
        assert number.ours == pytest.approx(other["ours"], abs=1e-9), number.what
    assert result.text == kept["text"]


def test_every_figure_is_kept_and_names_its_data():
    for name in EXPERIMENTS:
        kept = numbers_of(name)
        assert kept["scale"] == "paper" and kept["data"], name
        assert (KEPT / name / f"{name}.png").exists() == kept["figure"]


def test_evaluations_are_kept_by_their_data():
    files = list(KEPT.glob("runs/paper/*/evaluation.json"))
    assert len(files) > 70
    for file in files:
        assert all(key.startswith("task ") and ", split " in key for key in json.loads(file.read_text())), file


def test_fingerprints_stay_as_they_are():
    """Evaluations are found by them: where they must change, those in results/ have to change too."""
    sounds = data_of(ToneSweeps(rows=12), "test")
    assert sounds == {"task": "tone-sweeps", "split": "test", "rows": 6, "fingerprint": "6f2645166c40d10d"}
    images = Arrays(torch.arange(12, dtype=torch.uint8).view(3, 2, 2), torch.tensor([0, 1, 2]))
    assert images.fingerprint() == "a13d4078fc0da7c9"


def test_results_are_small():
    assert sum(file.stat().st_size for file in RESULTS.rglob("*") if file.is_file()) < 18e6
