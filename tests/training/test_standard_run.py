"""What the options of `rankcode train` stand for."""

import pytest

import rankcode as rc
from rankcode.training.standard_run import read_beta, standard_objective, standard_run


@pytest.mark.parametrize(
    ("text", "beta"), [("0", 0.0), ("-0.5", -0.5), ("0:0.4,0.5:0.1", rc.Switch((0, 0.4), (0.5, 0.1)))]
)
def test_beta_is_a_number_or_a_schedule(text, beta):
    assert read_beta(text) == beta


@pytest.mark.parametrize("text", ["", "inf", "0:", "0:1:2", "0.5:1,0.2:3", "a:b"])
def test_what_is_no_beta(text):
    with pytest.raises(ValueError, match="beta=… must be a number"):
        read_beta(text)


@pytest.mark.parametrize("options", [{"objective": "at-once"}, {"cell": "rnn"}, {"recipe": "mine"}])
def test_an_unknown_name_is_refused(options):
    (name,) = options
    with pytest.raises(ValueError, match=f"^{name} must be one of "):
        standard_objective(**options)


def test_options_become_a_network_an_objective_and_settings():
    options = {"cell": "lstm", "hidden_size": 5, "num_layers": 2, "beta": 0.1, "threshold": 0.8, "epochs": 3}
    network, _, objective, config = standard_run(rc.tasks.Spotting(), **options)
    assert repr(network.cell) == "LSTM(input_size=1, hidden_size=5, num_layers=2)"
    assert objective == rc.UntilSpike(0.8, 0.1) and config == rc.Training(epochs=3)
    paper = standard_run(rc.tasks.Spotting(), recipe="paper")
    assert paper.objective == rc.AtSpike(0.95, 0.0) and paper.config.learning_rate == 0.0003
