"""What can be trained on, and for how long."""

from types import SimpleNamespace

import pytest
import torch
from test_loop import QUIET, TASK, easy, make_network
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import rankcode as rc
from rankcode.data.sources import Arrays
from rankcode.training.plan import Plan, make_plan


@pytest.mark.parametrize(
    ("data", "settings", "batches"),
    [
        (easy(20), {"epochs": 2, "batch_size": 8}, 6),
        (easy(20), {"epochs": 0.5, "batch_size": 8}, 2),
        (easy(20), {"examples": 50, "batch_size": 8}, 8),  # 8 + 8 + 4, twice, and 8 + 2
        (easy(20), {"examples": 5, "batch_size": 64}, 1),
        (TASK.train, {"examples": 17, "batch_size": 8}, 3),
        (DataLoader(TensorDataset(*easy(20)), 6), {"epochs": 2}, 8),
        (DataLoader(TensorDataset(*easy(20)), 6), {"examples": 30}, 5),
    ],
)
def test_how_many_batches_there_are(data, settings, batches):
    history = rc.fit(make_network(), data, rc.AtEnd(), rc.Training(**settings, **QUIET))
    assert history.records[-1]["batch"] == batches


def test_small_data_is_trained_on_for_at_least_1000_batches():
    """50 epochs would be 50 batches."""
    plan = make_plan(Arrays(*easy(20)), rc.Training(batch_size=64), 1)
    assert plan == Plan(batches=1000, validate_every=20, save_every=20, checked_batches=1)


@pytest.mark.parametrize("length", [{"epochs": 1e308}, {"epochs": 1e300}, {"examples": 10**30}], ids=str)
def test_a_run_that_would_never_end_is_refused(length):
    with pytest.raises(
        ValueError, match=r"^(epochs|examples)=1e\+\d+ is too long: at most 2⁵³ batches can be trained on$"
    ):
        rc.fit(make_network(), easy(20), rc.AtEnd(), rc.Training(**length, **QUIET))


@pytest.mark.parametrize(
    ("batches", "validate_every", "halfway"),
    [(2_000, 10, [1_000]), (2_010, 20, [1_020]), (300, 10, [200]), (300, 290, [290]), (200, 10, []), (100, 10, [])],
)
def test_progress_is_judged_once_at_half_of_the_training(batches, validate_every, halfway):
    plan = Plan(batches, validate_every, save_every=10, checked_batches=1)
    assert [n for n in range(1, batches + 1) if plan.validates(n) and plan.is_halfway(n)] == halfway


def test_epochs_of_endless_data():
    with pytest.raises(ValueError, match=r"^this data has no epochs: give examples, how many rows to train on$"):
        rc.fit(make_network(), TASK, rc.AtEnd(), rc.Training(epochs=2, **QUIET))


class Plain(nn.Module):
    """A cell of a user's own that does not say what it gives."""

    def __init__(self):
        super().__init__()
        self.layer = nn.LazyLinear(6)

    def initial_state(self, rows):
        return torch.zeros(rows, 6)

    def forward(self, x_t, state):
        state = self.layer(torch.cat([x_t, state], 1)).tanh()
        return state, state


INPUTS, LABELS = easy(160)
LENGTHS = torch.arange(160) % 5 + 1


@pytest.mark.parametrize(
    "data",
    [
        (INPUTS, LABELS),
        [INPUTS, LABELS],
        (INPUTS, LABELS, LENGTHS),
        (INPUTS.numpy(), LABELS.numpy()),
        (INPUTS.double().numpy(), LABELS.int().numpy(), LENGTHS.int().numpy()),
        DataLoader(TensorDataset(INPUTS, LABELS), 16, shuffle=True),
        DataLoader(TensorDataset(INPUTS, LABELS, LENGTHS), 16, shuffle=True),
        SimpleNamespace(train=(INPUTS, LABELS), validation=(INPUTS, LABELS)),
        SimpleNamespace(train=(INPUTS, LABELS), validation=DataLoader(TensorDataset(INPUTS, LABELS), 33)),
        SimpleNamespace(train=(INPUTS, LABELS), validation=None),
    ],
    ids=lambda data: type(data).__name__,
)
@pytest.mark.parametrize("cell", ["lstm", "own"])
def test_every_kind_of_data_is_learnt_from(data, cell):
    torch.manual_seed(0)
    network = rc.Network(rc.cells.LSTM(1, 6) if cell == "lstm" else Plain(), 2)
    history = rc.fit(network, data, rc.AtSpike(0.8), rc.Training(epochs=6, batch_size=16, learning_rate=0.03, **QUIET))
    assert len(history.records) == 6 and history.records[-1]["examples"] == 960
    assert history.records[-1]["training"]["accuracy"] > 0.9
    assert rc.evaluate(network, (INPUTS, LABELS), rc.Threshold(0.8)).accuracy > 0.9
