"""What is written as JSON is read back, and damaged content is refused with a line that names the file."""

import copy
import json
import math
import random
import re
import shutil
from dataclasses import dataclass

import pytest
import torch
from safetensors.torch import save_file

import rankcode as rc
from rankcode.saving.description import (
    OBJECTIVES,
    RULES,
    TASK_KINDS,
    content_of,
    describe,
    parse,
    read_network,
    read_part,
)
from rankcode.saving.model_file import _read, metadata
from rankcode.saving.run_folder import RunFolder
from rankcode.tasks import OwnData, SpeechCommands, Spotting, TemporalDigits, TemporalMNIST, TwoSequence


def there_and_back(part, family):
    return read_part(parse(json.dumps(describe(part))), family, "part")


PATIENT = rc.Patience(rc.Patience(rc.StepThresholds((0.6,)), 2), 3)
BESIDE = rc.OptimalStopping((1, 4), (tuple(range(14)),), (1.0, 0.5), (1, 0), ((0.5, 0.25, -1.0), (0.0, 1.0, 2.0)))
PARTS = [
    *(
        (rule, RULES)
        for rule in (rc.Threshold(0.8, classes=(1, 0)), rc.StepThresholds((0.9, 0.6)), rc.Never(), PATIENT, BESIDE)
    ),
    (rc.AtSpike(0.9, rc.Switch((0, 0.4), (0.5, 0.1))), OBJECTIVES),
    (rc.AtSpike(rule=PATIENT, beta=1), OBJECTIVES),
    *((objective, OBJECTIVES) for objective in (rc.UntilSpike(0.7, 0.2), rc.AtEnd(0.3), rc.EveryStep())),
    *(
        (task, TASK_KINDS)
        for task in (Spotting(test_rows=5), TwoSequence(steps=4, mean=0.3), TemporalDigits(flat=True))
    ),
    *((task, TASK_KINDS) for task in (TemporalMNIST("x", steps=4, flat=True), SpeechCommands("y", True, 3, True))),
    (OwnData("z", split_seed=4), TASK_KINDS),
]


@pytest.mark.parametrize(("part", "family"), PARTS, ids=lambda value: "" if isinstance(value, dict) else str(value))
def test_every_part_is_read_back(part, family):
    assert there_and_back(part, family) == part


@pytest.mark.parametrize("steps", [4, [1, 7, 3]])
def test_planted_steps_are_read_back(steps):
    again = there_and_back(rc.FireAt(steps), RULES)
    assert isinstance(again, rc.FireAt) and again.steps.equal(torch.tensor(steps))


def test_custom_parts_are_named_with_what_can_be_compared():
    @dataclass
    class Mine(rc.Objective):
        power: int
        weights: tuple
        table: torch.Tensor
        keep = "answer"
        rule = rc.Never()

        def row_losses(self, result, labels, progress=0.0):
            raise NotImplementedError

    written = describe(Mine(2, (0.5, 1), torch.zeros(3)))
    assert written == {"custom": "Mine", "power": 2, "weights": [0.5, 1], "rule": {"kind": "Never"}}
    with (
        pytest.raises(ValueError, match=r"^a\.json names 'Mine' as part, which is not part of rankcode"),
        content_of("a.json"),
    ):
        read_part(written, OBJECTIVES, "part")
    assert describe(rc.AtSpike(0.9, math.sqrt))["beta"] == {"custom": "sqrt"}


@pytest.mark.parametrize(
    ("description", "problem"),
    [
        (3, "part must be an object, not 3"),
        ({}, "part is of the kind None, not one of Threshold, "),
        ({"kind": ["Threshold"]}, r"part is of the kind \['Threshold'\], not one of "),
        ({"kind": "AtEnd"}, "part is of the kind 'AtEnd', not one of "),
        ({"kind": "Threshold", "theta": 1}, "part has a setting 'theta', which Threshold does not have"),
        ({"kind": "StepThresholds"}, r"part cannot be built: .* missing 1 required .* argument: 'thresholds'"),
        ({"kind": "Threshold", "threshold": "0.9"}, "part.threshold must be float, not '0.9'"),
        ({"kind": "Threshold", "threshold": True}, "part.threshold must be float, not True"),
        ({"kind": "Threshold", "threshold": 10**400}, "part.threshold must be float, not 1000"),
        ({"kind": "Threshold", "threshold": -1}, "part cannot be built: a threshold must be a number above 0, not -1"),
        ({"kind": "Threshold", "classes": {}}, r"part.classes must be tuple\[int, ...\] \| None, not {}"),
        ({"kind": "Threshold", "classes": [0, "1"]}, r"part.classes\[1\] must be int, not '1'"),
        ({"kind": "Patience", "count": 2, "rule": {"kind": "Threshold", "x": 2}}, "part.rule has a setting 'x'"),
        ({"kind": "FireAt", "steps": []}, "part cannot be built: FireAt needs one step"),
    ],
    ids=str,
)
def test_what_is_wrong_is_said(description, problem):
    with pytest.raises(ValueError, match=rf"^a\.json is damaged: {problem}[^\n]*; restore"), content_of("a.json"):
        read_part(description, RULES, "part")


