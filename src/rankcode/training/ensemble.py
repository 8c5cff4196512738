"""Two networks as one, whose logits are a weighted sum of the logarithms of their probabilities."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

from torch import Tensor

from rankcode.cells import Parallel
from rankcode.network import Network
from rankcode.readouts import EnsembleReadout
from rankcode.stopping.traces import Traces

WEIGHTS = tuple(number / 8 for number in range(1, 11))  # that are tried; their sum also calibrates the probabilities
MAX_ROWS = 2000  # for two weights about as many are enough


def fit_ensemble(first: tuple[Network, Traces], second: tuple[Network, Traces]) -> tuple[Network, Traces]:
    """The ensemble of two networks, with its traces, from their traces on the same held-out rows at the same steps. The
    second may lack steps after the end of all rows. The weights have the smallest log-loss, averaged over steps."""
    (one, own), (other, others) = first, second
    count = min(len(own.steps), len(others.steps))
    logits = [each.probabilities[:, :count].clamp(min=1e-38).log() for each in (own, others)]
    some = slice(None, None, -(-len(own.labels) // MAX_ROWS))
    index = own.labels[some, None, None].expand(-1, count, 1)

    def mixed(weights: tuple[float, float], rows: slice) -> Tensor:
        return (weights[0] * logits[0][rows] + weights[1] * logits[1][rows]).log_softmax(-1)

    def likelihood(weights: tuple[float, float]) -> float:
        return float(own.weights[some] @ mixed(weights, some).gather(2, index)[..., 0].sum(1))

    weights = max(product(WEIGHTS, WEIGHTS), key=likelihood)
    probabilities = mixed(weights, slice(None)).exp()
    sizes = tuple(math.prod(network.cell.output_shape) for network in (one, other))
    readout = EnsembleReadout((one.readout, other.readout), sizes, weights)
    network = Network(Parallel(one.cell, other.cell), one.num_classes, readout, "softmax")
    return network, replace(own, activations=probabilities, probabilities=probabilities, steps=own.steps[:count])
