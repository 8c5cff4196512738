"""Every figure and table at smoke scale: what is written, that nothing is trained twice, and what each measures."""

import json
import math
import random

import pytest
import torch

pytest.importorskip("matplotlib")

from rankcode import AtSpike, Threshold, fit
from rankcode.experiments import EXPERIMENTS, experiment, reproduction
from rankcode.experiments.figures import fig5, fig7, fig8, table1
from rankcode.experiments.figures.fig4 import until_fallen
from rankcode.experiments.figures.fig5 import Composite, envelope
from rankcode.experiments.reproduction import Trained
from rankcode.experiments.trainings import mnist, speech
from rankcode.metrics import Curve
from rankcode.saving.run_folder import RunFolder
from rankcode.tasks import TemporalDigits

every_figure = pytest.mark.parametrize("name", EXPERIMENTS)
OF_DIGITS, OF_SPEECH = ("fig3", "table1", "fig6", "fig9", "fig10"), ("fig4", "fig5", "fig8")


@pytest.fixture(scope="module")
def made(place):
    """A function that makes a figure, once, and returns what its numbers.json holds."""
    kept = {}

    def make(name):
        if name not in kept:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(RunFolder, "finish", lambda run: None)  # pictures of single runs take seconds
                path = place.write(name, experiment(name).TITLE, experiment(name).reproduce(place))
            kept[name] = json.loads((path / "numbers.json").read_text(), parse_constant=pytest.fail)
        return kept[name]

    return make


def number(found, what):
    (match,) = [each for each in found["numbers"] if each["what"] == what]
    return match


@every_figure
def test_files_and_numbers(name, made, place):
    found, folder = made(name), place.folder / name
    assert found["title"].startswith("Table 1: " if name == "table1" else f"Fig. {name[3:]}: ")
    assert found["scale"] == "smoke" and found["versions"]["torch"] and found["figure"] is (name != "table1")
    if found["figure"]:
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (folder / f"{name}.svg").read_text().rstrip().endswith("</svg>")
    names = [each["what"] for each in found["numbers"]]
    assert len(set(names)) == len(names)
    assert found["text"] and "nan" not in found["text"]
    assert name not in OF_DIGITS or "At this scale" in found["text"]
    assert name not in OF_SPEECH or "Stand-in data" in found["text"]


@every_figure
def test_every_training_says_what_it_cost(name, made):
    curves = made(name)["curves"]
    shares = curves["share of steps read in training"]
    for training, values in shares.items():
        assert all(0.02 < share <= 1 for share in (values if isinstance(values, list) else [values]))
        given = [
            each for each in made(name)["numbers"] if each["what"] == f"{training}: share of steps read in training"
        ]
        assert all(each["ours"] == pytest.approx(100 * values[0]) for each in given)
    assert shares and (name == "fig7" or curves["seconds of training"].keys() == shares.keys())


@every_figure
def test_a_rerun_trains_nothing(name, made, place, monkeypatch):
    def fail(*arguments, **settings):
        raise AssertionError("trained again")

    before = made(name)
    assert reproduction.fit is fit
    for each in ("fit", "evaluate", "tradeoff"):
        monkeypatch.setattr(reproduction, each, fail)
    again = experiment(name).reproduce(place)
    ours = [None if each.ours is None or math.isnan(each.ours) else each.ours for each in again.numbers]
    assert ours == [each["ours"] for each in before["numbers"]]
    assert json.loads(json.dumps([again.text, again.curves])) == [before["text"], before["curves"]]


PAPER = {
    "fig1": {
        "rank-coded, first spike: accuracy": 100.0,
        "rank-coded: positive sequences with a spike at the earliest step": "almost all",
        "conventional: first spikes that are negative": "always",
        "conventional, positive spikes only: steps after the earliest": 1.0,
        "conventional, positive spikes only: steps read in negative sequences": 25.0,
    },
    "fig2": {
        "rank-coded, first spike: accuracy": 95.45,
        "rank-coded, first spike: spike time as the paper counts": 14.0,
        "conventional, step 40: accuracy": 96.84,
        "conventional, step 14: accuracy": 89.0,
        "conventional, first spike: accuracy": 96.32,
        "conventional, first spike: spike time as the paper counts": 23.0,
    },
    "fig3": {"LSTM-340, end of training: accuracy": 98.14, "ConvLSTM-20, end of training: accuracy": 99.19},
    "fig4": {
        "rank-coded, β = 0.2: settled spike time, validation": "around 600 ms",
        "accuracy, β = 0.2 minus β = 0.4, rank-coded": "about 0",
    },
    "fig5": {f"rank-coded − conventional, composites, {speed} ms heard": "above 0" for speed in fig5.SPEEDS},
    "fig7": {"trained with θ = 0.95, tested at 0.95: accuracy": 95.45},
    "table1": {
        "fast, RC-LSTM 784-340-10: accuracy": 98.14,
        "fast, RC-LSTM 784-340-10 with the paper's β, no weight decay: accuracy": 98.14,
        "fast, RC-ConvLSTM 784-10-10: accuracy": 98.90,
        "fast, RC-ConvLSTM 784-20-10: accuracy": 99.19,
        "fast, RC-ConvLSTM 784-20-10: frame passed at the spike": "< 15 %",
        "slow, RC-ConvLSTM 784-10-10: accuracy": 99.16,
        "slow, RC-ConvLSTM 784-20-10: accuracy": 99.29,
        "slow, RC-ConvLSTM 784-20-10: frame passed at the spike": "> 25 %",
    },
}


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_numbers_are_there(name, made):
    for what, paper in PAPER[name].items():
        assert number(made(name), what)["paper"] == paper
        assert "accuracy" not in what or number(made(name), what)["ours"] is not None


