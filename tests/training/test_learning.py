"""Whole trainings that must come out well: convolutional and spiking networks on real images."""

import pytest
import torch

import rankcode as rc
from rankcode.cells import LIF, ConvLSTM, Stack


def accuracy(network, task, objective, **training):
    rc.fit(network, task, objective, rc.Training(batch_size=64, schedule="cosine", progress=False, **training))
    return rc.evaluate(network, task, objective.rule).accuracy


@pytest.fixture(autouse=True)
def digits():
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    torch.manual_seed(1)


def test_a_convolutional_lstm_learns_temporal_digits():
    network = rc.Network(ConvLSTM(1, 8, (8, 8)), outputs=10)
    objective = rc.AtSpike(0.95, beta=0.2)
    assert (
        accuracy(network, rc.tasks.TemporalDigits(), objective, epochs=30, learning_rate=0.005, ema_decay=0.99) > 0.95
    )


def test_a_spiking_network_learns_temporal_digits():
    network = rc.Network(Stack(LIF(64, 256, decay=0.9), LIF(256, 10, decay=0.9, emits="membranes")), outputs=10)
    assert network.activation == "membrane"
    objective = rc.AtSpike(1.0, beta=0.2)
    assert accuracy(network, rc.tasks.TemporalDigits(flat=True), objective, epochs=60, learning_rate=0.002) > 0.95
