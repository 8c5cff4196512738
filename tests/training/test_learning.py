"""Whole trainings that must come out well: convolutional and spiking networks on real images."""

import pytest
import torch

import rankcode as rc
from rankcode.cells import LIF, ConvLSTM, Stack


def accuracy(network, task, objective, **training):
    rc.fit(network, task, objective, rc.Training(batch_size=64, validate_every=200, progress=False, **training))
    return rc.evaluate(network, task, objective.rule).accuracy


@pytest.fixture(autouse=True)
def digits():
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    torch.manual_seed(1)


def test_a_convolutional_lstm_learns_temporal_digits():
    network = rc.Network(ConvLSTM(1, 6, (8, 8)), outputs=10)
    assert accuracy(network, rc.tasks.TemporalDigits(), rc.AtSpike(0.95, beta=0.2), epochs=6, learning_rate=0.02) > 0.9


def test_a_spiking_network_learns_temporal_digits():
    network = rc.Network(Stack(LIF(64, 128, decay=0.9), LIF(128, 10, decay=0.9, emits="membranes")), outputs=10)
    assert network.activation == "membrane"
    objective = rc.AtSpike(1.0, beta=0.2)
    assert accuracy(network, rc.tasks.TemporalDigits(flat=True), objective, epochs=10, learning_rate=0.01) > 0.9
