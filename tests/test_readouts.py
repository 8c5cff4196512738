"""Readouts that change from one checkpoint to the next, and the mean of several readouts."""

import pytest
import torch

from rankcode import Network
from rankcode.cells import RandomKernels
from rankcode.readouts import CheckpointReadout, EnsembleReadout


def readout():
    torch.manual_seed(0)
    made = CheckpointReadout((3, 5, 9), (4, 2), 3, floor=0.1)
    with torch.no_grad():
        made.weight.normal_()
        made.bias.normal_()
        made.mixture.copy_(torch.tensor([[0.25, 0.75], [0.5, 0.5], [1.0, 0.0]]))
    return made


def test_probabilities_are_the_mixture_of_the_groups():
    made, features = readout(), torch.randn(5, 6)
    for step, k in ((1, 0), (3, 0), (4, 1), (5, 1), (9, 2), (20, 2)):
        parts = [
            (features[:, at] @ made.weight[k, at] + made.bias[k, g]).softmax(1)
            for g, at in enumerate((slice(0, 4), slice(4, 6)))
        ]
        expected = 0.9 * sum(share * part for share, part in zip(made.mixture[k], parts, strict=True)) + 0.1 / 3
        torch.testing.assert_close(made(features, step).exp(), expected)


def test_rows_at_different_steps():
    made, features = readout(), torch.randn(4, 6)
    steps = torch.tensor([3, 9, 4, 3])
    each = torch.cat([made(features[row : row + 1], int(step)) for row, step in enumerate(steps)])
    torch.testing.assert_close(made(features, steps), each)


def test_a_network_needs_to_be_told_the_step():
    cell = RandomKernels(1, 1, 1)
    network = Network(cell, 3, CheckpointReadout((2, 4), cell.group_sizes, 3))
    assert [network.may_fire(step) for step in (1, 2, 3, 4, 5)] == [False, True, False, True, False]
    with pytest.raises(ValueError, match="give the step"):
        network(torch.zeros(1, 1), network.initial_state(1))
    logits, _ = network(torch.zeros(1, 1), network.initial_state(1), 1)
    torch.testing.assert_close(logits.exp(), torch.full((1, 3), 1 / 3))


@pytest.mark.parametrize("checkpoints", [(), (0, 3), (3, 3), (5, 2)])
def test_checkpoints_increase(checkpoints):
    with pytest.raises(ValueError, match="increasing order"):
        CheckpointReadout(checkpoints, (1,), 2)


def test_an_ensemble_is_the_weighted_mean_of_log_probabilities():
    first, second = readout(), torch.nn.Linear(2, 3)
    features, steps = torch.randn(5, 8), torch.tensor([3, 9, 4, 3, 20])
    for weights in ((0.5, 0.5), (0.2, 0.7)):
        made = EnsembleReadout((first, second), (6, 2), weights)
        assert made.checkpoints == (3, 5, 9)
        for step in (4, steps):
            parts = first(features[:, :6], step).softmax(1), second(features[:, 6:]).softmax(1)
            expected = sum(weight * part.log() for weight, part in zip(weights, parts, strict=True))
            torch.testing.assert_close(made(features, step), expected)
    assert EnsembleReadout((first, second), (6, 2)).weights == (0.5, 0.5)


def test_one_sigmoid_output_is_two_classes_in_an_ensemble():
    one, two = torch.nn.Linear(4, 1), torch.nn.Linear(2, 2)
    features = torch.randn(5, 6)
    made = EnsembleReadout((one, two), (4, 2))
    p = one(features[:, :4]).sigmoid()
    expected = (torch.cat([1 - p, p], 1).log() + two(features[:, 4:]).log_softmax(1)) / 2
    assert made.checkpoints is None
    torch.testing.assert_close(made(features), expected)


def test_readouts_that_do_not_fit_together_are_refused():
    with pytest.raises(ValueError, match="different checkpoints"):
        EnsembleReadout((readout(), CheckpointReadout((2, 4), (2,), 3)), (6, 2))
    for readouts, sizes, weights in (((), (), None), ((readout(),), (6, 2), None), ((readout(),), (6,), (0.5, 0.5))):
        with pytest.raises(ValueError, match="every readout needs a number of features and a weight"):
            EnsembleReadout(readouts, sizes, weights)
