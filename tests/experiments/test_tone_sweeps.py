"""The generated stand-in for speech."""

import torch

from rankcode.experiments.tone_sweeps import ToneSweeps


def test_the_stand_in_is_like_speech_commands():
    task = ToneSweeps(rows=12)
    splits = [task.train, task.validation, task.test]
    assert [split.size for split in splits] == [12, 6, 6]
    assert all(hasattr(split, "heard") for split in splits)
    inputs, labels, lengths = next(iter(task.test.scan(6, "cpu")))
    assert tuple(inputs.shape[2:]) == task.input_shape
    assert labels.tolist() == [0, 1, 2, 0, 1, 2]
    samples = task.test.samples
    assert lengths.tolist() == (1 + samples // 80 - 20).tolist()
    assert task.test.heard(torch.tensor([1] * 6)).tolist() == [212.5] * 6
