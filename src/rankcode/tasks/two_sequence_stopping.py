"""The optimal observer of the 2-sequence problem, when an error costs 1 and every step a constant.

All that matters of a sequence's past is its sum and its sum of squares. Backward induction from the last step gives, on
a grid of these two, the expected cost of reading on; the optimal observer answers as soon as answering costs no more
than that. By symmetry only the magnitude of the sum counts.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rankcode.tasks.two_sequence_evidence import NoiseEvidence


class StoppingLimit:
    """The optimal observer for each of several step costs.

    `expected_cost` [costs] is its mean cost, errors and steps together. It is computed, not sampled, and accurate to
    about 1e-5: a finer grid changes it by that much.
    """

    SUM_NODES = 48
    NOISE_NODES = 36

    def __init__(self, evidence: NoiseEvidence, costs: tuple[float, ...]):
        if not costs or min(costs) <= 0:
            raise ValueError(f"step costs must be positive, and at least one, not {list(costs)}")
        self.evidence = evidence
        self.costs = torch.tensor(costs, dtype=torch.float64)
        # Where the odds of an error are far below the cost of a step, every observer has answered.
        self.largest_log_odds = 5 - math.log(min(*costs, 0.5))
        coarse = self._next_values(evidence.low / 2)
        fine = self._next_values(evidence.low / 16)  # the error of the last answer has a kink where the answer changes

        self.tables: list[Tensor] = [torch.empty(0)] * evidence.steps  # by step: see _padded
        for step in range(evidence.steps - 1, 0, -1):
            noise = torch.linspace(0, self._noisiest(step), self.NOISE_NODES, dtype=torch.float64)
            root_mean_square = evidence.low * torch.expm1(noise)
            share = torch.linspace(0, 1, self.SUM_NODES, dtype=torch.float64)
            total = self._largest_sum(step, root_mean_square)[:, None] * share
            squares = (step * root_mean_square**2)[:, None].expand_as(total)
            next_values = fine if step + 1 == evidence.steps else coarse
            table = self._reading_on(step, total.flatten(), squares.flatten(), next_values)
            self.tables[step] = _padded(table.unflatten(0, total.shape))
        start = torch.zeros(1, dtype=torch.float64)
        self.expected_cost = self._reading_on(0, start, start, fine)[0]

    def answers(self, step: int, total: Tensor, squares: Tensor, log_odds: Tensor) -> Tensor:
        """Whether the optimal observer answers now, for each row and step cost: [rows, costs]."""
        if step == self.evidence.steps:
            return torch.ones(len(total), len(self.costs), dtype=torch.bool, device=total.device)
        return torch.sigmoid(-log_odds.abs())[:, None] <= self.cost_of_reading_on(step, total, squares)

    def cost_of_reading_on(self, step: int, total: Tensor, squares: Tensor) -> Tensor:
        """The expected future cost of reading another step, interpolated on the grid: […, costs]."""
        table = self.tables[step].to(total.device)
        root_mean_square = (squares / step).sqrt()
        noise = torch.log1p(root_mean_square / self.evidence.low) / self._noisiest(step)
        share = total.abs() / self._largest_sum(step, root_mean_square).clamp(min=1e-12)
        row, row_weights = _cubic(noise.clamp(max=1) * (self.NOISE_NODES - 1), self.NOISE_NODES)
        column, column_weights = _cubic(share.clamp(max=1) * (self.SUM_NODES - 1), self.SUM_NODES)
        corner = row * (self.SUM_NODES + 2) + column
        result = torch.zeros((), dtype=table.dtype, device=table.device)
        for down, row_weight in enumerate(row_weights):
            line = torch.zeros((), dtype=table.dtype, device=table.device)
            for along, column_weight in enumerate(column_weights):
                line = line + column_weight[..., None] * table[corner + (down * (self.SUM_NODES + 2) + along)]
            result = result + row_weight[..., None] * line
        return result

    def _next_values(self, spacing: float) -> tuple[Tensor, Tensor]:
        """Values of the next input, and the probability of each by class and σ: [classes · quadrature, values]."""
        evidence = self.evidence
        reach = math.ceil((evidence.mean + 5 * evidence.high) / spacing)
        value = spacing * torch.arange(-reach, reach + 1, dtype=torch.float64)
        mean = evidence.mean * torch.tensor([1.0, -1.0], dtype=torch.float64)[:, None, None]
        sigma = evidence.sigma[:, None]
        density = (-(((value - mean) / sigma) ** 2) / 2).exp() / (math.sqrt(2 * math.pi) * sigma)
        return value, spacing * density.flatten(0, 1)

    def _reading_on(self, step: int, total: Tensor, squares: Tensor, next_values: tuple[Tensor, Tensor]) -> Tensor:
        """One step of the induction: the cost of a step and the expected cost after it, [nodes] to [nodes, costs]."""
        evidence, (value, density) = self.evidence, next_values
        terms = torch.cat([evidence.log_terms(step, far) for far in evidence.distances(step, total, squares)], dim=-1)
        probability = terms.softmax(-1) @ density  # [nodes, values]
        total, squares = total[:, None] + value, squares[:, None] + value**2
        error = torch.sigmoid(-evidence.log_odds(step + 1, total, squares).abs())
        expected = (probability * error).sum(1, keepdim=True)
        if step + 1 < evidence.steps:
            # Reading on costs at least one step: it saves nothing where the expected error costs less.
            node, column = torch.nonzero((error > self.costs.min()) & (probability > 1e-8), as_tuple=True)
            reading_on = self.cost_of_reading_on(step + 1, total[node, column], squares[node, column])
            saved = (reading_on - error[node, column, None]).clamp(max=0) * probability[node, column, None]
            expected = expected.repeat(1, len(self.costs)).index_add(0, node, saved)
        return self.costs + expected

    def _noisiest(self, step: int) -> float:
        """The largest noise coordinate on the grid; noisier sequences are clipped to it."""
        evidence = self.evidence
        return math.log1p((evidence.mean + evidence.high * (1 + 4 / math.sqrt(step))) / evidence.low)

    def _largest_sum(self, step: int, root_mean_square: Tensor) -> Tensor:
        """The largest sum on the grid: about the smaller of the largest possible and one with sufficient evidence."""
        evidence = self.evidence
        enough = self.largest_log_odds * (root_mean_square**2 + evidence.low**2) / (2 * evidence.mean)
        largest = step * root_mean_square
        return largest * (1 + (largest / enough) ** 4) ** -0.25  # smooth, so that interpolation stays accurate


def _padded(table: Tensor) -> Tensor:
    """A grid [noise, sum, costs] with one more node on each side, flattened to [nodes, costs]."""
    table = torch.cat([table[:, 1:2], table, 2 * table[:, -1:] - table[:, -2:-1]], dim=1)  # even in the sum
    table = torch.cat([2 * table[:1] - table[1:2], table, 2 * table[-1:] - table[-2:-1]])
    return table.flatten(0, 1)


def _cubic(position: Tensor, nodes: int) -> tuple[Tensor, list[Tensor]]:
    """The first of four padded nodes around each position, and their weights (Catmull-Rom)."""
    first = position.long().clamp(max=nodes - 2)
    part = position - first
    square, cube = part**2, part**3
    return first, [
        square - (part + cube) / 2,
        1 - 2.5 * square + 1.5 * cube,
        part / 2 + 2 * square - 1.5 * cube,
        (cube - square) / 2,
    ]
