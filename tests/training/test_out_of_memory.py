import pytest
import torch

import rankcode as rc
from rankcode.tasks import TwoSequence
from rankcode.training.out_of_memory import memory_for


def test_a_batch_that_is_too_large_is_named():
    config = rc.Training(examples=10**12, batch_size=10**12, device="cpu", progress=False)
    with pytest.raises(
        MemoryError, match=r"^there is not enough memory for training \([\d,.]+ GiB asked for\): choose a smaller"
    ):
        rc.fit(rc.Network(rc.cells.GRU(1, 4), 1), TwoSequence(), rc.AtEnd(), config)


def test_other_errors_are_left_as_they_are():
    with pytest.raises(RuntimeError, match="size of tensor"), memory_for("this", "nothing"):
        torch.zeros(2) + torch.zeros(3)
