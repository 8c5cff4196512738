"""Fit a network of random kernels, without gradient descent: the network for tens to thousands of rows.

The cell, `cells.RandomKernels`, only draws its kernels. At each checkpoint, each of its groups of features gets a ridge
regression on the labels, whose outputs a scale turns into probabilities; the probabilities of the groups are mixed
(`readouts.CheckpointReadout`). Penalty, scale and mixture minimise the log-loss of *held-out* predictions: the
prediction for each row by the regression on all other rows, which needs no further fit. They also show how the network
does on new data, so stopping rules are fitted to them.

The order of the rows changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from rankcode.cells.random_kernels import RandomKernels
from rankcode.network import Network
from rankcode.progress import Progress
from rankcode.readouts import CheckpointReadout
from rankcode.state import map_state

# In eightieths of the longest row. If steps are expensive, answers are early, so checkpoints are denser there.
CHECKPOINTS = (*range(2, 20), *range(20, 40, 2), *range(40, 81, 4))
NUM_COUNTS = 6000  # features that count: more gain little
PENALTIES = torch.logspace(-3.5, 1.5, 11, dtype=torch.float64)  # relative to the mean square of a row's features
SCALES = torch.logspace(-0.15, 2.08, 22, dtype=torch.float64)  # 0.7 … 120
SEARCH_EVERY = 5  # checkpoints: from one to the next the best penalty hardly changes
MAX_SEARCH_ROWS = 500  # the best penalty is that of the noise in the labels, however many rows there are
MIN_SPREADS = (0.02, 0.02, 0.001)  # of counts on inputs and differences, and extremes: smaller spreads count as noise
NEIGHBOURS = 2  # checkpoints before and after, over which scales and mixtures are smoothed
PRIOR_ROWS = 6.0  # in favour of equal shares of the groups
MAX_FLOAT64_ROWS = 200  # for more, float32 is exact enough and twice as fast


class KernelFit(NamedTuple):
    network: Network
    left_out: Tensor  # [rows, checkpoints, classes]: held-out probabilities, float64


@torch.no_grad()
def fit_kernels(
    inputs: Tensor,
    lengths: Tensor,
    labels: Tensor,
    num_classes: int,
    weights: Tensor | None = None,
    seed: int = 0,
    num_counts: int = NUM_COUNTS,
    progress: bool = False,
) -> KernelFit:
    """Fit to rows [rows, steps, channels] on a common scale, on their device. `weights` [rows]: how much each counts,
    by default 1."""
    weights = torch.ones(len(inputs)) if weights is None else weights
    weights, lengths, labels = weights.double().to(inputs.device), lengths.to(inputs.device), labels.to(inputs.device)
    steps = int(lengths.max())
    cell = RandomKernels.for_length(inputs.shape[2], steps, num_counts).to(inputs.device)
    generator = torch.Generator().manual_seed(seed)
    cell.draw(inputs, lengths, weights, generator)
    checkpoints = checkpoints_for(steps)
    floor = float(1 / (weights.sum() + 1))
    readout = CheckpointReadout(checkpoints, cell.group_sizes, num_classes, floor).to(inputs.device)
    one_hot = F.one_hot(labels, num_classes).double()
    prior = weights @ one_hot / weights.sum()
    targets = one_hot - prior

    searched = checkpoints[SEARCH_EVERY // 2 :: SEARCH_EVERY] or checkpoints[-1:]
    rows = torch.randperm(len(inputs), generator=generator)[:MAX_SEARCH_ROWS].sort().values.to(inputs.device)
    found = []
    for features in features_at(cell, inputs[rows], lengths[rows], searched):
        regressions = _regressions(features, cell, targets[rows], weights[rows])
        outputs = torch.stack([regression.left_out_by_penalty() for regression in regressions]) + prior
        found.append(_log_losses(outputs, labels[rows], weights[rows], floor).amin(-1))
    penalties = PENALTIES[_smoothed(torch.stack(found), 1).argmin(-1).cpu()]  # [searched, groups]

    outputs = []  # [groups, rows, classes] at each checkpoint
    every = features_at(cell, inputs, lengths, checkpoints)
    for number, features in enumerate(_watched(every, len(checkpoints), progress)):
        nearest = min(number // SEARCH_EVERY, len(searched) - 1)
        now = []
        for group, regression in enumerate(_regressions(features, cell, targets, weights)):
            left_out, weight, bias = regression.solve(float(penalties[nearest, group]))
            readout.weight[number].split(cell.group_sizes)[group].copy_(weight)
            readout.bias[number, group] = bias + prior
            now.append(left_out + prior)
        outputs.append(torch.stack(now))
    losses = torch.stack([_log_losses(each, labels, weights, floor) for each in outputs])
    scales = SCALES.to(inputs.device)[_smoothed(losses, NEIGHBOURS).argmin(-1)]  # [checkpoints, groups]
    scaled = zip(outputs, scales[:, :, None, None], strict=True)
    parts = torch.stack([_probabilities(each, scale, floor) for each, scale in scaled])
    mixture = _mixture(parts, labels, weights)  # [checkpoints, groups]
    readout.scale.copy_(scales)
    readout.mixture.copy_(mixture)
    left_out = (parts * mixture[:, :, None, None]).sum(1).transpose(0, 1)
    return KernelFit(Network(cell, num_classes, readout, "softmax"), left_out)


def checkpoints_for(steps: int) -> tuple[int, ...]:
    """Checkpoints for rows of up to so many steps: every step, if these are few."""
    if steps <= len(CHECKPOINTS):
        return tuple(range(1, steps + 1))
    return tuple(sorted({round(place * steps / CHECKPOINTS[-1]) for place in CHECKPOINTS}))


def _watched(found: Iterable[Tensor], total: int, enabled: bool) -> Iterator[Tensor]:
    """The features at each checkpoint, with a bar."""
    with Progress(total, enabled) as bar:
        for done, features in enumerate(found, 1):
            yield features
            if bar.due(done):
                bar.show(done, f"{done} of {total} checkpoints")


def features_at(cell: RandomKernels, inputs: Tensor, lengths: Tensor, steps: Iterable[int]) -> Iterator[Tensor]:
    """The features [rows, features] after each of these steps; those of a row that has ended stay as they are."""
    state = cell.initial_state(len(inputs))
    features = inputs.new_zeros(len(inputs), *cell.output_shape)
    done = 0
    for step in steps:
        ends = lengths.clamp(max=step)
        for end in ends[ends > done].unique().tolist():
            rows = (ends == end).nonzero().squeeze(1)
            before = map_state(lambda part, at=rows: part[at], state)
            now, after = cell.forward_block(inputs[rows, done:end], before)
            state = map_state(lambda whole, part, at=rows: whole.index_copy_(0, at, part), state, after)
            features[rows] = now
        done = step
        yield features


class _Regression:
    """Ridge regression of targets [rows, classes] on features [rows, features] with weights, both centred."""

    def __init__(self, features: Tensor, targets: Tensor, weights: Tensor, min_spread: float):
        dtype = torch.float64 if len(features) <= MAX_FLOAT64_ROWS else torch.float32
        features, share = features.to(dtype), (weights / weights.sum()).to(dtype)
        self.targets, self.weights = targets, weights
        self.mean = share @ features
        rows = features - self.mean
        spread = (share @ rows.square()).sqrt()
        self.divisor = torch.where(spread > 1e-7, spread + min_spread, torch.inf)
        rows.div_(self.divisor).mul_(weights.sqrt().to(dtype)[:, None])
        size = rows.square().sum() / weights.sum()  # mean square of a row
        self.root_size = size.clamp(min=1e-12).sqrt()
        self.rows = rows.div_(self.root_size)
        self.dual = len(rows) <= rows.shape[1]
        self.gram = self.rows @ self.rows.T if self.dual else self.rows.T @ self.rows
        self.weighted_targets = (targets * weights.sqrt()[:, None]).to(dtype)

    def left_out_by_penalty(self) -> Tensor:
        """Left-out predictions for each penalty, [penalties, rows, classes]."""
        # In float32 the algorithm does not always converge when many eigenvalues are 0.
        values, vectors = (part.to(self.gram) for part in torch.linalg.eigh(self.gram.double()))
        factors = vectors * values.clamp(min=0).sqrt() if self.dual else self.rows @ vectors  # [rows, values]
        shrunk = 1 / (values.clamp(min=0)[:, None] + PENALTIES.to(values))  # [values, penalties]
        turned = factors.T @ self.weighted_targets
        fitted = torch.einsum("rv,vp,vc->prc", factors, shrunk, turned)
        return self._left_out(fitted, (factors.square() @ shrunk).T)

    def solve(self, penalty: float) -> tuple[Tensor, Tensor, Tensor]:
        """Left-out predictions [rows, classes], weights [features, classes] and biases [classes]."""
        identity = torch.eye(len(self.gram), dtype=self.gram.dtype, device=self.gram.device)
        factor = torch.linalg.cholesky(self.gram + penalty * identity)
        if self.dual:
            inverse = torch.linalg.solve_triangular(factor, identity, upper=False)
            dual = inverse.T @ (inverse @ self.weighted_targets)
            fitted, leverage = self.weighted_targets - penalty * dual, 1 - penalty * inverse.square().sum(0)
            solution = self.rows.T @ dual
        else:
            half = torch.linalg.solve_triangular(factor, self.rows.T, upper=False)  # [features, rows]
            turned = half @ self.weighted_targets
            fitted, leverage = half.T @ turned, half.square().sum(0)
            solution = torch.linalg.solve_triangular(factor.T, turned, upper=True)
        weight = solution / (self.divisor * self.root_size)[:, None]
        return self._left_out(fitted, leverage), weight, -(self.mean @ weight).double()

    def _left_out(self, fitted: Tensor, leverage: Tensor) -> Tensor:
        """What is predicted for a row without it."""
        residual = self.targets - fitted.double() / self.weights.sqrt()[:, None]
        own = leverage + self.weights / self.weights.sum()
        return self.targets - residual / (1 - own).clamp(min=1e-6)[..., None]


def _regressions(features: Tensor, cell: RandomKernels, targets: Tensor, weights: Tensor) -> Iterator[_Regression]:
    for part, min_spread in zip(features.split(cell.group_sizes, 1), MIN_SPREADS, strict=True):
        yield _Regression(part, targets, weights, min_spread)


def _probabilities(outputs: Tensor, scale: Tensor | float, floor: float) -> Tensor:
    return (1 - floor) * (scale * outputs).softmax(-1) + floor / outputs.shape[-1]


def _log_losses(outputs: Tensor, labels: Tensor, weights: Tensor, floor: float) -> Tensor:
    """The log-loss of outputs [..., rows, classes] with each scale, [..., scales]."""
    index = labels.expand(outputs.shape[:-1]).unsqueeze(-1)
    share = weights / weights.sum()
    each = [_probabilities(outputs, scale, floor).gather(-1, index)[..., 0].log() @ share for scale in SCALES.tolist()]
    return -torch.stack(each, -1)


def _smoothed(values: Tensor, neighbours: int) -> Tensor:
    """Means over neighbours in the first dimension."""
    places = range(len(values))
    return torch.stack([values[max(0, place - neighbours) : place + neighbours + 1].mean(0) for place in places])


def _mixture(parts: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Shares [checkpoints, groups] with the largest likelihood of the labels, by expectation-maximisation, from the
    probabilities [checkpoints, groups, rows, classes] of the groups."""
    likelihood = parts.gather(-1, labels.expand(parts.shape[:-1]).unsqueeze(-1))[..., 0].transpose(0, 1)
    groups, checkpoints, _ = likelihood.shape
    shares = torch.full((groups, checkpoints, 1), 1 / groups, dtype=torch.float64, device=parts.device)
    for _ in range(30):
        own = likelihood * shares
        expected = (own / own.sum(0) @ weights).T  # [checkpoints, groups]
        expected = (_smoothed(expected, NEIGHBOURS) + PRIOR_ROWS / groups) / (weights.sum() + PRIOR_ROWS)
        shares = expected.T[:, :, None]
    return shares[:, :, 0].T