@pytest.mark.parametrize("text", ["", "{", "nonsense", "[NaN]", "[-Infinity]", "[1e999]", "[" * 10**6, b"\xff"])
def test_what_is_not_json_or_too_deep(text):
    said = r"^a\.json is damaged: (it is not JSON \([^\n]+\)|its content is nested too deeply); "
    with pytest.raises(ValueError, match=said) as error, content_of("a.json"):
        parse(text)
    assert ("deeply" in str(error.value)) == (len(text) > 50)


# Damaged files

VALUES = (None, True, -1, 0, 1, 0.5, 10**12, 10**30, 1e308, "", "x", "LSTM", [], {}, [1], [[[]]], {"kind": 3})
VALUES += ({"kind": "Stack", "parts": []}, {"custom": "Mine"}, {"custom": {}}, {"kind": "Threshold"}, ["a", 2], "best")


def places(content, path=()):
    """Every place in a nested structure."""
    inside = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in inside:
        yield (*path, key)
        yield from places(value, (*path, key))


def mutated(content, chance: random.Random):
    """A copy with one place changed, removed, renamed or wrapped."""
    content = copy.deepcopy(content)
    *path, key = chance.choice(list(places(content)))
    target = content
    for step in path:
        target = target[step]
    how = chance.choice(("change", "change", "remove", "rename", "wrap", "deepen"))
    if how == "change":
        target[key] = copy.deepcopy(chance.choice(VALUES))
    elif how == "remove" or (how == "rename" and isinstance(target, list)):
        del target[key]
    elif how == "rename":
        target[f"{key}s"] = target.pop(key)
    elif how == "wrap":
        target[key] = [target[key]]
    else:
        for _ in range(chance.choice((1, 15, 150))):
            target[key] = {"kind": "Sequential", "parts": [target[key]]}
    return content


def refused_well(action, path) -> bool:
    """Whether an action is refused; if so, in one line that begins with the path and explains itself."""
    try:
        action()
    except (ValueError, OSError) as error:
        message = str(error)
        assert message.startswith(str(path)), message
        assert "\n" not in message and len(message) < 1000, message
        assert not re.search(r"unhashable|object has no attribute|recursion|out of range|^'\w+'$|KeyError", message), (
            message
        )
        assert len(message.removeprefix(str(path)).split()) > 3, message
        return True
    return False


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run with a network that has every kind of part."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    torch.manual_seed(0)
    readout = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.GELU(), torch.nn.Dropout(0.1), torch.nn.Linear(3, 1))
    network = rc.Network(rc.cells.Stack(rc.cells.GRU(1, 4), rc.cells.LIF(4, 4)), 1, readout)
    network.front_end = rc.Audio((0.0,), (1.0,), rc.LogMel(8000, 1), 0)
    config = rc.Training(examples=32, batch_size=8, validate_every=2, device="cpu", folder=str(folder), progress=False)
    objective = rc.AtSpike(rule=rc.Patience(rc.Threshold(0.6, (0, 1)), 2), beta=rc.Switch((0, 0.2), (0.5, 0.1)))
    rc.fit(network, TwoSequence(steps=5, validation_rows=50), objective, config)
    return folder


def test_a_damaged_config_is_refused_or_read(run, tmp_path):
    config, chance, refused = json.loads((run / "config.json").read_text()), random.Random(0), 0
    shutil.copytree(run, tmp_path, dirs_exist_ok=True)
    file, folder = tmp_path / "config.json", RunFolder(tmp_path)
    actions = folder.task, folder.objective, folder.rule, folder.network, lambda: rc.load(tmp_path)
    actions = (*actions, lambda: rc.Training.of_run(folder))
    for _ in range(150):
        file.write_text(json.dumps(mutated(config, chance)))
        refused += any([refused_well(action, file) for action in actions])
    assert refused > 75


@pytest.mark.filterwarnings("ignore:the rule .* is not part of rankcode")
def test_damaged_metadata_of_a_model_is_refused_or_read(run, tmp_path):
    header, weights = _read(run / "best.safetensors")
    chance, refused, path = random.Random(0), 0, tmp_path / "model"
    for _ in range(200):
        save_file(weights, path, metadata(mutated(header, chance), weights))
        refused += refused_well(lambda: rc.load(path), path)
    assert refused > 100


def test_a_model_with_a_flipped_bit_is_refused(run, tmp_path):
    content, chance, path = (run / "best.safetensors").read_bytes(), random.Random(0), tmp_path / "model"
    for _ in range(150):
        damaged = bytearray(content)
        damaged[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        assert refused_well(lambda: rc.load(path), path)


def test_a_file_cannot_ask_for_a_million_cells():
    cell = {"kind": "LSTM", "input_size": 1, "hidden_size": 1, "num_layers": 1}
    network = {"cell": {"kind": "Stack", "parts": [cell] * 1001}, "outputs": 2, "activation": "softmax"}
    network |= {"dtype": "float32", "readout": {"kind": "Identity"}}
    with pytest.raises(ValueError, match="parts has 1001 parts"):
        read_network(network)
