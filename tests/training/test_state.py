"""What a run is between two batches: its average, its best model, its checkpoint."""

import pytest
import torch
from test_loop import make_network
from torch import nn

import rankcode as rc
from rankcode.training.distributed import Processes
from rankcode.training.state import TrainingState


def make_state(network=None, **settings):
    config = rc.Training(learning_rate=0.01, folder="run", **settings)
    return TrainingState(network or make_network(), config, Processes(), torch.device("cpu"))


VALIDATION = {  # of six records: each better downwards only where the winners say so
    "accuracy": [0.8, 0.7, 0.8, 0.9, 0.9, 0.9],
    "loss": [0.5, 0.4, 0.6, 0.4, 0.4, 0.4],
    "harmonic_mean": [0.5, 0.6, 0.55, 0.6, 0.6, 0.6],
    "earliness": [0.9, 0.7, 0.8, 0.9, 0.9, 0.2],
    "mean_steps": [7.0, 6.0, 5.0, 5.0, 4.0, 4.0],
}
FIRST_SPIKE = {"accuracy": [0.3, 0.5, 0.4, 0.5, 0.4, 0.5], "mean_steps": [3.0, 3.0, 2.0, 3.0, 1.0, 2.0]}


@pytest.mark.parametrize(
    ("settings", "winners"),
    [
        ({"select": "accuracy"}, [0, 2, 3, 4, 5]),  # the last two are equal
        ({"select": "first_spike_accuracy"}, [0, 1, 3, 5]),
        ({"select": "loss"}, [0, 1, 3, 4, 5]),
        ({"select": "harmonic_mean"}, [0, 1, 3, 4, 5]),
        ({}, [0, 2, 3, 4, 5]),  # the cost at 0.2: 0.38, 0.44, 0.36, 0.28, 0.28, 0.14
        ({"select": "cost", "select_alpha": 2}, [0, 1, 5]),  # 2.0, 1.7, 1.8, 1.9, 1.9, 0.5
        ({"select": "cost", "select_alpha": 0.0}, [0, 2, 3, 4, 5]),  # errors alone
    ],
    ids=str,
)
def test_the_best_model_is_the_one_with_the_most_merit_then_the_fewest_steps_then_the_later(settings, winners):
    network = make_network()
    state = make_state(network, **settings)
    chosen = []
    for number in range(6):
        nn.init.constant_(network.readout.bias, number)
        report, spikes = ({name: column[number] for name, column in part.items()} for part in (VALIDATION, FIRST_SPIKE))
        if state.add({"batch": number, "examples": number, "validation": report, "first_spike": spikes}):
            chosen.append(number)
    assert chosen == winners
    assert state.best["batch"] == winners[-1] == state.best_weights["readout.bias"].item()


class Shared(nn.Module):
    """A readout with a weight that two layers share, a buffer that is not saved, and a count."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 2)
        self.again = self.first
        self.register_buffer("last", torch.zeros(()), persistent=False)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.last, self.calls = x.detach().mean(), self.calls + 1
        return self.second(self.again(self.first(x)))

    def get_extra_state(self):
        return {"note": "not a tensor"}

    def set_extra_state(self, state):
        pass


def test_the_average_of_shared_weights_and_buffers():
    torch.manual_seed(0)
    network = rc.Network(rc.cells.LSTM(3, 4), 2, Shared())
    state = make_state(network, ema_decay=0.9)
    state.batch = 1
    before = [part.detach().clone() for part in network.parameters()]
    loss, _ = rc.AtEnd()(network, torch.randn(8, 5, 3), torch.randint(2, (8,)))
    state.backward(loss)
    state.step()
    for average, old, new in zip(state.average.parameters(), before, network.parameters(), strict=True):
        torch.testing.assert_close(average, old + 0.1 * (new - old))
    assert state.average.readout.calls == network.readout.calls > 0
    torch.testing.assert_close(state.average.readout.last, 0.1 * network.readout.last)


def test_a_checkpoint_restores_the_state():
    """Time that was spent between the last record and the checkpoint counts in the next record."""
    state, again = make_state(make_network(seed=1), ema_decay=0.9), make_state(make_network(seed=2), ema_decay=0.9)
    state.backward(rc.AtEnd()(state.network, torch.randn(8, 5, 1), torch.randint(2, (8,)))[0])
    state.step()
    state.batch, state._validated = 7, state._validated - 100
    again.restore(state.checkpoint())
    assert 100 <= again.training_seconds < 110 and 100 <= again.checkpoint()["training_seconds"] < 110
    times = {"seconds": 0, "training_seconds": 0}
    assert str(again.checkpoint() | times) == str(state.checkpoint() | times) and again.batch == 7


def test_a_checkpoint_of_another_network_is_refused():
    with pytest.raises(ValueError, match=r"^run/checkpoint\.pt does not fit the network: readout\.weight is \[2, 6\]"):
        make_state(make_network(outputs=1)).restore(make_state(make_network(outputs=2)).checkpoint())
