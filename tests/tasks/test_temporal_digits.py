import sys

import numpy as np
import pytest
import torch

from rankcode.tasks import TemporalDigits, temporal_digits


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


def test_images_are_stored_as_bytes_and_coded_when_they_are_taken():
    task = TemporalDigits(flat=True)
    assert task.train.inputs.dtype == torch.uint8 and task.train.inputs.shape == (1078, 64)
    assert next(task.train.scan(5, "cpu")).inputs.equal(task.front_end(task.train.inputs[:5])[0])


def test_split_is_fixed():
    again, other = TemporalDigits(), TemporalDigits(split_seed=1)
    assert torch.equal(TemporalDigits().test.inputs, again.test.inputs)
    assert TemporalDigits().test.labels[:8].tolist() == [2, 8, 9, 9, 8, 1, 7, 3]
    assert not torch.equal(TemporalDigits().test.inputs[:100], other.test.inputs[:100])


def test_missing_scikit_learn_is_named(monkeypatch):
    temporal_digits._load.cache_clear()
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r"^temporal digits need scikit-learn: pip install 'rankcode\[sklearn\]'$"):
        _ = TemporalDigits().train
