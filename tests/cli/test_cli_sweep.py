"""rankcode sweep: what is refused before anything starts. tests/sweeps has sweeps that train."""

from pathlib import Path

import pytest
from small_data import CPU, says, two_levels

from rankcode.cli.main import parsed


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ("", ("--over",)),
        ("--over", ("--over",)),
        ("--over beta", ("'beta' has no values (see",)),
        ("--over betta=1,2", ("'betta' is not an option of a run: did you mean beta?",)),
        ("--over beta=0,much", ("--beta must be a number", "'much'")),
        ("--over hidden-size=4,four", ("--hidden-size", "four", "rankcode train --help")),
        ("--over hidden-size=4,0", ("--hidden-size must be at least 1, not 0",)),
        ("--over threshold=0.9,7", ("--threshold 7 is outside (0, 1]",)),
        ("--over cell=gru,rnn", ("--cell", "rnn")),
        ("--over learning-rate=1e-2..1e-4", ("learning-rate", "0.01..0.0001")),
        ("--over learning-rate=1e-4..1e-2 --search grid", ("a grid needs values",)),
        ("--over beta=0,1 --beta 2", ("beta is given twice",)),
        ("--over beta=0,1 hidden-size=4 beta=2", ("--over: beta is given twice",)),
        ("--over beta=0,1 --hours 0", ("--hours 0 must be above 0",)),
        ("--over test-share=0.1,0.2", ("'test-share' is not an option of a run",)),
        ("--over beta=0,1 --accuracy 0.9", ("there is no option --accuracy",)),
        ("--over beta=0,1 --device cuda:99", ("cuda:99",)),
        ("--over beta=0,1 --thresholds 0.1", ("0.1",)),
    ],
)
def test_mistakes_are_named_before_anything_starts(arguments, parts):
    two_levels(Path("levels.npz"))
    device = [] if "--device" in arguments else CPU
    says(["sweep", "levels.npz", *arguments.split(), *device], *parts, status=2 if "cuda" not in arguments else None)
    assert [path.name for path in Path().iterdir()] == ["levels.npz"]


def test_data_that_is_not_there():
    says(["sweep", "missing.npz", "--over", "beta=0,1"], "there is no task and no data 'missing.npz'", status=2)


def test_values_are_read_as_train_reads_them():
    over = "beta=0:0.4,0.5:0.1;0.2 augment=true,false max-grad-norm=1,inf hidden-size=8..64 learning_rate=1e-4..1e-2"
    read = dict(parsed(["sweep", "spotting", "--over", *over.split()])._over())
    assert read == {
        "beta": ["0:0.4,0.5:0.1", "0.2"],
        "augment": [True, False],
        "max_grad_norm": [1.0, float("inf")],
        "hidden_size": "8..64",
        "learning_rate": "0.0001..0.01",
    }