def test_the_table_has_the_literature(made):
    spiking = [each for each in made("table1")["numbers"] if each["note"] == "spiking"]
    assert [each["paper"] for each in spiking] == [97.4, "< 97.4 %", 97.96, 98.1, 98.5, 98.1, 99.4]
    assert all(each["ours"] is None for each in spiking)


def test_fig3_has_two_betas(made):
    found = made("fig3")
    assert "β = 0.4" in found["text"] and "β = 0.1 " in found["text"]
    history = found["curves"]["through training"]["ConvLSTM-20, β switches"]
    assert history["epochs"][0] <= mnist.SWITCH_AT * history["epochs"][-1]


def test_fig4_agrees_with_the_runs(place, made):
    curves = made("fig4")["curves"]
    run = speech.Run(speech.RANK_CODED, 0.2)
    trained = place.trained(speech.of(place, run))
    drawn, best = curves["through training"][str(run)], curves["at the best epoch"][str(run)][0]
    assert [each["epoch"] for each in drawn] == pytest.approx([1, 2, 3, 4, 5, 6])
    assert best["validation"]["accuracy"] == max(each["accuracy"] for each in drawn)
    assert best["test"]["heard"] == trained.report(Threshold(speech.THETA))["milliseconds"]
    assert "accuracy at the end" not in best["test"]
    assert "accuracy at the end" in curves["at the best epoch"]["conventional, β = 0"][0]["test"]


def test_a_run_is_drawn_until_it_falls():
    def records(*accuracies):
        classes = [{"rows": 60}, {"rows": 40}]
        return [{"first_spike": {"accuracy": each, "classes": classes}} for each in accuracies]

    assert until_fallen(records(0.6, 0.59, 0.8, 0.7, 0.5, 0.9)) == 4
    assert until_fallen(records(0.5, 0.62, 0.55, 0.8, 0.9)) == 5  # it had not risen yet


def test_fig5_composites_are_points_of_the_curves(made):
    found = made("fig5")
    points = {
        f"{name}, θ = {threshold:g}": (time, accuracy)
        for name, curve in found["curves"]["over θ"].items()
        for threshold, time, accuracy in zip(curve["thresholds"], curve["milliseconds"], curve["accuracy"], strict=True)
    }
    for best in found["curves"]["composite"].values():
        assert best["time"] == sorted(best["time"])
        assert [points[name] for name in best["chosen"]] == list(zip(best["time"], best["accuracy"], strict=True))
    one, two = (found["curves"]["accuracy at ms heard"][kind]["600"] for kind in ("rank-coded", "conventional"))
    lead = number(found, "rank-coded − conventional, composites, 600 ms heard")
    assert lead["ours"] == pytest.approx(100 * (one - two))


@pytest.mark.parametrize("seed", range(20))
def test_envelope_against_brute_force(seed):
    generator = random.Random(seed)
    values = [k / 8 for k in range(9)] if seed % 2 else [generator.random() for _ in range(40)]  # with ties, without
    times, accuracies = ([generator.choice(values) for _ in range(30)] for _ in range(2))

    def beaten(k):
        return any(
            times[j] <= times[k]
            and accuracies[j] >= accuracies[k]
            and ((times[j], accuracies[j]) != (times[k], accuracies[k]) or j < k)
            for j in range(30)
        )

    expected = sorted((k for k in range(30) if not beaten(k)), key=lambda k: times[k])
    assert envelope(times, accuracies) == expected


def test_accuracy_at_a_speed():
    found = Composite(("a", "b"), (400.0, 600.0), (20.0, 40.0), (0.5, 0.9))
    assert found.at(399) is None and found.at(400) == 0.5
    assert found.at(450) == pytest.approx(0.6) and found.at(800) == 0.9


def test_times_without_sound_are_steps():
    assert fig5.times(Curve((0.5,), (1.0,), (30.0,), (0.5,), (1.0,), None, 0.5, 0.5)) == (300.0,)


def test_fig6_reads_with_the_papers_thresholds(made):
    curves = made("fig6")["curves"]["trade-off"]
    assert curves["rank-coded"]["thresholds"] == [0.85, 0.9, 0.95, 0.99]
    assert curves["conventional"]["thresholds"] == [0.25, 0.35, 0.45, 0.55, 0.75, 0.95]
    assert len(curves) == 4
    for name in ("rank-coded", "conventional"):
        at = curves[name]["thresholds"].index(0.95)
        ours = number(made("fig6"), f"{name}, θ = 0.95: accuracy")["ours"]
        assert ours == pytest.approx(100 * curves[name]["accuracy"][at])


