"""Simple classifiers that a network should beat."""

import numpy as np
import torch
from torch import nn

from rankcode.data.sources import Batch, Packed
from rankcode.front_ends import Standardise
from rankcode.tasks import OwnData
from rankcode.training.baselines import MAX_ROWS, baselines, nearest_neighbour


def series(rows, seed):
    """Rows of different lengths and a constant level, by which classes 0, 1 and 2 are told apart."""
    random = np.random.default_rng(seed)
    labels = np.minimum(np.arange(rows) % 4, 2)
    return [np.full(random.integers(5, 9), 10.0 * label) + random.normal(size=1) for label in labels], labels


def test_the_nearest_row_and_the_majority_of_the_training_rows():
    (x, y), test = series(40, 0), series(30, 1)
    test = (test[0], np.where(np.arange(30) < 3, 0, test[1]))  # the labels of 2 of these 3 rows are wrong
    task = OwnData.of(x, y, test=test)
    found = baselines(task.train, task.test)
    assert found["nearest neighbour"] == 28 / 30
    assert found["most common class"] == np.mean(test[1] == 2)


def test_by_hand():
    train = Batch(torch.tensor([[[0.0], [9.0]], [[0.0], [1.0]], [[4.0], [4.0]]]), torch.tensor([0, 1, 2]))
    lengths = torch.tensor([1, 2, 2])  # so that the 9 of the first row is padding
    test = Batch(torch.tensor([[[0.0], [0.4], [0.0]], [[3.0], [3.0], [0.0]]]), torch.tensor([0, 2]))
    assert nearest_neighbour(train._replace(lengths=lengths), test._replace(lengths=torch.tensor([1, 2]))) == 1.0
    assert nearest_neighbour(train._replace(lengths=lengths), test) == 0.5  # the row with the same end is nearer
    assert nearest_neighbour(train, test) == 0.5
    assert nearest_neighbour(train._replace(labels=torch.tensor([0, 1, 0]))) == 1 / 3  # never the row itself


def test_of_many_rows_some_are_compared():
    rows = 3 * MAX_ROWS
    labels = (torch.arange(rows) >= rows // 2).long()
    one_each = torch.ones(rows, dtype=torch.long)
    packed = Packed(5.0 * labels[:, None], torch.arange(rows), one_each, labels, Standardise((0.0,), (1.0,)))
    assert baselines(packed, packed) == {"most common class": 0.5, "nearest neighbour": 1.0}


def test_a_short_row_is_not_the_nearest_of_all():
    torch.manual_seed(0)
    labels = torch.arange(60) % 3
    inputs = torch.randn(60, 40, 1) + nn.functional.one_hot(labels, 3)[:, :, None].repeat_interleave(14, 1)[:, :40] * 2
    lengths = torch.full((60,), 40)
    whole = nearest_neighbour(Batch(inputs, labels, lengths))
    lengths[5] = 1
    assert whole > 0.9 and nearest_neighbour(Batch(inputs, labels, lengths)) >= whole - 2 / 60
