"""The study behind the defaults, on a set so small that the numbers mean nothing."""

import json

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from rankcode.cli.main import main
from rankcode.experiments import defaults
from rankcode.experiments.defaults import CHOICES, MEASURES, SETS, Choice
from rankcode.training import Training
from rankcode.training.recipes import recipe


@pytest.fixture
def folder(tmp_path):
    """A folder with the training file of the first set: 40 rows of two classes."""
    random, path = np.random.default_rng(0), tmp_path / "data" / "ucr" / SETS[0]
    path.mkdir(parents=True)
    rows = [[label, *(random.normal(size=6) + 3 * label)] for label in (0, 1) for _ in range(20)]
    np.savetxt(path / f"{SETS[0]}_TRAIN.tsv", rows, delimiter="\t")
    return tmp_path


def test_the_first_choices_are_the_recipes():
    default, paper = CHOICES["the default"], CHOICES["the paper's recipe"]
    for choice, name in ((default, "default"), (paper, "paper")):
        wanted = recipe(name, 500)
        assert (choice.cell, choice.hidden_size, choice.training) == (wanted.cell, wanted.hidden_size, wanted.training)


def test_a_table_is_made_and_what_is_kept_is_not_measured_again(folder, monkeypatch, capsys):
    monkeypatch.setitem(CHOICES, "the default", Choice(hidden_size=4, training=Training(epochs=2)))
    command = ["reproduce", "defaults", "--scale", "smoke", "--folder", str(folder / "out"), "--no-progress"]
    command += ["--data", str(folder / "data"), "--device", "cpu"]
    main(command)
    (measured,) = json.loads((folder / "out" / "defaults.json").read_text()).values()
    assert tuple(measured) == MEASURES and all(0 <= value <= 1.5 for value in measured.values())
    assert measured["cost"] == pytest.approx(1 - measured["accuracy"] + 0.5 * measured["earliness"])
    line = capsys.readouterr().out.splitlines()[2]
    assert line == f"| the default | {' | '.join(f'{value:.3f}' for value in measured.values())} |"
    monkeypatch.setattr(defaults, "measure", lambda *_: pytest.fail("it is measured again"))
    main(command)
    assert line in capsys.readouterr().out


def test_a_set_that_is_not_there_is_named(folder):
    with pytest.raises(SystemExit, match=f"holds no training file of {SETS[0]}"):
        main(["reproduce", "defaults", "--scale", "smoke", "--folder", str(folder), "--data", str(folder)])
