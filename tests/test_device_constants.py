"""Constants are made once, and their cache is bounded."""

import pytest
import torch

from rankcode import device_constants
from rankcode.device_constants import cached, constant, used_constants

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def empty_cache():
    device_constants._cache.clear()
    yield
    device_constants._cache.clear()


def test_a_constant_is_made_once():
    first = constant((1.0, 2.0), torch.float32, CPU)
    assert first.tolist() == [1, 2] and first.dtype == torch.float32
    assert constant((1.0, 2.0), torch.float32, CPU) is first
    assert constant((1.0, 2.0), torch.float64, CPU).dtype == torch.float64
    with torch.inference_mode():
        assert not constant((3.0,), torch.float32, CPU).is_inference()  # it may be used in training


def test_the_number_of_constants_is_bounded():
    first = constant((0.0,), torch.float32, CPU)
    for number in range(1, device_constants.MAX_TENSORS):
        constant((float(number),), torch.float32, CPU)
        assert constant((0.0,), torch.float32, CPU) is first  # used again, so not the oldest
    for number in range(1000, 1000 + device_constants.MAX_TENSORS):
        constant((float(number),), torch.float32, CPU)
    assert len(device_constants._cache) == device_constants.MAX_TENSORS
    assert constant((0.0,), torch.float32, CPU) is not first


def test_the_size_of_all_constants_is_bounded():
    third = device_constants.MAX_BYTES // 3
    for name in "abcde":
        assert len(cached(name, CPU, lambda: torch.zeros(third, dtype=torch.uint8))) == third
    assert list(device_constants._cache) == ["c", "d", "e"]
    assert len(cached("large", CPU, lambda: torch.zeros(4 * third, dtype=torch.uint8))) == 4 * third
    assert not device_constants._cache


def test_what_a_graph_uses_is_kept_for_it():
    before = constant((1.0,), torch.float32, CPU)
    with used_constants() as used:
        again, new = constant((1.0,), torch.float32, CPU), constant((2.0,), torch.float32, CPU)
    constant((3.0,), torch.float32, CPU)
    assert [part is other for part, other in zip(used, (again, new), strict=True)] == [True, True]
    assert again is before


def test_nothing_that_is_made_during_a_capture_is_cached(monkeypatch):
    monkeypatch.setattr(device_constants, "capturing", lambda device: True)
    assert constant((1.0,), torch.float32, CPU).tolist() == [1]
    assert not device_constants._cache
