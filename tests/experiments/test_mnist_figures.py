"""The figures and the table of temporal MNIST, at smoke scale: everything runs, and says what it should."""

import json

import pytest

from rankcode import AtSpike
from rankcode.experiments import experiment, reproduction
from rankcode.experiments.figures import table1
from rankcode.experiments.reproduction import Reproduction, Trained
from rankcode.experiments.trainings import mnist as mnist_trainings
from rankcode.experiments.trainings import spiking as spiking_trainings
from rankcode.rules import Threshold
from rankcode.saving.run_folder import RunFolder
from rankcode.tasks import TemporalDigits, TemporalMNIST

NAMES = ("fig3", "table1", "fig6", "fig9", "fig10")


def place_in(folder):
    return Reproduction(scale="smoke", folder=folder, device="cpu", progress=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("reproduction")


@pytest.fixture(scope="module")
def found(folder):
    """What numbers.json has for each figure, made once."""
    place, contents = place_in(folder), {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFolder, "finish", lambda run: None)  # pictures of single runs: seconds, and not asked for here
        for name in NAMES:
            module = experiment(name)
            path = place.write(name, module.TITLE, module.reproduce(place))
            contents[name] = json.loads((path / "numbers.json").read_text(), parse_constant=_no_such_number)
    return contents


def _no_such_number(constant):
    raise AssertionError(f"numbers.json holds {constant}")


def number(found, name, what):
    (match,) = [each for each in found[name]["numbers"] if each["what"] == what]
    return match


@pytest.mark.parametrize("name", NAMES)
def test_files(found, folder, name):
    assert found[name]["title"].startswith(("Fig. ", "Table 1: "))
    assert found[name]["scale"] == "smoke" and "At this scale" in found[name]["text"]
    assert found[name]["figure"] is (name != "table1")
    for ending in ("png", "svg"):
        file = folder / name / f"{name}.{ending}"
        assert file.exists() == (name != "table1")
        assert not file.exists() or file.stat().st_size > 10_000


@pytest.mark.parametrize("name", NAMES)
def test_every_training_says_what_it_cost(found, name):
    curves = found[name]["curves"]
    for training, shares in curves["share of steps read in training"].items():
        assert all(0.1 <= share <= 1 for share in shares)
        assert all(seconds > 0 for seconds in curves["seconds of training"][training])
        given = number(found, name, f"{training}: share of steps read in training")
        assert given["ours"] == pytest.approx(100 * shares[0])
        assert number(found, name, f"{training}: time of training")["unit"] == "s"


def test_the_table_has_the_papers_numbers(found):
    papers = {each["what"]: each["paper"] for each in found["table1"]["numbers"]}
    ours = {
        "fast, RC-LSTM 784-340-10": 98.14,
        "fast, RC-LSTM 784-340-10 with the paper's β, no weight decay": 98.14,
        "fast, RC-ConvLSTM 784-10-10": 98.90,
        "fast, RC-ConvLSTM 784-20-10": 99.19,
        "slow, RC-ConvLSTM 784-10-10": 99.16,
        "slow, RC-ConvLSTM 784-20-10": 99.29,
    }
    for name, paper in ours.items():
        assert papers[f"{name}: accuracy"] == paper
        match = number(found, "table1", f"{name}: accuracy")
        assert 0 <= match["ours"] <= 100 and "the paper's protocol" in match["note"]
        assert papers[f"{name}: frame passed at the spike"] == ("< 15 %" if name.startswith("fast") else "> 25 %")
    spiking = [each for each in found["table1"]["numbers"] if each["note"] == "spiking"]
    assert [each["paper"] for each in spiking] == [97.4, "< 97.4 %", 97.96, 98.1, 98.5, 98.1, 99.4]
    assert all(each["ours"] is None for each in spiking)
    assert all(("Comsa" in each["what"]) != ("Zhang" in each["what"]) for each in spiking)


def test_fig3_has_the_papers_accuracies_and_two_betas(found):
    assert number(found, "fig3", "LSTM-340, end of training: accuracy")["paper"] == 98.14
    assert number(found, "fig3", "ConvLSTM-20, end of training: accuracy")["paper"] == 99.19
    assert "β = 0.4" in found["fig3"]["text"] and "β = 0.1 " in found["fig3"]["text"]
    history = found["fig3"]["curves"]["through training"]["ConvLSTM-20, β switches"]
    assert history["epochs"][0] <= mnist_trainings.SWITCH_AT * history["epochs"][-1]


def test_fig6_reads_with_the_papers_thresholds(found):
    curves = found["fig6"]["curves"]["trade-off"]
    assert curves["rank-coded"]["thresholds"] == [0.85, 0.9, 0.95, 0.99]
    assert curves["conventional"]["thresholds"] == [0.25, 0.35, 0.45, 0.55, 0.75, 0.95]
    assert len(curves) == 4
    for name in ("rank-coded", "conventional"):
        at = curves[name]["thresholds"].index(0.95)
        assert number(found, "fig6", f"{name}, θ = 0.95: accuracy")["ours"] == pytest.approx(
            100 * curves[name]["accuracy"][at]
        )


def test_both_figures_of_the_spiking_network_agree(found):
    for name in ("rank-coded", "conventional"):
        curve = found["fig10"]["curves"]["trade-off"][name]
        at = curve["thresholds"].index(0.5)
        first = number(found, "fig9", f"{name}, first spike: mean steps read")
        assert first["ours"] == pytest.approx(curve["mean_steps"][at])
        assert curve["mean_steps"] == sorted(curve["mean_steps"])
    conventional = found["fig9"]["curves"]["share of steps read in training"]["conventional"]
    assert conventional == [1.0]


def test_a_rerun_trains_nothing(found, folder, monkeypatch):
    def fail(*arguments, **settings):
        raise AssertionError("trained again")

    monkeypatch.setattr(reproduction, "fit", fail)
    monkeypatch.setattr(reproduction, "evaluate", fail)
    monkeypatch.setattr(reproduction, "tradeoff", fail)
    for name in NAMES:
        result = experiment(name).reproduce(place_in(folder))
        assert result.text == found[name]["text"]
        assert [each.ours for each in result.numbers] == [each["ours"] for each in found[name]["numbers"]]


def test_settings_of_the_paper(tmp_path):
    place = Reproduction(scale="paper", folder=tmp_path, data="somewhere")
    lstm, conv = mnist_trainings.lstm_fast(place), mnist_trainings.conv_lstm_fast(place, 20)
    assert lstm.task == TemporalMNIST("somewhere/mnist", flat=True) and conv.task == TemporalMNIST("somewhere/mnist")
    assert (lstm.training.learning_rate, lstm.training.schedule, lstm.training.epochs) == (0.001, "constant", 50)
    assert (lstm.network().cell.hidden_size, conv.network().cell.hidden_channels) == (340, 20)
    assert mnist_trainings.conv_lstm_fast(place, 10).network().cell.hidden_channels == 10
    for setting in (lstm, conv):
        assert (setting.objective.rule.threshold, setting.objective.beta) == (0.95, 0.1)
    assert mnist_trainings.lstm_paper(place).objective.beta == 0.165
    own = sum(part.numel() for part in mnist_trainings.own(place).network().parameters())
    assert own < 500_000
    switch = mnist_trainings.conv_lstm_switch(place).objective.beta
    assert (switch(0.0), switch(0.24), switch(0.25), switch(0.99)) == (0.4, 0.4, 0.1, 0.1)
    spiking = spiking_trainings.rank_coded(place)
    assert (spiking.training.batch_size, spiking.training.learning_rate, spiking.objective.rule.threshold) == (
        400,
        0.001,
        0.5,
    )
    first, second, dense, top = spiking.network().cell.cells
    assert (first.hidden_channels, second.hidden_channels, dense.hidden_size, top.hidden_size) == (32, 32, 128, 10)
    assert all(
        (cell.threshold, cell.decay, cell.surrogate_width) == (0.5, 0.2, 0.5) for cell in (first, second, dense, top)
    )
    assert spiking.network().activation == "membrane"


class Reports(Trained):
    """A run of which only the reports are known: (accuracy, mean steps) by split and model."""

    def __init__(self, reports):
        self.reports, self.setting = reports, reproduction.Setting("", TemporalDigits(), None, AtSpike(0.95), None)

    def report(self, rule, split="test", model="best"):
        accuracy, steps = self.reports[split, model]
        return {"accuracy": accuracy, "mean_steps": steps, "fired": 1.0}


def test_models_are_chosen_on_validation_data():
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


def test_a_row_can_be_read_with_another_threshold():
    asked = []

    class Asked(Reports):
        def report(self, rule, split="test", model="best"):
            asked.append(rule)
            return super().report(rule, split, model)

    run = Asked({(split, model): (0.98, 2.2) for split in ("validation", "test") for model in ("best", "last")})
    for theta, rule in ((None, Threshold(0.95)), (0.9, Threshold(0.9))):
        table1._chosen(run, table1.Row("", True, None, run.setting, theta))
        assert set(asked) == {rule}
        asked.clear()


def test_share_of_the_frame():
    report = {"fired": 0.5, "mean_steps": 6.0}  # half silent, read to step 10: the others spike at step 2, counted as 1
    assert mnist_trainings.share_of_frame(report, 10) == pytest.approx(0.1)
    assert mnist_trainings.share_of_frame({"fired": 0.0, "mean_steps": 10.0}, 10) == 1.0
