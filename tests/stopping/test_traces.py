"""Traces: a rule decides from them as it does from the network."""

import pytest
import torch

from rankcode import Network, Patience, Threshold, cells, decide
from rankcode.rules import StepThresholds
from rankcode.stopping import traces as module
from rankcode.stopping.traces import traces_of


def network_and_data():
    torch.manual_seed(0)
    network = Network(cells.GRU(2, 8), 3)
    for parameter in network.parameters():
        parameter.data *= 4
    inputs, lengths = torch.randn(40, 12, 2), torch.randint(1, 13, (40,))
    return network, inputs, torch.randint(3, (40,)), lengths


@pytest.mark.parametrize(
    "rule",
    [
        Threshold(0.7),
        Threshold(0.7, (0, 1)),
        StepThresholds((0.9, 0.8, 0.6)),
        Patience(Threshold(0.5), 2),
        Threshold(1.0),
    ],
    ids=repr,
)
def test_a_rule_decides_from_traces_as_from_the_network(rule):
    network, inputs, labels, lengths = network_and_data()
    found = traces_of(network, (inputs, labels, lengths)).decide(rule)
    decision = decide(network, inputs, lengths, rule)
    for one, other in zip(found, (decision.label, decision.steps, decision.fired), strict=True):
        assert torch.equal(one, other)


def test_long_sequences_are_read_at_some_of_their_steps(monkeypatch):
    monkeypatch.setattr(module, "MAX_STEPS", 4)
    network, inputs, labels, lengths = network_and_data()
    lengths[0] = 12
    traces = traces_of(network, (inputs, labels, lengths))
    assert traces.steps == (1, 4, 7, 10, 12)
    state, seen = network.initial_state(40), []
    with torch.no_grad():
        for step in range(12):
            logits, state = network(inputs[:, step], state)
            seen.append(logits.softmax(1))
    for row in range(40):
        for number, step in enumerate(traces.steps):
            expected = seen[min(step, int(lengths[row])) - 1][row]
            torch.testing.assert_close(traces.probabilities[row, number].float(), expected)
