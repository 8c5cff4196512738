import pytest
import torch

import rankcode as rc
from rankcode.data.sources import Arrays, Packed
from rankcode.decision import Decision
from rankcode.engines.choose import Choice
from rankcode.front_ends import Audio, LogMel
from rankcode.training import batch_update
from rankcode.training.batch_update import Answers, Step

LENGTHS = torch.tensor([3, 9, 4, 7])


@pytest.mark.parametrize("kind", ["arrays", "packed", "sound"])
def test_rows_are_expected_to_be_read_to_their_end_before_their_first_answer(kind):
    """So that rows of different lengths are sorted in the first epoch too."""
    labels, front_end = torch.zeros(4, dtype=torch.long), Audio((0.0,), (1.0,), LogMel(8000, 1), context=1)
    source = Arrays(torch.zeros(4, 9, 1), labels, LENGTHS)
    if kind != "arrays":
        encode = front_end if kind == "sound" else None
        source = Packed(torch.zeros(23, 1), LENGTHS.cumsum(0) - LENGTHS, LENGTHS, labels, encode)
    answers = Answers(source, rc.Training(batch_size=3), torch.device("cpu"))
    first = answers.index(0)
    assert sorted([*first.tolist(), *answers.index(1).tolist()]) == [0, 1, 2, 3]
    assert answers.expected(first).equal(LENGTHS[first] - (2 if kind == "sound" else 0))
    steps = torch.tensor([2, 1, 2])
    answers.note(first, Decision(steps, steps, steps > 0, steps))
    assert answers.expected(first).equal(steps)
    assert source.lengths.equal(LENGTHS)
    assert answers.expected(answers.index(1)).equal(LENGTHS[answers.index(1)] - (2 if kind == "sound" else 0))


@pytest.mark.parametrize("precision", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("how", [None, "as it is", "with a schedule"])
def test_what_is_captured_in_which_precision(how, precision, monkeypatch):
    """A step in float16 may have to be discarded, which a schedule does not provide for."""
    monkeypatch.setattr(batch_update, "choose", lambda *_: Choice("triton", "", how))
    network = rc.Network(rc.cells.GRU(4, 2), 2)
    step = Step(network, rc.AtSpike(0.6), rc.Training(precision=precision), torch.device("cpu"))
    assert step.capturable(torch.zeros(2, 3, 4)) == (
        None if (precision, how) == ("float16", "with a schedule") else how
    )
