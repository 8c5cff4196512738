"""Backward induction: from the last step to the first, is it better to answer now or to read on?

The cost of answering at a step is 1 − the largest probability (the chance to be wrong, if probabilities are calibrated)
plus the cost of the steps read. V, the cost of a row from a step on, is the cost of answering or what V is one step
later, whichever the rule chooses. The rule may only look at the row's confidence u = logit(largest probability), so the
gain of answering, V of the next step − the cost now, is regressed on u over all rows, and over the steps that follow,
with weights that fall with their distance: few rows are enough for a smooth rule.

With a second axis the gain is regressed on both. Then the chance to be wrong is that at this place of both axes: at the
same confidence, rows at one end of the second axis may be right more often than those at the other, of which the
largest probability says nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rankcode.rules import OptimalStopping, StepThresholds, between, interpolated_gain
from rankcode.stopping.calibration import Calibration, calibrate
from rankcode.stopping.traces import Traces

GRID = 56  # confidences of the table
BANDWIDTH = 0.5  # of the regression, in units of confidence
WINDOW = 0.4  # share of all steps over which the regression looks ahead
# With a second axis, for which there are thousands of rows:
FINE_BANDWIDTH, FINE_WINDOW = 0.3, 0.2
AXIS_BANDWIDTH = 0.4  # in standard deviations of the second axis
FINE = 4  # bins of the regression to one of the grid
PRIOR = 1e-7  # weight that keeps the mean defined where there is no row
AXIS_PRIOR = 2.0  # rows that count as if they had the mean gain of all rows of their confidence
MIN_SUPPORT = 0.01  # rows, as weighted by their distance, that a confidence needs to count as seen


def fit_optimal(traces: Traces, waiting: Tensor, calibration: Calibration | None = None) -> OptimalStopping:
    """The rule with the lowest expected cost. `waiting` [rows, steps]: the cost of having read so far. `calibration` of
    these traces; by default probabilities count as calibrated. If the traces have a second axis, the rule reads it as
    its only feature."""
    temperatures, confidence, errors = calibration or calibrate(traces, temperatures=False)
    cost = errors + waiting  # [rows, steps]
    count, weights = len(traces.steps), traces.weights
    low, high, reach = OptimalStopping.LOWEST, OptimalStopping.HIGHEST, OptimalStopping.AXIS_REACH
    bins = (GRID - 1) * FINE + 1
    left, part = between(confidence, low, high, bins)
    if traces.axis is None:
        bandwidth, share_ahead = BANDWIDTH, WINDOW
        axis_bins, beside, near_axis = 1, None, torch.ones(1, 1, dtype=torch.float64)
    else:
        bandwidth, share_ahead = FINE_BANDWIDTH, FINE_WINDOW
        axis_bins = (OptimalStopping.AXIS_PLACES - 1) * FINE + 1
        beside, near_axis = (
            between(traces.axis, -reach, reach, axis_bins),
            _near(-reach, reach, axis_bins, AXIS_BANDWIDTH),
        )
    near, window = _near(low, high, bins, bandwidth), max(1, round(share_ahead * count))
    # Sums of weights and of weighted gains in each bin, at each step.
    mass, total = torch.zeros(2, count, bins * axis_bins, dtype=torch.float64)
    gains = torch.zeros(max(count - 1, 0), GRID * len(near_axis), dtype=torch.float64)
    value = cost[:, -1]
    for step in range(count - 2, -1, -1):
        better = value - cost[:, step]
        corners = [(left[:, step], weights * (1 - part[:, step])), (left[:, step] + 1, weights * part[:, step])]
        if beside is not None:
            below, over = beside[0][:, step], beside[1][:, step]
            corners = [(at * axis_bins + below, share * (1 - over)) for at, share in corners] + [
                (at * axis_bins + below + 1, share * over) for at, share in corners
            ]
        for at, share in corners:
            mass[step].index_add_(0, at, share)
            total[step].index_add_(0, at, share * better)
        ahead = torch.arange(step, min(step + window, count - 1))
        fading = (1 - (ahead - step) / window).double()
        support, numerator = (near @ (fading @ sums[ahead]).view(bins, axis_bins) for sums in (mass, total))
        seen = support.sum(1)
        gain = (numerator.sum(1) + PRIOR * total[ahead].sum()) / (seen + PRIOR * mass[ahead].sum())
        if beside is not None:
            gain = (near_axis @ numerator.T + AXIS_PRIOR * gain) / (near_axis @ support.T + AXIS_PRIOR)
        supported = (seen > MIN_SUPPORT).nonzero()
        if len(supported):  # beyond the confidences of all rows, the gain stays what it is at the last of them
            gain = gain[..., torch.arange(GRID).clamp(int(supported[0]), int(supported[-1]))]
        gains[step] = gain.flatten()
        axis = None if traces.axis is None else traces.axis[:, step]
        now = interpolated_gain(gains, step, confidence[:, step], axis)
        value = torch.where(now < 0, value, cost[:, step])
    table = tuple(map(tuple, (gains * 1e6).round().div(1e6).tolist()))
    shown = None if temperatures is None else tuple(round(each, 4) for each in temperatures.tolist())
    return OptimalStopping(traces.steps, table, shown, axis=None if traces.axis is None else ((1.0, 0.0),))


def _near(low: float, high: float, bins: int, bandwidth: float) -> Tensor:
    """How much each bin counts at each place of the table, [places, bins]."""
    centres = torch.linspace(low, high, bins, dtype=torch.float64)
    return torch.exp(-((centres[::FINE, None] - centres) ** 2) / (2 * bandwidth**2))


def fit_step_thresholds(traces: Traces, waiting: Tensor) -> StepThresholds:
    """One θ for each step: at each, from the last to the first, the θ with the lowest cost for the rows, weighted as
    above, of this and the following steps. θ for steps between those of the traces is 1: no row fires there."""
    confidence = traces.activations.amax(-1)
    cost = (traces.activations.argmax(-1) != traces.labels[:, None]).double() + waiting
    count, weights = len(traces.steps), traces.weights
    window = max(1, round(WINDOW * count))
    candidates = thresholds_for(traces)
    value, table = cost[:, -1], torch.zeros(count, len(candidates), dtype=torch.float64)
    thresholds = [float(candidates[0])] * count  # at the last step every row answers
    for step in range(count - 2, -1, -1):
        reached = torch.searchsorted(candidates, confidence[:, step].contiguous(), right=True)  # how many
        gained = torch.zeros(len(candidates) + 1, dtype=torch.float64)
        gained.index_add_(0, reached, weights * (cost[:, step] - value))
        table[step] = gained.flip(0).cumsum(0).flip(0)[1:]  # the cost that answering at each candidate adds
        ahead = torch.arange(step, min(step + window, count - 1))
        fading = (1 - (ahead - step) / window).double()
        best = int((fading @ table[ahead]).argmin())
        thresholds[step] = float(candidates[best])
        value = torch.where(confidence[:, step] >= thresholds[step], cost[:, step], value)
    every = [1.0] * traces.steps[-1]
    for step, threshold in zip(traces.steps, thresholds, strict=True):
        every[step - 1] = threshold
    return StepThresholds(tuple(every))


def thresholds_for(traces: Traces) -> Tensor:
    """Thresholds worth trying, in increasing order: every row reaches the first, hardly any the last."""
    largest = traces.activations.amax(-1)
    if float(largest.max()) > 1:  # membranes of a spiking output layer
        levels = torch.linspace(0, 1, 101, dtype=torch.float64)
        found = torch.quantile(largest.flatten()[:: 1 + largest.numel() // 10**6], levels)
        return found[found > 0].unique()
    lowest = 1 / traces.activations.shape[-1]
    return torch.cat([torch.linspace(torch.logit(torch.tensor(lowest)), 9, 96).double().sigmoid(), torch.ones(1)])
