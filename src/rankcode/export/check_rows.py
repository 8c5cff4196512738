"""Rows on which an exported network is compared with PyTorch: test data of a run, any raw data, or random numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rankcode.checks import checked_inputs
from rankcode.data.sources import Rows
from rankcode.export.step import Step
from rankcode.metrics import source_of

MAX_ROWS = 64  # compared at once
RANDOM_ROWS, RANDOM_STEPS = 64, 60


class CheckRows(NamedTuple):
    """Rows as the exported graph reads them and as PyTorch does."""

    calls: Tensor  # [rows, calls, …]: each x
    num_calls: Tensor  # [rows]
    inputs: Tensor  # [rows, steps, features…]
    lengths: Tensor  # [rows]: steps
    labels: Tensor | None = None


def task_rows(step: Step, task: Any, count: int) -> Iterator[CheckRows]:
    """About so many rows of the test data of a task, evenly spread."""
    source = source_of(step.network, task, "test")
    if isinstance(source, Rows):
        index = torch.arange(0, source.size, max(1, -(-source.size // count)))
        for part in index.split(MAX_ROWS):
            labels = source.take(part, "cpu").labels
            if step.raw is not None:
                yield _of_raw(step, (source.raw(row) for row in part.tolist()))._replace(labels=labels)
            else:
                yield _of_inputs(step, *source.encoded(source.take(part, "cpu")))
        return
    for inputs, labels, lengths in islice(source.scan(MAX_ROWS, "cpu"), -(-count // MAX_ROWS)):
        yield _of_inputs(step, inputs, labels, lengths)


def data_rows(step: Step, data: Any) -> Iterator[CheckRows]:
    """All rows of raw data that `predict` takes, or inputs [rows, steps, features…] where the graph reads inputs."""
    if step.raw is None:
        return iter([_of_inputs(step, torch.as_tensor(data))])
    front_end: Any = step.network.front_end
    raws = (raw for _, raw in front_end.rows(data))
    return (_of_raw(step, part) for part in iter(lambda: list(islice(raws, MAX_ROWS)), []))


def random_rows(step: Step) -> CheckRows:
    """Random numbers of the scale of the inputs, louder towards the end where they are sound."""
    generator = torch.Generator().manual_seed(0)
    steps = max((RANDOM_STEPS, *(step.network.checkpoints or ())))
    numbers = torch.randn(RANDOM_ROWS, steps, *step.x_shape, generator=generator)
    if step.raw is None:
        return _of_inputs(step, numbers)
    front_end: Any = step.network.front_end
    if hasattr(front_end, "sample_rate"):
        loudness = torch.logspace(-4, 0, RANDOM_ROWS)[:, None] * torch.linspace(0.1, 1, steps)
        return _of_raw(step, (0.3 * loudness[:, :, None] * numbers).clamp(-1, 1).flatten(1))
    return _of_raw(step, numbers * torch.tensor(front_end.std) + torch.tensor(front_end.mean))


def _of_inputs(step: Step, inputs: Tensor, labels: Tensor | None = None, lengths: Tensor | None = None) -> CheckRows:
    inputs, lengths = checked_inputs(step.network, inputs, lengths)
    return CheckRows(inputs.view(*inputs.shape[:2], *step.x_shape), lengths, inputs, lengths, labels)


def _of_raw(step: Step, raws: Iterable[Any]) -> CheckRows:
    front_end, raw_module = step.network.front_end, step.raw
    assert front_end is not None and raw_module is not None
    sequences, stored = [], []
    for raw in raws:
        sequences.append(raw_module.sequence(raw))  # type: ignore[operator]
        stored.append(front_end.read(raw).values)
    inputs, lengths = front_end(pad_sequence(stored, batch_first=True), torch.tensor([len(row) for row in stored]))
    inputs, lengths = checked_inputs(step.network, inputs, lengths)
    num_calls = torch.tensor([len(row) for row in sequences])
    return CheckRows(pad_sequence(sequences, batch_first=True), num_calls, inputs, lengths)
