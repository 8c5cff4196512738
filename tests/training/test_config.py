import math
import re

import numpy as np
import pytest
import torch

import rankcode as rc

BAD = {
    "epochs": (0, -1, math.inf, "3"),
    "examples": (0, 10.5),
    "batch_size": (0, 1.5, True),
    "learning_rate": (0, math.nan, math.inf),
    "max_grad_norm": (0, -1.0),
    "warmup_ratio": (1.0, -0.1, None),
    "ema_decay": (1.0, -0.1, math.nan),
    "weight_decay": (-0.1,),
    "validate_every": (0, 2.5),
    "first_spike_threshold": (0,),
    "seed": (-1, 0.5),
    **{name: ("other",) for name in ("optimizer", "schedule", "select", "finish_with", "precision", "engine")},
}


@pytest.mark.parametrize("settings", [{name: value} for name, values in BAD.items() for value in values], ids=str)
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


@pytest.mark.parametrize(
    ("settings", "rates"),
    [
        ({"schedule": "constant"}, [0.5, 0.5, 0.5, 0.5, 0.5]),
        ({"schedule": "cosine"}, [0.5, 0.5 * (1 + math.cos(0.1 * math.pi)) / 2, 0.45225, 0.17275, 0]),
        ({"schedule": "constant", "warmup_ratio": 0.2}, [0, 0.25, 0.5, 0.5, 0.5]),
        ({"schedule": "cosine", "warmup_ratio": 0.2}, [0, 0.25, 0.5, 0.25, 0]),
    ],
    ids=str,
)
def test_the_learning_rate_over_time(settings, rates):
    config = rc.Training(learning_rate=0.5, **settings)
    found = [config.learning_rate_at(share) for share in (0, 0.1, 0.2, 0.6, 1)]
    assert found == pytest.approx(rates, rel=1e-4, abs=1e-15)
