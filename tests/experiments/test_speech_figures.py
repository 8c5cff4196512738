"""The figures on Speech Commands at smoke scale: files and numbers, and that nothing is trained twice."""

import json
import random

import pytest
import torch

from rankcode import Threshold, fit
from rankcode.experiments import experiment, reproduction
from rankcode.experiments.figures import fig5, fig8
from rankcode.experiments.figures.fig4 import until_fallen
from rankcode.experiments.figures.fig5 import Composite, envelope
from rankcode.experiments.reproduction import Reproduction
from rankcode.experiments.trainings import speech as trainings
from rankcode.metrics import Curve
from rankcode.saving.run_folder import RunFolder

NAMES = ("fig4", "fig5", "fig8")


def no_constant(name):
    raise AssertionError(f"JSON has no {name}")


def made(place, name):
    module = experiment(name)
    folder = place.write(name, module.TITLE, module.reproduce(place))
    return folder, json.loads((folder / "numbers.json").read_text(), parse_constant=no_constant)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return Reproduction(scale="smoke", folder=tmp_path_factory.mktemp("speech"), device="cpu", progress=False)


@pytest.fixture(scope="module")
def results(place):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFolder, "finish", lambda self: None)  # a picture of each training takes longer than it
        return {name: made(place, name) for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_files_and_numbers(results, name):
    folder, found = results[name]
    assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (folder / f"{name}.svg").read_text()[:1000]
    assert found["title"].startswith(f"Fig. {name[3:]}: ")
    assert "Stand-in data" in found["text"] and "1,000" in found["text"]
    assert all(number["ours"] is not None for number in found["numbers"])
    shares = [number["ours"] for number in found["numbers"] if "share of steps read" in number["what"]]
    assert shares and all(0 < share <= 100 for share in shares)
    assert found["curves"]["seconds of training"]


def test_the_papers_values_are_there(results):
    paper = {number["what"]: number["paper"] for number in results["fig4"][1]["numbers"]}
    assert paper["rank-coded, β = 0.2: settled spike time, validation"] == "around 600 ms"
    assert paper["accuracy, β = 0.2 minus β = 0.4, rank-coded"] == "about 0"
    leads = [number for number in results["fig5"][1]["numbers"] if number["paper"] == "above 0"]
    assert [f"{speed} ms heard" in number["what"] for number, speed in zip(leads, fig5.SPEEDS, strict=True)] == [
        True
    ] * 9


def test_fig4_agrees_with_the_runs(place, results):
    curves = results["fig4"][1]["curves"]
    run = trainings.Run(trainings.RANK_CODED, 0.2)
    trained = place.trained(trainings.of(place, run))
    drawn, best = curves["through training"][str(run)], curves["at the best epoch"][str(run)][0]
    assert [each["epoch"] for each in drawn] == pytest.approx([1, 2, 3, 4, 5, 6])
    assert best["validation"]["accuracy"] == max(each["accuracy"] for each in drawn)
    assert best["test"]["heard"] == trained.report(Threshold(trainings.THETA))["milliseconds"]
    assert "accuracy at the end" not in best["test"]
    assert "accuracy at the end" in curves["at the best epoch"]["conventional, β = 0"][0]["test"]


def test_fig5_composites_are_points_of_the_curves(results):
    curves = results["fig5"][1]["curves"]
    points = {
        f"{name}, θ = {threshold:g}": (time, accuracy)
        for name, curve in curves["over θ"].items()
        for threshold, time, accuracy in zip(curve["thresholds"], curve["milliseconds"], curve["accuracy"], strict=True)
    }
    for found in curves["composite"].values():
        assert found["time"] == sorted(found["time"])
        assert [points[name] for name in found["chosen"]] == list(zip(found["time"], found["accuracy"], strict=True))
    one, two = (curves["accuracy at ms heard"][kind]["600"] for kind in ("rank-coded", "conventional"))
    lead = next(each for each in results["fig5"][1]["numbers"] if each["what"].endswith("composites, 600 ms heard"))
    assert lead["ours"] == pytest.approx(100 * (one - two))


def test_fig8_shows_the_word(place, results):
    curves = results["fig8"][1]["curves"]
    assert curves["word"] == curves["answer"] == "on" and curves["recording"].startswith("on/")
    assert curves["fired"] and curves["probability"] >= trainings.THETA
    assert 1 <= curves["steps read"] < curves["steps"] == len(curves["hidden"]) == len(curves["cell"])
    source = trainings.task(place).test
    row = list(source.names).index(curves["recording"])
    steps = torch.tensor([curves["steps read"]])
    assert curves["heard"] == source.encode.heard(steps, source.samples[row : row + 1]).item()


def test_a_rerun_trains_nothing(place, results, monkeypatch):
    def fail(*_):
        raise AssertionError("trained again")

    assert reproduction.fit is fit
    monkeypatch.setattr(reproduction, "fit", fail)
    for name in NAMES:
        again, before = experiment(name).reproduce(place), results[name][1]
        assert json.loads(json.dumps([again.text, again.curves])) == [before["text"], before["curves"]]
        assert [number.ours for number in again.numbers] == [number["ours"] for number in before["numbers"]]


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
    assert found.at(450) == pytest.approx(0.6)
    assert found.at(800) == 0.9


def test_times_without_sound_are_steps():
    curve = Curve((0.5,), (1.0,), (30.0,), (0.5,), (1.0,), None, 0.5, 0.5)
    assert fig5.times(curve) == (300.0,)
    assert trainings.heard({"mean_steps": 30.0, "milliseconds": None}) == 300.0
    assert trainings.heard({"mean_steps": 30.0, "milliseconds": 512.5}) == 512.5


def test_a_run_is_drawn_until_it_falls():
    def records(*accuracies):
        classes = [{"rows": 60}, {"rows": 40}]
        return [{"first_spike": {"accuracy": each, "classes": classes}} for each in accuracies]

    assert until_fallen(records(0.6, 0.59, 0.8, 0.7, 0.5, 0.9)) == 4
    assert until_fallen(records(0.5, 0.62, 0.55, 0.8, 0.9)) == 5  # it had not risen yet


def test_hidden_measures():
    hidden = torch.zeros(6, 3)
    hidden[:, 0] = torch.tensor([0.0, 0.2, 0.4, 0.6, 0.4, 0.2])
    assert fig8.active(hidden) == 1 and fig8.components(hidden) == 1
    hidden[:, 1] = torch.tensor([0.7, -0.7, 0.7, -0.7, 0.7, -0.7])
    assert fig8.active(hidden) == 2 and fig8.components(hidden) == 1  # most of it in one
    assert fig8.components(hidden, 0.99) == 2


def test_settings_of_the_paper():
    place = Reproduction(scale="paper")
    assert trainings.betas(place) == (0.0, 0.2, 0.3, 0.4)
    setting = trainings.of(place, trainings.Run(trainings.RANK_CODED, 0.2), augment=True)
    training, network = setting.training, setting.network()
    assert (training.batch_size, training.learning_rate, training.max_grad_norm, training.epochs) == (
        512,
        0.001,
        0.25,
        300,
    )
    assert training.ema_decay == 0.999 and setting.task.augment and setting.name.endswith("augmented")
    assert (network.cell.hidden_size, network.outputs) == (128, 11)
    assert [tuple(part.weight.shape) for part in network.readout[::2]] == [(32, 128), (11, 32)]
