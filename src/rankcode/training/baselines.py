"""Simple classifiers that a network should beat."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from rankcode.data.sources import Batch, Packed

MAX_ROWS = 1000  # that are compared with each other; of more, every second, third, … is taken


def baselines(train: Packed, test: Packed) -> dict[str, float]:
    """Accuracies on test rows of the majority class and of the class of the nearest row, both of the training rows."""
    majority = int(torch.bincount(train.labels).argmax())
    return {
        "most common class": float((test.labels == majority).double().mean()),
        "nearest neighbour": nearest_neighbour(_inputs(train), _inputs(test)),
    }


def nearest_neighbour(train: Batch, test: Batch | None = None) -> float:
    """The accuracy of answering with the class of the nearest training row, by the Euclidean distance of whole rows;
    without test rows, of the nearest other training row. Where one row has ended and the other has not, values count as
    different as those of unrelated rows. At most MAX_ROWS rows of each are compared."""
    train = train.rows(_places(len(train.labels)))
    tried = train if test is None else test.rows(_places(len(test.labels)))
    steps = max(train.inputs.shape[1], tried.inputs.shape[1])
    (rows, there), (others, others_there) = _flat(tried, steps), _flat(train, steps)
    unrelated = 2 * others.square().sum() / others_there.sum()
    shared = there @ others_there.T
    distance = rows.square() @ others_there.T + there @ others.square().T - 2 * rows @ others.T
    distance += unrelated * (there.sum(1, keepdim=True) + others_there.sum(1) - 2 * shared)
    if test is None:
        distance.fill_diagonal_(torch.inf)
    return float((train.labels[distance.argmin(1)] == tried.labels).double().mean())


def _inputs(source: Packed) -> Batch:
    stored, labels, lengths = source.take(_places(source.size), "cpu")
    inputs, lengths = (stored, lengths) if source.encode is None else source.encode(stored, lengths)
    return Batch(inputs, labels, lengths)


def _places(rows: int) -> Tensor:
    return torch.linspace(0, rows - 1, min(rows, MAX_ROWS)).long()


def _flat(batch: Batch, steps: int) -> tuple[Tensor, Tensor]:
    """The values [rows, steps · channels], with zeros after the end of a row, and ones where it has values."""
    inputs = batch.inputs.double()
    real = torch.ones_like(inputs)
    if batch.lengths is not None:
        real = real * (torch.arange(inputs.shape[1]) < batch.lengths[:, None])[:, :, None]
    values = inputs.where(real > 0, 0.0)
    return tuple(F.pad(part, (0, 0, 0, steps - inputs.shape[1])).flatten(1) for part in (values, real))  # type: ignore[return-value]
