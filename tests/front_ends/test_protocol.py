"""A front end of the user's own, with the protocol's defaults or with none of them."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

import rankcode as rc
from rankcode.data.sources import Arrays, BadData
from rankcode.front_ends import Audio, FrontEnd, LatencyCode, Standardise, StoredRow, front_end_of
from rankcode.metrics import source_for


@dataclass(frozen=True)
class Logarithm(FrontEnd):
    """Uses every default of the protocol."""

    scale: float = 2.0

    @property
    def reads(self):
        return "positive numbers"

    @property
    def output_shape(self):
        return (1,)

    def __call__(self, stored, lengths=None):
        return stored.log() / self.scale, lengths


class Letters:
    """Inherits nothing: reads text files, a row for each line, and hears a millisecond for each letter."""

    reads = "text"
    output_shape = (26,)
    needs_float64 = False
    file_suffixes = (".txt",)

    def __call__(self, stored, lengths=None):
        return torch.nn.functional.one_hot(stored.long(), 26).float(), lengths

    def num_steps(self, lengths):
        return lengths

    def rows(self, data, left_out=None):
        lines = Path(data).read_text().splitlines() if isinstance(data, Path | str) and Path(data).is_file() else data
        return ((f"line {number}", line) for number, line in enumerate(lines, 1))

    def read(self, raw):
        if not raw.isalpha():
            raise ValueError(f"{raw!r} is no word")
        return StoredRow(torch.tensor([ord(letter) - ord("a") for letter in raw]), len(raw))

    def heard(self, steps, sizes):
        return torch.minimum(steps, sizes).double()


def network(front_end):
    torch.manual_seed(0)
    made = rc.Network(rc.cells.GRU(*front_end.output_shape, 4), 3)
    made.front_end, made.label_names = front_end, ("x", "y", "z")
    return made


@pytest.mark.parametrize("front_end", [Logarithm(), Letters()], ids=["derived", "of its own"])
def test_both_are_front_ends(front_end):
    assert isinstance(front_end, FrontEnd)
    source = Arrays(torch.ones(2, 3, 1), [0, 1], encode=front_end)
    assert front_end_of(source) is front_end
    assert front_end_of(Arrays(torch.ones(2, 3, 1), [0, 1], encode=lambda stored, lengths: (stored, lengths))) is None


def test_predicting_with_defaults():
    rows = [np.array([1.0, 2.0, 3.0]), np.array([4.0])]
    made = network(Logarithm())
    found = rc.predict(made, rows, rc.Never())
    for row, answer in zip(rows, found, strict=True):
        decision = rc.decide(made, torch.from_numpy(np.log(row) / 2)[None, :, None], rule=rc.Never())
        assert (answer.steps, answer.milliseconds) == (len(row), None)
        assert answer.probability == pytest.approx(decision.probabilities.max().item(), abs=1e-6)
    with pytest.raises(ValueError, match=r"reads positive numbers, from arrays and not from files such as a\.npz"):
        rc.predict(made, "a.npz")


def test_predicting_with_a_front_end_that_inherits_nothing(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("abc\nno word\nz\n")
    made = network(Letters())
    with pytest.raises(BadData, match=r"^line 2: 'no word' is no word; skip_bad=True leaves it out$"):
        rc.predict(made, path)
    left_out = []
    found = rc.predict(made, path, rc.Never(), skip_bad=True, left_out=left_out)
    assert [(each.steps, each.milliseconds) for each in found] == [(3, 3.0), (1, 1.0)]
    assert left_out == ["line 2: 'no word' is no word"]
    assert rc.predict(made, [path, str(path)], rc.Never(), skip_bad=True) == 2 * found


def test_front_ends_that_read_the_same_replace_each_other():
    source = Arrays(torch.ones(2, 3, 1), [0, 1], encode=Logarithm(1.0))
    assert source_for(network(Logarithm(5.0)), source).encode == Logarithm(5.0)
    with pytest.raises(ValueError, match="the network reads text, and the data is positive numbers"):
        source_for(network(Letters()), source)


def test_evaluating_and_training_with_a_users_front_end():
    values = torch.rand(24, 5, 1) + 0.1
    source = Arrays(values, torch.arange(24) % 3, encode=Logarithm())
    made = network(Logarithm())
    rc.fit(made, source, rc.AtEnd(), rc.Training(examples=48, batch_size=8, device="cpu", progress=False))
    assert made.front_end == Logarithm()
    report = rc.evaluate(made, source, rc.Never())
    assert report.milliseconds is None
    answers = rc.predict(made, values.numpy(), rc.Never())
    right = [each.label == "xyz"[k % 3] for k, each in enumerate(answers)]
    assert report.accuracy == pytest.approx(np.mean(right))


SAME = [Audio((0.0,) * 20, (1.0,) * 20), LatencyCode(255, 10, (1, 28, 28)), Standardise((0.0,), (1.0,))]


@pytest.mark.parametrize("front_end", SAME, ids=lambda each: type(each).__name__)
def test_members_say_what_they_read(front_end):
    assert isinstance(front_end, FrontEnd)
    others = {each.reads for each in SAME if each is not front_end}
    assert front_end.reads not in others and bool(front_end.file_suffixes) == (type(front_end) is not LatencyCode)
    stored = {"Audio": (4, 30, 20), "LatencyCode": (4, 28, 28), "Standardise": (4, 7, 1)}[type(front_end).__name__]
    lengths = torch.full((4,), stored[1])
    inputs, _ = front_end(torch.ones(stored, dtype=torch.uint8), lengths)
    assert inputs.shape[1:] == (int(front_end.num_steps(lengths)[0]), *front_end.output_shape)