def test_the_numbers_of_fig7_are_those_of_all_pairs(made):
    curves = made("fig7")["curves"]
    assert curves["tested at"] == list(fig7.THRESHOLDS)
    for what in ("accuracy", "mean steps"):
        assert len(curves[what]) == 5 and all(len(line) == 5 for line in curves[what].values())
    assert all(steps == sorted(steps) for steps in curves["mean steps"].values())
    ours = number(made("fig7"), "trained with θ = 0.95, tested at 0.95: accuracy")["ours"]
    assert ours == pytest.approx(100 * curves["accuracy"]["trained with 0.95"][2])


def line(steps, accuracy):
    return Curve(fig7.THRESHOLDS, tuple(accuracy), tuple(steps), (), (), None, 0.5, 0.0)


def test_curves_are_compared_where_all_of_them_have_steps():
    lower = line([10, 12, 14, 16, 20], [0.80, 0.82, 0.84, 0.86, 0.90])
    higher = line([12, 13, 14, 18, 24], [0.84, 0.85, 0.86, 0.90, 0.96])
    found = fig7.difference([lower, higher])
    assert found is not None and (found["from"], found["to"]) == (12, 20)
    assert found["mean"] == pytest.approx(0.02) and found["largest"] == pytest.approx(0.02)
    assert fig7.difference([lower, lower]) == {"mean": 0, "largest": 0, "from": 10, "to": 20}
    assert fig7.difference([lower, line([21, 22, 23, 24, 25], [0.9] * 5)]) is None
    assert fig7.at(lower, lower.accuracy, [0.85, 0.999]) == [0.8, 0.9]


def test_fig8_shows_the_word(place, made):
    curves = made("fig8")["curves"]
    assert curves["word"] == curves["answer"] == "on" and curves["recording"].startswith("on/")
    assert curves["fired"] and curves["probability"] >= speech.THETA
    assert 1 <= curves["steps read"] < curves["steps"] == len(curves["hidden"]) == len(curves["cell"])
    source = speech.task(place).test
    row = list(source.names).index(curves["recording"])
    steps = torch.tensor([curves["steps read"]])
    assert curves["heard"] == source.encode.heard(steps, source.samples[row : row + 1]).item()


def test_hidden_measures():
    hidden = torch.zeros(6, 3)
    hidden[:, 0] = torch.tensor([0.0, 0.2, 0.4, 0.6, 0.4, 0.2])
    assert fig8.active(hidden) == 1 and fig8.components(hidden) == 1
    hidden[:, 1] = torch.tensor([0.7, -0.7, 0.7, -0.7, 0.7, -0.7])
    assert fig8.active(hidden) == 2 and fig8.components(hidden) == 1  # most of it in one
    assert fig8.components(hidden, 0.99) == 2


def test_both_figures_of_the_spiking_network_agree(made):
    for name in ("rank-coded", "conventional"):
        curve = made("fig10")["curves"]["trade-off"][name]
        first = number(made("fig9"), f"{name}, first spike: mean steps read")
        assert first["ours"] == pytest.approx(curve["mean_steps"][curve["thresholds"].index(0.5)])
        assert curve["mean_steps"] == sorted(curve["mean_steps"])
    assert made("fig9")["curves"]["share of steps read in training"]["conventional"] == [1.0]


class Reports(Trained):
    """A run of which only the reports are known: (accuracy, mean steps) by split and model."""

    def __init__(self, reports):
        self.reports, self.asked = reports, set()
        self.setting = reproduction.Setting("", TemporalDigits(), None, AtSpike(0.95), None)

    def report(self, rule, split="test", model="best"):
        self.asked.add(rule)
        accuracy, steps = self.reports[split, model]
        return {"accuracy": accuracy, "mean_steps": steps, "fired": 1.0}


def test_models_of_the_table_are_chosen_on_validation_data():
    both = {("validation", "best"): (0.98, 2.2), ("validation", "last"): (0.97, 2.1),
            ("test", "best"): (0.95, 2.3), ("test", "last"): (0.99, 2.0)}  # fmt: skip
    fast, slow = (table1.Row("", regime, None, Reports(both).setting) for regime in (True, False))
    chosen = table1._chosen(Reports(both), fast)
    assert (chosen.model, chosen.inside, chosen.highest) == ("best", True, 0.99)
    assert (chosen.report["accuracy"], chosen.frame) == (0.95, pytest.approx(0.13))  # (2.3 − 1) / 10
    late = both | {("validation", "best"): (0.98, 6.0)}
    assert [table1._chosen(Reports(late), row).model for row in (fast, slow)] == ["last", "best"]
    neither = both | {("validation", "best"): (0.98, 6.0), ("validation", "last"): (0.97, 5.0)}
    chosen = table1._chosen(Reports(neither), fast)
    assert (chosen.model, chosen.inside, chosen.highest) == ("last", False, 0.99)
    for theta, rule in ((None, Threshold(0.95)), (0.9, Threshold(0.9))):
        run = Reports(both)
        table1._chosen(run, fast._replace(theta=theta))
        assert run.asked == {rule}
