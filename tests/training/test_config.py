import math
import re

import numpy as np
import pytest
import torch

import rankcode as rc


@pytest.mark.parametrize(
    "settings",
    [
        {"epochs": 0},
        {"epochs": -1},
        {"epochs": math.inf},
        {"epochs": "3"},
        {"examples": 0},
        {"examples": 10.5},
        {"batch_size": 0},
        {"batch_size": 1.5},
        {"batch_size": True},
        {"learning_rate": 0},
        {"learning_rate": math.nan},
        {"learning_rate": math.inf},
        {"max_grad_norm": 0},
        {"max_grad_norm": -1.0},
        {"warmup_ratio": 1.0},
        {"warmup_ratio": -0.1},
        {"warmup_ratio": None},
        {"ema_decay": 1.0},
        {"ema_decay": -0.1},
        {"ema_decay": math.nan},
        {"weight_decay": -0.1},
        {"validate_every": 0},
        {"validate_every": 2.5},
        {"first_spike_threshold": 0},
        {"seed": -1},
        {"seed": 0.5},
        {"optimizer": "sgd"},
        {"schedule": "linear"},
        {"select": "f1"},
        {"finish_with": "first"},
        {"precision": "float64"},
        {"engine": "warp"},
    ],
    ids=str,
)
def test_a_bad_value_is_named(settings):
    (name,) = settings
    with pytest.raises(ValueError, match=rf"^{name} must be [^\n]+, not [^\n]+$"):
        rc.Training(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": 1, "examples": 1}, "give epochs or examples, not both"),
        ({"resume": True}, "resume needs a folder: name it with folder=…"),
    ],
)
def test_values_that_do_not_go_together(settings, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        rc.Training(**settings)


@pytest.mark.parametrize("device", ["warp", "cuda:x", "meta", "cuda"])
def test_a_device_that_is_not_there(device):
    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("there is one")
    network = rc.Network(rc.cells.GRU(1, 2), 1)
    with pytest.raises(ValueError, match=r"^(there is no device|PyTorch finds no GPU for)[^\n]+$"):
        rc.fit(network, rc.tasks.TwoSequence(), rc.AtEnd(), rc.Training(device=device))


def test_numbers_of_numpy_are_numbers():
    assert rc.Training(batch_size=np.int64(4), learning_rate=np.float32(0.5)).batch_size == 4


def test_the_rate_may_be_constant():
    config = rc.Training(learning_rate=0.5, schedule="constant")
    assert [config.learning_rate_at(share) for share in (0, 0.3, 0.999)] == [0.5, 0.5, 0.5]


def test_the_rate_falls_along_a_cosine():
    config = rc.Training(learning_rate=0.5, schedule="cosine")
    rates = [config.learning_rate_at(share) for share in (0, 1 / 3, 0.5, 2 / 3, 1)]
    assert rates == pytest.approx([0.5, 0.375, 0.25, 0.125, 0], abs=1e-15)


def test_the_rate_rises_from_zero():
    config = rc.Training(learning_rate=0.5, schedule="constant", warmup_ratio=0.2)
    assert [config.learning_rate_at(share) for share in (0, 0.1, 0.2, 0.9)] == [0, 0.25, 0.5, 0.5]


def test_a_cosine_begins_where_the_warmup_ends():
    config = rc.Training(learning_rate=0.5, schedule="cosine", warmup_ratio=0.2)
    rates = [config.learning_rate_at(share) for share in (0, 0.1, 0.2, 0.6, 1)]
    assert rates == pytest.approx([0, 0.25, 0.5, 0.25, 0], abs=1e-15)
