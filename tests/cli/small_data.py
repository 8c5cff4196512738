"""Small data and runs that the tests of the command line share."""

import json

import numpy as np
import pytest

from rankcode.cli.main import main
from wav_files import tone

QUICK = ["--batch-size", "16", "--hidden-size", "4", "--learning-rate", "0.01", "--device", "cpu", "--no-progress"]
CPU = ["--device", "cpu"]
SMALL = ["--examples", "256", "--batch-size", "32", "--hidden-size", "4", "--validate-every", "4", "--no-progress"]
SMALL += CPU


def train(folder, *more, task="two-sequence"):
    main(["train", task, *SMALL, "--folder", str(folder), *more])


def two_levels(path, rows=60, names=("low", "high"), offset=0.0):
    """Series of 8 steps: of the first class about 0, of the second about 4."""
    random = np.random.default_rng(0)
    labels = np.array(list(names) * (rows // len(names)))
    values = random.normal(size=(rows, 8)) + 4 * (labels == names[1])[:, None] + offset
    np.savez(path, X=values.astype(np.float32), y=labels)
    return str(path)


def tones(folder, words=("deep", "high"), count=10):
    for word in words:
        for number in range(count):
            tone(folder / word / f"{number}.wav", (300 if word == "deep" else 3000) + 20 * number)
    return str(folder)


def says(arguments, *parts, status=None):
    """The command stops, and says why in one line."""
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    message = str(stop.value)
    assert stop.value.code == status or (status is None and stop.value.code in (1, 2, 130)), stop.value.code
    assert message.startswith("rankcode: ") and "\n" not in message, message
    assert all(part in message for part in parts), message


def evaluated(capsys, *arguments):
    """The report of `rankcode evaluate`."""
    capsys.readouterr()
    main(["evaluate", *map(str, arguments), *CPU, "--json"])
    return json.loads(capsys.readouterr().out)["report"]


def answers(capsys):
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]
