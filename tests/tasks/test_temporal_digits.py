import sys
from fractions import Fraction
from math import ceil

import numpy as np
import pytest
import torch

from rankcode.data.sources import Source
from rankcode.tasks import TASKS, TemporalDigits, temporal_digits


def expected_step(value: int, levels: int, steps: int) -> int:
    intensity = Fraction(value, levels)
    return steps if intensity == 0 else steps - ceil(steps * intensity) + 1


@pytest.mark.parametrize(("flat", "features"), [(False, (1, 8, 8)), (True, (64,))])
def test_batches_are_the_coded_images(flat, features):
    from sklearn.datasets import load_digits

    task = TemporalDigits(flat=flat)
    assert task.input_shape == features
    assert isinstance(task.train, Source)
    assert task.train.inputs.dtype == torch.uint8 and task.train.inputs.shape[1:] == features  # not stored expanded
    batch = next(iter(task.test.scan(50, "cpu")))
    assert batch.inputs.shape == (50, 10, *features)
    stored = {tuple(image.astype(int)): int(label) for image, label in zip(*load_digits(return_X_y=True), strict=True)}
    for image, sequence, label in zip(task.test.inputs[:50], batch.inputs, batch.labels, strict=True):
        pixels = image.flatten().tolist()
        assert stored[tuple(pixels)] == label
        assert (sequence.flatten(1).argmax(0) + 1).tolist() == [expected_step(value, 16, 10) for value in pixels]


def test_split_holds_every_image_once_and_every_digit_in_proportion():
    from sklearn.datasets import load_digits

    task = TemporalDigits()
    sources = (task.train, task.validation, task.test)
    images = np.concatenate([source.inputs.flatten(1).numpy() for source in sources])
    everything = load_digits().data.astype(np.uint8)
    assert sorted(map(bytes, images)) == sorted(map(bytes, everything))
    total = np.bincount(load_digits().target)
    for source, share in zip(sources, (0.6, 0.2, 0.2), strict=True):
        counts = np.bincount(source.labels.numpy(), minlength=10)
        assert np.abs(counts - share * total).max() <= 1
    assert [source.size for source in sources] == [1078, 360, 359]


def test_split_is_fixed():
    again, other = TemporalDigits(), TemporalDigits(split_seed=1)
    assert torch.equal(TemporalDigits().test.inputs, again.test.inputs)
    assert TemporalDigits().test.labels[:8].tolist() == [2, 8, 9, 9, 8, 1, 7, 3]
    assert not torch.equal(TemporalDigits().test.inputs[:100], other.test.inputs[:100])


def test_names():
    assert TASKS["temporal-digits"] is TemporalDigits
    task = TemporalDigits(steps=4)
    assert (task.num_classes, task.label_names) == (10, tuple("0123456789"))
    assert next(iter(task.validation.scan(3, "cpu"))).inputs.shape == (3, 4, 1, 8, 8)
    with pytest.raises(ValueError, match="steps"):
        TemporalDigits(steps=0)


def test_missing_scikit_learn_is_named(monkeypatch):
    temporal_digits._load.cache_clear()
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r"^temporal digits need scikit-learn: pip install 'rankcode\[data\]'$"):
        _ = TemporalDigits().train
