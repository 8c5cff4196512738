import pytest
import torch

import rankcode as rc
from rankcode.data.sources import Arrays, Packed
from rankcode.decision import Decision
from rankcode.front_ends import Audio, LogMel
from rankcode.training.batch_update import Answers

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
