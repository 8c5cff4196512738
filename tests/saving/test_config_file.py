"""config.json is read back, compared setting by setting, and damage to it is named."""

import copy

import pytest

from rankcode.saving.config_file import check_config, longer_config, read_config, write_config

CONFIG = {
    "format": 1,
    "task": {"kind": "TwoSequence", "steps": 5},
    "network": {"cell": {"hidden_size": 4}},
    "objective": {"rule": {"threshold": 0.6}, "points": [[0, 0.4], [0.5, 0.1]]},
    "training": {"epochs": 2.0, "examples": None, "learning_rate": 0.001},
    "batches": 8,
}


@pytest.fixture
def file(tmp_path):
    write_config(tmp_path / "config.json", CONFIG)
    return tmp_path / "config.json"


def changed(*path_and_value):
    """The settings of the run with another value in one place."""
    *path, key, value = path_and_value
    settings = target = {name: copy.deepcopy(part) for name, part in CONFIG.items() if name != "format"}
    for name in path:
        target = target[name]
    target[key] = value
    return settings


def test_a_config_is_read_back(file):
    assert read_config(file) == CONFIG
    with pytest.raises(FileNotFoundError, match=r"is not a run folder: it has no config.json$"):
        read_config(file.with_name("none.json"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("task", "steps", 6), r"task\.steps is 5 there and 6 here"),
        (("network", "cell", "hidden_size", 5), r"network\.cell\.hidden_size is 4 there and 5 here"),
        (("objective", "rule", "threshold", 0.7), r"objective\.rule\.threshold is 0\.6 there and 0\.7 here"),
        (
            ("objective", "points", [[0, 0.4]]),
            r"objective\.points is \[\[0, 0\.4\], \[0\.5, 0\.1\]\] there and \[\[0, 0\.4\]\] here",
        ),
        (("objective", "power", 2), r"objective\.power is None there and 2 here"),
        (("training", "learning_rate", 0.0010001), r"training\.learning_rate is 0\.001 there and 0\.0010001 here"),
    ],
    ids=str,
)
def test_the_first_setting_that_differs_is_named(file, change, said):
    for check in (check_config, longer_config):
        with pytest.raises(ValueError, match=rf"holds a run with other settings: {said}$"):
            check(file, changed(*change))


def test_numbers_may_differ_by_rounding(file):
    check_config(file, changed("training", "learning_rate", 0.001 * (1 + 1e-15)))
    check_config(file, changed("objective", "points", [[0, 0.4 * (1 + 1e-15)], [0.5, 0.1]]))


def test_only_the_length_of_a_run_may_grow(file):
    longer = changed("batches", 12) | {"training": CONFIG["training"] | {"epochs": 3.0}}
    assert longer_config(file, longer) == CONFIG | longer
    shorter = changed("batches", 4) | {"training": CONFIG["training"] | {"epochs": 1.0}}
    with pytest.raises(ValueError, match=r"holds a longer run than epochs=1: epochs and examples may only grow$"):
        longer_config(file, shorter)
    write_config(file, {name: value for name, value in CONFIG.items() if name != "batches"})
    with pytest.raises(ValueError, match=r"config\.json is damaged: batches must be int, not None; "):
        longer_config(file, longer)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is damaged: it is not JSON"),
        (b"{", "is damaged: it is not JSON"),
        (b"\xff\xfe", "is damaged: it is not JSON"),
        (b'{"format": NaN}', "is damaged: it is not JSON"),
        (b"[]", r"is damaged: its content must be an object, not \[\]"),
        (b"[" * 100_000, "is damaged: its content is nested too deeply"),
        (b'{"format": 1}', "is damaged: task must be an object, not None"),
        (b'{"format": 7}', "has format 7, and this version of rankcode reads 1"),
    ],
    ids=lambda value: value[:30] if isinstance(value, bytes) else "",
)
def test_what_is_wrong_is_said(file, content, said):
    file.write_bytes(content)
    with pytest.raises(ValueError, match=rf"^[^\n]*config\.json {said}[^\n]*$"):
        read_config(file)
