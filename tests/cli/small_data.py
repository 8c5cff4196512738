"""Small data and runs that the tests of the command line share."""

import json
import math
import wave

import numpy as np
import pytest

from rankcode.cli.main import main

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


def tone(path, hertz, seconds=0.3):
    path.parent.mkdir(parents=True, exist_ok=True)
    samples = 0.3 * np.sin(2 * math.pi * hertz * np.arange(round(16_000 * seconds)) / 16_000)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes((samples * 32767).astype("<i2").tobytes())
    return path


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


def answers(capsys):
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]
