"""Readouts that change from one checkpoint to the next, and the mean of several readouts."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class CheckpointReadout(nn.Module):
    """A mixture of linear classifiers at each checkpoint, one classifier for each group of features.

    At checkpoint k, group g gives (1 − floor) · softmax(scale[k, g] · (weight · features + bias)) + floor / classes.
    The probabilities of the groups are added with the weights `mixture[k]`. A row that ends between two checkpoints
    uses the later one. Logits are the logarithms of the probabilities.

    `rankcode.training.fit_kernels` fits it.
    """

    def __init__(
        self, checkpoints: tuple[int, ...], group_sizes: tuple[int, ...], num_classes: int, floor: float = 0.0
    ):
        super().__init__()
        if not checkpoints or list(checkpoints) != sorted(set(checkpoints)) or checkpoints[0] < 1:
            raise ValueError(f"checkpoints must be steps in increasing order, from 1 on, not {checkpoints}")
        if min(group_sizes, default=0) < 1 or num_classes < 2 or not 0 <= floor < 1:
            given = f"{group_sizes}, {num_classes}, {floor}"
            raise ValueError(f"groups of features, at least 2 classes and a floor in [0, 1) are needed, not {given}")
        self.checkpoints, self.group_sizes = tuple(checkpoints), tuple(group_sizes)
        self.num_classes, self.floor = num_classes, floor
        count, groups = len(checkpoints), len(group_sizes)
        self.weight = nn.Parameter(torch.zeros(count, sum(group_sizes), num_classes))
        self.bias = nn.Parameter(torch.zeros(count, groups, num_classes))
        self.scale = nn.Parameter(torch.ones(count, groups))
        self.mixture = nn.Parameter(torch.full((count, groups), 1 / groups))

    def forward(self, features: Tensor, step: int | Tensor) -> Tensor:
        """Logits [rows, classes] of features [rows, features] after this step; an int, or int64 [rows]."""
        if isinstance(step, int):
            return self._at(self._checkpoint(step), features)
        if torch.compiler.is_exporting():
            number = (step[:, None] > torch.tensor(self.checkpoints)).sum(1)
            return self._at(number.clamp(max=len(self.checkpoints) - 1), features)
        logits = features.new_zeros(len(features), self.num_classes)
        for each in step.unique().tolist():
            logits[step == each] = self._at(self._checkpoint(each), features[step == each])
        return logits

    def _checkpoint(self, step: int) -> int:
        later = (number for number, checkpoint in enumerate(self.checkpoints) if checkpoint >= step)
        return next(later, len(self.checkpoints) - 1)

    def _at(self, number: int | Tensor, features: Tensor) -> Tensor:
        """Logits at one checkpoint, or at one for each row."""
        # In float64, so that a row's answer does not depend on the other rows of its batch.
        weights = self.weight[number].double().split(self.group_sizes, -2)
        scales, mixtures = (part[number].double()[..., None] for part in (self.scale, self.mixture))
        parts = []
        for group, (weight, part) in enumerate(zip(weights, features.double().split(self.group_sizes, 1), strict=True)):
            outputs = (part[:, None] @ weight)[:, 0] + self.bias[number].double()[..., group, :]
            parts.append((scales[..., group, :] * outputs).log_softmax(1) + mixtures[..., group, :].log())
        mixed = torch.stack(parts).logsumexp(0)
        if self.floor > 0:
            floor = mixed.new_tensor(math.log(self.floor / self.num_classes))
            mixed = torch.logaddexp(mixed + math.log1p(-self.floor), floor)
        return mixed.to(self.weight.dtype)


class EnsembleReadout(nn.Module):
    """The answers of several networks as one, with `cells.Parallel` of their cells.

    Readout k gets the `sizes[k]` features of its own cell. Logits are the sum over readouts of `weights[k]` times the
    logarithms of their probabilities, by default the mean. Checkpoints are those of the readouts that have them.

    `rankcode.training.ensemble` fits the weights.
    """

    def __init__(
        self, readouts: tuple[nn.Module, ...], sizes: tuple[int, ...], weights: tuple[float, ...] | None = None
    ):
        super().__init__()
        self.weights = tuple(weights or [1 / len(readouts) for _ in readouts])
        if not len(readouts) == len(sizes) == len(self.weights) > 0:
            given = f"{len(readouts)}, {len(sizes)} and {len(self.weights)}"
            raise ValueError(f"every readout needs a number of features and a weight, not {given} of them")
        self.readouts, self.sizes = nn.ModuleList(readouts), tuple(sizes)
        checkpoints = {each for readout in readouts if (each := getattr(readout, "checkpoints", None)) is not None}
        if len(checkpoints) > 1:
            raise ValueError("the readouts have different checkpoints")
        self.checkpoints = next(iter(checkpoints), None)

    def forward(self, features: Tensor, step: int | Tensor | None = None) -> Tensor:
        """Logits [rows, classes] of features [rows, features] after this step."""
        logits = []
        for readout, part in zip(self.readouts, features.split(self.sizes, 1), strict=True):
            own = readout(part) if getattr(readout, "checkpoints", None) is None else readout(part, step)
            if own.shape[1] == 1:  # one sigmoid output
                own = torch.cat([torch.zeros_like(own), own], 1)
            logits.append(own.log_softmax(1))
        return sum(weight * own for weight, own in zip(self.weights, logits, strict=True))  # type: ignore[return-value]
