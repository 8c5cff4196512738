"""Tasks and data by name."""

from pathlib import Path

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
