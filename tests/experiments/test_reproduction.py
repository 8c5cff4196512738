"""What the figures share: trainings are kept and go on, and numbers are files."""

import json
import math
import re
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch

pytest.importorskip("matplotlib")

from matplotlib.figure import Figure

from rankcode import AtSpike, Network, Training, cells
from rankcode.cli.main import main
from rankcode.data import Arrays
from rankcode.experiments import reproduction
from rankcode.experiments.reproduction import Number, Reproduction, Result, Trained, data_of, over_seeds, paper_time
from rankcode.experiments.trainings import two_sequence
from rankcode.objectives import Objective
from rankcode.rules import Never, Threshold


@pytest.fixture(scope="module")
def settings(place):
    return two_sequence.settings(place)


@pytest.fixture(scope="module")
def trained(place, settings):
    return place.trained(settings["rank-coded-0.95"])


def test_a_training_that_was_cut_off_goes_on(settings, monkeypatch, tmp_path):
    place, setting = Reproduction("smoke", tmp_path, device="cpu", progress=False), settings["rank-coded-0.95"]
    whole, calls = Objective.__call__, []

    def cut_off(self, *given, **more):
        calls.append(1)
        if len(calls) == 12:
            raise KeyboardInterrupt
        return whole(self, *given, **more)

    monkeypatch.setattr(Objective, "__call__", cut_off)
    with pytest.raises(KeyboardInterrupt):
        place.trained(setting)
    done = place.trained(setting)
    assert [record["examples"] // 128 for record in done.records] == [5, 10, 15, 20]
    assert len(calls) == 12 + 10  # it went on from its checkpoint after ten batches
    assert not (done.path / "checkpoint.pt").exists() and (done.path / "finished").exists()


def test_a_finished_training_with_other_settings_is_not_used(place, trained):
    setting = trained.setting
    changed = {
        "objective.beta is 0.0 there and 0.3 here": replace(setting, objective=AtSpike(0.95, 0.3)),
        "training.learning_rate": replace(setting, training=replace(setting.training, learning_rate=0.5)),
        "network.cell.hidden_size": replace(setting, network=lambda: Network(cells.LSTM(1, 3), outputs=1)),
    }
    for difference, other in changed.items():
        with pytest.raises(ValueError, match=f"{re.escape(difference)}.*: remove it to train again"):
            place.trained(other)


def test_an_evaluation_is_used_for_its_own_data_only(trained):
    fewer = replace(trained.setting, task=replace(trained.setting.task, test_rows=300))
    other = Trained(trained.path, fewer, trained.device)
    for model in ("last", "best"):
        assert trained.report(Threshold(0.95), model=model)["rows"] == 500
        assert other.report(Threshold(0.95), model=model)["rows"] == 300
        assert trained.report(Threshold(0.95), model=model)["rows"] == 500
    assert trained.curve((0.6, 0.7)).majority != other.curve((0.6, 0.7)).majority


def test_a_run_that_was_trained_on_other_data_is_refused(place, trained):
    other = replace(trained.setting, task=replace(trained.setting.task, mean=0.1))
    with pytest.raises(ValueError, match=r"was trained on other data \(.*mean 0.05.*mean 0.1.*\): choose another"):
        place.trained(other)


@dataclass(frozen=True)
class InFiles:
    """A task whose rows come from files."""

    data: str
    value: float
    augment: bool = False
    name: ClassVar[str] = "in-files"

    @property
    def test(self):
        return Arrays(torch.full((4, 3, 1), self.value), torch.zeros(4, dtype=torch.long))

    train = test


def test_data_is_told_by_its_rows_not_by_its_folder():
    here = data_of(InFiles("here", 1.0), "test")
    assert here["rows"] == 4 and len(here["fingerprint"]) == 16
    assert data_of(InFiles("there", 1.0, augment=True), "test") == here
    assert data_of(InFiles("here", 2.0), "test")["fingerprint"] != here["fingerprint"]
    assert data_of(InFiles("here", 1.0), "train") == here | {"split": "train"}


def test_what_is_damaged_or_missing_is_named(settings, tmp_path):
    place, setting = Reproduction("smoke", tmp_path, device="cpu", progress=False), settings["rank-coded-0.95"]
    trained = place.trained(setting)
    trained.report(Threshold(0.95))
    file = trained.path / "evaluation.json"
    file.write_text(file.read_text()[:20])
    with pytest.raises(ValueError, match="is damaged: remove it to evaluate again"):
        trained.report(Threshold(0.95))
    file.unlink()
    (trained.path / "best.safetensors").unlink()
    with pytest.raises(ValueError, match="does not hold the best weights: remove it"):
        trained.report(Never())
    assert trained.report(Never(), model="last")["rows"] > 0
    (trained.path / "metrics.jsonl").unlink()
    with pytest.raises(ValueError, match="no records of its training: remove it"):
        place.trained(setting)


def test_results_of_another_scale_are_not_written_over(tmp_path):
    Reproduction("paper", tmp_path).write("fig2", "Fig. 2", Result(None, [], {}, ""))
    before = (tmp_path / "fig2" / "numbers.json").read_bytes()
    with pytest.raises(SystemExit, match="was made at scale paper, not smoke: choose another --folder"):
        main(["reproduce", "all", "--scale", "smoke", "--folder", str(tmp_path)])
    assert (tmp_path / "fig2" / "numbers.json").read_bytes() == before and len(list(tmp_path.iterdir())) == 1


def test_nan_is_written_as_null(tmp_path):
    Reproduction("smoke", tmp_path).write("fig2", "Fig. 2", Result(None, [Number("a", None, math.nan)], {}, ""))
    assert json.loads((tmp_path / "fig2" / "numbers.json").read_text())["numbers"][0]["ours"] is None


def test_the_same_picture_is_the_same_file(tmp_path):
    files = []
    for folder in (tmp_path / "one", tmp_path / "other"):
        figure = Figure()
        figure.subplots().plot([1, 2], [2, 1], marker="o")
        Reproduction("smoke", folder).write("fig2", "Fig. 2", Result(figure, [], {}, ""))
        files.append([(folder / "fig2" / f"fig2.{ending}").read_bytes() for ending in ("png", "svg")])
    assert files[0] == files[1]


def test_the_reproduction_does_not_depend_on_defaults_of_training():
    source = Path(reproduction.__file__).read_text()
    (call,) = re.findall(r"^TRAINING = Training\((.*?)^\)", source, re.DOTALL | re.MULTILINE)
    given = set(re.findall(r"(\w+)=", call))
    by_run = {"epochs", "examples", "validate_every", "seed", *Training.WHERE}
    assert given == {each.name for each in fields(Training)} - by_run


def test_data_of_one_kind_or_of_all(tmp_path):
    (tmp_path / "mnist").mkdir()
    for given in (tmp_path, tmp_path / "mnist"):
        assert Reproduction("paper", data=str(given)).data_of("mnist") == str(tmp_path / "mnist")
    assert Reproduction("paper").data_of("mnist") is None


def test_measures_of_a_training(settings, place):
    trained = place.trained(settings["conventional"])
    assert trained.mean_length == 40 and trained.share_read == pytest.approx(1.0)
    report = trained.report(Threshold(0.95), model="last")
    assert 0 <= report["accuracy"] <= 1 and report["rows"] == 500


def test_time_as_the_paper_counts_it():
    # Four sequences of ten steps: spikes at steps 2, 4 and 6, and one that never fires.
    report = {"mean_steps": (2 + 4 + 6 + 10) / 4, "fired": 0.75}
    assert paper_time(report, 10) == pytest.approx((1 + 3 + 5) / 3)
    assert math.isnan(paper_time({"mean_steps": 10, "fired": 0}, 10))


def test_mean_and_spread_over_seeds():
    assert over_seeds([1.0, 2.0, 3.0]) == (2.0, 1.0) and over_seeds([5.0]) == (5.0, None)


def test_nonsense_is_one_line():
    with pytest.raises(SystemExit, match="no figure or table 'fig99'"):
        main(["reproduce", "fig99"])


def test_a_smaller_scale_leaves_what_is_kept_alone(tmp_path, monkeypatch, capsys):
    """What the repository keeps is of the paper's scale, and so is its page."""
    monkeypatch.chdir(tmp_path)
    main(["reproduce", "fig7", "--scale", "smoke", "--no-progress", "--device", "cpu"])
    assert "wrote runs/reproduction-smoke/reproduction.md" in capsys.readouterr().out
    page = (tmp_path / "runs" / "reproduction-smoke" / "reproduction.md").read_text()
    assert "(fig7/fig7.png)" in page and "Not made yet: fig1, fig2, fig3" in page
    assert not (tmp_path / "docs").exists() and not (tmp_path / "results").exists()
