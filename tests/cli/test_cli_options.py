"""Tasks, schedules and data by name."""

from pathlib import Path

import pytest

import rankcode as rc
from rankcode.cli import options
from rankcode.tasks import OwnData, SpeechCommands, Spotting


def test_a_name_is_a_task_and_a_path_is_own_data(tmp_path):
    assert options.named_task("spotting") == Spotting()
    Path("spotting").mkdir()
    assert options.named_task("spotting") == Spotting(), "a task comes before a folder of its name"
    assert options.named_task("./spotting") == OwnData(str(tmp_path / "here" / "spotting"))
    assert options.named_task("speech-commands", data="x", augment=True, skip_bad=None) == SpeechCommands(
        str(tmp_path / "here" / "x"), augment=True
    )


@pytest.mark.parametrize(
    ("text", "beta"), [("0", 0.0), ("-0.5", -0.5), ("0:0.4,0.5:0.1", rc.Switch((0, 0.4), (0.5, 0.1)))]
)
def test_beta_is_a_number_or_a_schedule(text, beta):
    assert options.read_beta(text) == beta


@pytest.mark.parametrize("text", ["", "inf", "0:", "0:1:2", "0.5:1,0.2:3", "a:b"])
def test_what_is_no_beta(text):
    with pytest.raises(ValueError, match="beta must be a number"):
        options.read_beta(text)


def test_the_name_of_data(tmp_path):
    Path("folder.of.data").mkdir()
    for task, name in {
        "spotting": "spotting",
        "sets/ECG200_TRAIN.ts": "ECG200",
        "sets/ECG200_TEST.ts": "ECG200",
        "a.b.npz": "a.b",
        "folder.of.data": "folder.of.data",
        "folder.of.data/": "folder.of.data",
        ".": "here",
        "folder.of.data/..": "here",
    }.items():
        assert options.data_name(task) == name
