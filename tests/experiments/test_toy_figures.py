"""Figures 1 and 7 at the smallest scale, and what they measure."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from rankcode import cells
from rankcode.experiments import experiment, reproduction
from rankcode.experiments.figures import fig7
from rankcode.experiments.reproduction import Reproduction
from rankcode.experiments.trainings import spotting, two_sequence
from rankcode.metrics import Curve
from rankcode.network import Network
from rankcode.objectives import AtEnd, AtSpike
from rankcode.rules import FireAt, Never, Threshold
from rankcode.tasks import Spotting

FIGURES = ("fig1", "fig7")


def place_in(folder: Path) -> Reproduction:
    return Reproduction(scale="smoke", folder=folder, device="cpu", progress=False)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("reproduction")
    place = place_in(folder)
    for name in FIGURES:
        module = experiment(name)
        place.write(name, module.TITLE, module.reproduce(place))
    return folder


def numbers_of(folder: Path, name: str) -> dict:
    def fail(constant: str):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads((folder / name / "numbers.json").read_text(), parse_constant=fail)


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_drawn_and_its_numbers_are_json(made, name):
    assert (made / name / f"{name}.png").stat().st_size > 10_000
    assert (made / name / f"{name}.svg").read_text().rstrip().endswith("</svg>")
    found = numbers_of(made, name)
    names = [number["what"] for number in found["numbers"]]
    assert len(set(names)) == len(names)
    assert found["text"] and "nan" not in found["text"]


def test_the_papers_numbers_of_fig_1_are_there(made):
    paper = {number["what"]: number["paper"] for number in numbers_of(made, "fig1")["numbers"]}
    assert paper["rank-coded, first spike: accuracy"] == 100.0
    assert paper["rank-coded: positive sequences with a spike at the earliest step"] == "almost all"
    assert paper["conventional: first spikes that are negative"] == "always"
    assert paper["conventional, positive spikes only: steps after the earliest"] == 1.0
    assert paper["conventional, positive spikes only: steps read in negative sequences"] == 25.0


def test_the_numbers_of_fig_7_are_those_of_all_pairs(made):
    found = numbers_of(made, "fig7")
    assert found["curves"]["tested at"] == list(fig7.THRESHOLDS)
    for what in ("accuracy", "mean steps"):
        table = found["curves"][what]
        assert len(table) == 5 and all(len(line) == 5 for line in table.values())
    assert all(steps == sorted(steps) for steps in found["curves"]["mean steps"].values())
    numbers = {number["what"]: number for number in found["numbers"]}
    number = numbers["trained with θ = 0.95, tested at 0.95: accuracy"]
    assert number["paper"] == 95.45
    assert number["ours"] == pytest.approx(100 * found["curves"]["accuracy"]["trained with 0.95"][2])


def test_a_rerun_trains_nothing_and_finds_the_same(made, monkeypatch):
    def fail(*arguments):
        raise AssertionError("it trains")

    monkeypatch.setattr(reproduction, "fit", fail)
    for name in FIGURES:
        again = experiment(name).reproduce(place_in(made))
        before = [number["ours"] for number in numbers_of(made, name)["numbers"]]
        ours = [None if number.ours is None or math.isnan(number.ours) else number.ours for number in again.numbers]
        assert ours == before


def test_the_papers_settings():
    place = Reproduction(scale="paper")
    for setting in (spotting.rank_coded(place), spotting.conventional(place)):
        training = setting.training
        assert (training.examples, training.batch_size, training.learning_rate, training.max_grad_norm) == (
            1_500_000,
            128,
            0.0003,
            None,
        )
        assert (training.schedule, training.ema_decay, training.finish_with) == ("constant", None, "last")
        assert setting.network().cell.hidden_size == 125 and setting.network().activation == "sigmoid"
    assert spotting.rank_coded(place).objective == AtSpike(0.95, beta=0.0)
    assert spotting.conventional(place).objective == AtEnd()
    own = spotting.own(place)
    assert own.objective == AtSpike(0.95, beta=0.05)
    assert (own.training.learning_rate, own.training.schedule, own.training.ema_decay, own.training.max_grad_norm) == (
        0.002, "cosine", 0.999, 1.0,
    )  # fmt: skip
    for theta in fig7.THRESHOLDS:
        assert two_sequence.rank_coded(place, theta).objective == AtSpike(theta)


def first_window(values: list[float], length: int) -> int:
    """The step that completes the first run of equal values, 0 where there is none."""
    ends = (end for end in range(length, len(values) + 1) if len(set(values[end - length : end])) == 1)
    return next(ends, 0)


@pytest.mark.parametrize(("steps", "length"), [(25, 5), (10, 3), (6, 6)])
def test_the_earliest_step_is_that_of_brute_force(steps, length):
    task = Spotting(steps=steps, run_length=length)
    inputs, labels, _ = task.draw(300, torch.Generator().manual_seed(4))
    positive, earliest = spotting.earliest_steps(inputs, length)
    assert torch.equal(positive.long(), labels)
    assert earliest.tolist() == [first_window(row, length) for row in inputs[..., 0].tolist()]


def test_a_window_ends_where_a_run_becomes_long_enough_and_once_for_each_run():
    inputs = torch.tensor([0, 0, 0, 0, 1, 1, 1, 0, 1, 0, 0, 0.0])[None, :, None]
    assert spotting.window_ends(inputs, 3)[0].nonzero().flatten().tolist() == [2, 6, 11]


def test_examples_are_of_both_classes_and_in_order():
    inputs = spotting.examples(Spotting(), positive=9, negative=6)
    positive, earliest = spotting.earliest_steps(inputs, 5)
    assert positive.tolist() == [True] * 9 + [False] * 6
    assert earliest[:9].tolist() == sorted(earliest[:9].tolist())


def test_an_ideal_observer_reads_what_the_exact_limit_says():
    task = Spotting(test_rows=20_000)
    assert spotting.ideal_steps(task, 0.95) == pytest.approx(task.limit(0.95).steps, abs=0.2)
    assert spotting.ideal_steps(Spotting(test_rows=50), 1.0) <= 25


def constant(answer: float, task: Spotting) -> SimpleNamespace:
    """A network that always says the same, as if it were trained."""
    network = Network(cells.LSTM(1, 4), outputs=1)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
        list(network.readout.parameters())[-1].fill_(answer)  # the bias
    setting, device = SimpleNamespace(task=task), torch.device("cpu")
    return SimpleNamespace(setting=setting, model=lambda name: network, device=device)


def test_spike_times_are_counted_from_the_earliest_step():
    task = Spotting(test_rows=400)
    inputs, _, _ = next(task.test.scan(400, "cpu"))
    positive, earliest = spotting.earliest_steps(inputs, 5)
    found = spotting.measure_spike_times(constant(9.0, task), FireAt(10))  # type: ignore[arg-type]
    assert found["negative share of first spikes"] == 0
    assert sum(found["share of positive sequences"]) == pytest.approx(1)
    assert spotting.share_at(found, 0) == pytest.approx((earliest[positive] == 10).double().mean().item())
    assert spotting.share_at(found, 2) == pytest.approx((earliest[positive] == 8).double().mean().item())
    assert spotting.share_at(found, 99) == 0
    assert spotting.mean_delay(found) == pytest.approx((10 - earliest[positive]).double().mean().item())


def test_negative_spikes_have_no_delay_and_silence_no_share():
    task = Spotting(test_rows=50)
    found = spotting.measure_spike_times(constant(-9.0, task), Threshold(0.95))  # type: ignore[arg-type]
    assert found["negative share of first spikes"] == 1 and found["delay of positive spikes"] == []
    assert math.isnan(spotting.mean_delay(found))
    silent = spotting.measure_spike_times(constant(-9.0, task), Never())  # type: ignore[arg-type]
    assert silent["negative share of first spikes"] is None


def line(steps: list[float], accuracy: list[float]) -> Curve:
    return Curve(fig7.THRESHOLDS, tuple(accuracy), tuple(steps), (), (), None, 0.5, 0.0)


def test_curves_are_compared_where_all_of_them_have_steps():
    lower = line([10, 12, 14, 16, 20], [0.80, 0.82, 0.84, 0.86, 0.90])
    higher = line([12, 13, 14, 18, 24], [0.84, 0.85, 0.86, 0.90, 0.96])
    found = fig7.difference([lower, higher])
    assert found is not None and (found["from"], found["to"]) == (12, 20)
    assert found["mean"] == pytest.approx(0.02) and found["largest"] == pytest.approx(0.02)
    assert fig7.difference([lower, lower]) == {"mean": 0, "largest": 0, "from": 10, "to": 20}
    assert fig7.difference([lower, line([21, 22, 23, 24, 25], [0.9] * 5)]) is None


def test_a_curve_is_read_at_some_of_its_thresholds():
    curve = line([1, 2, 3, 4, 5], [0.5, 0.6, 0.7, 0.8, 0.9])
    assert fig7.at(curve, curve.accuracy, [0.85, 0.999]) == [0.5, 0.9]
