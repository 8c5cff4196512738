"""Predictions for raw data: from sound files, waveforms, series or images to the name of a class.

This is the one path from raw data to answers, for Python and for the command line.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rankcode.checks import checked_inputs, rows_named
from rankcode.data.manifest import is_manifest, listed_files
from rankcode.data.sources import BadData
from rankcode.decision import Decision
from rankcode.engines.long_row import RowReader
from rankcode.front_ends.protocol import FrontEnd, StoredRow
from rankcode.inference import decide, inference, rule_for
from rankcode.network import Network
from rankcode.rules import Rule

ROWS = 256  # at most in a batch
BATCH_VALUES = 1 << 23  # at most in the inputs of a batch of several rows: 34 MB
BLOCK_STEPS = 1 << 12  # read at once of a single row that has more values


class Prediction(NamedTuple):
    """The answer of a network to one row, and when it was given."""

    label: str  # the name of the class
    probability: float  # of that class, when the network answered
    steps: int  # steps read
    fired: bool  # False: the row ended before the rule fired
    milliseconds: float | None  # of sound that the answer depends on, look-ahead included; None: not sound
    probabilities: dict[str, float]  # of every class, by name


def predict(
    network: Network,
    data: Any,
    rule: Rule | None = None,
    skip_bad: bool = False,
    left_out: list[str] | None = None,
) -> list[Prediction]:
    """The answers of a network to raw data, one for each row.

    `data`: for a network that reads sound, a file, a folder, a waveform [samples] at the network's sample rate
    (16 kHz), a list of files or waveforms, or a manifest (.txt, .csv or .parquet) that lists files. For a network that
    reads series, a data file, a .txt that lists such files, or rows [steps] or [steps, channels] in a list or an array.
    For a network that reads images, images of bytes. For a front end of your own, what its `rows` and `read` take.

    `rule` is by default that of the network, or `Threshold(0.95)` if it has none. A row or file that cannot be used is
    an error, or, with `skip_bad`, is left out; the reasons are appended to `left_out`, if that is a list.
    """
    return [answer for _, _, answer in predict_rows(network, data, rule, skip_bad, left_out)]


def predict_rows(
    network: Network,
    data: Any,
    rule: Rule | None = None,
    skip_bad: bool = False,
    left_out: list[str] | None = None,
) -> Iterator[tuple[str, Tensor, Prediction]]:
    """`predict`, with the name of each row (its file, or its place in the data) and the row as the front end stores it.
    Rows are read as they are needed."""
    left_out = [] if left_out is None else left_out
    listed = left_out if skip_bad else None
    yield from answers_to(network, raw_rows(network, data, listed), rule, listed)


def raw_rows(network: Network, data: Any, left_out: list[str] | None) -> Iterator[tuple[str, Any]]:
    """Each raw row of the data with its name, as the front end of the network finds it. Files in a manifest are found
    too.

    Data that cannot be used raises, or is listed in `left_out`.
    """
    if not isinstance(data, str | Path) and (not hasattr(data, "__len__") or isinstance(data, dict)):
        raise ValueError(f"predict takes a file, an array or a list of them, not a {type(data).__name__}")
    front_end = _front_end_of(network)
    several = isinstance(data, list | tuple) and data and all(isinstance(each, str | Path) for each in data)
    parts: Any = data if several else [data]
    for part in parts:
        manifest = isinstance(part, str | Path) and is_manifest(part, front_end.file_suffixes)
        for each in listed_files(part) if manifest else [part]:
            try:
                yield from front_end.rows(each, left_out)
            except (BadData, FileNotFoundError) as error:
                _leave_out(error, str(each), left_out)


def answers_to(
    network: Network, rows: Iterable[tuple[str, Any]], rule: Rule | None, left_out: list[str] | None
) -> Iterator[tuple[str, Tensor, Prediction]]:
    """The answers to raw rows: the name of each row, the row as the front end stores it, and the answer."""
    rule, front_end = rule_for(network, rule), _front_end_of(network)
    for names, batch in _batches(front_end, _stored(front_end, rows, left_out)):
        with rows_named(lambda row, names=names: names[row]):
            answers = named_answers(network, _decided(network, front_end, batch, rule), [row.size for row in batch])
            yield from ((name, row.values, answer) for name, row, answer in zip(names, batch, answers, strict=True))


def _front_end_of(network: Network) -> FrontEnd:
    return NumbersAsTheyAre() if network.front_end is None else network.front_end


class NumbersAsTheyAre(FrontEnd):
    """Takes the place of a front end in a network that has none."""

    @property
    def reads(self) -> str:
        return "numbers"

    @property
    def output_shape(self) -> tuple[int, ...]:
        return (1,)

    def __call__(self, stored: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        return stored, lengths


def _stored(
    front_end: FrontEnd, rows: Iterable[tuple[str, Any]], left_out: list[str] | None
) -> Iterator[tuple[str, StoredRow]]:
    """Each row as the front end stores it, read when it is needed. A bad one raises, or is listed in `left_out`."""
    for name, raw in rows:
        try:
            row = front_end.read(raw)
        except (ValueError, OSError) as error:
            _leave_out(error, name, left_out)
        else:
            yield name, row


def _leave_out(error: Exception, name: str, left_out: list[str] | None) -> None:
    """List a bad row or file; raise the error, with the name in it, where there is no list."""
    complete = isinstance(error, BadData | FileNotFoundError)  # its message names the file already
    message = str(error) if complete else f"{name}: {getattr(error, 'strerror', None) or error}"
    if left_out is None:
        hint = "" if "skip_bad=True" in message else "; skip_bad=True leaves it out"
        raise (type(error) if complete else BadData)(message + hint) from None
    left_out.append(message)


def _batches(front_end: FrontEnd, rows: Iterable[tuple[str, StoredRow]]) -> Iterator[tuple[list[str], list[StoredRow]]]:
    """The rows in batches, with fewer rows if they are long, so that the inputs of a batch have a bounded size."""
    names: list[str] = []
    batch: list[StoredRow] = []
    longest = 0
    for name, row in rows:
        values = _num_values(front_end, row)
        longest = max(longest, values)
        if batch and (len(batch) == ROWS or (len(batch) + 1) * longest > BATCH_VALUES):
            yield names, batch
            names, batch, longest = [], [], values
        names.append(name)
        batch.append(row)
    if batch:
        yield names, batch


def _num_values(front_end: FrontEnd, row: StoredRow) -> int:
    """The number of values in the inputs of a row."""
    steps = int(front_end.num_steps(torch.tensor(len(row.values))))
    return steps * max(math.prod(front_end.output_shape), row.values[:1].numel())


def named_answers(network: Network, decision: Decision, sizes: Iterable[int]) -> Iterator[Prediction]:
    """Decisions with class names, and how much was heard of recordings with these numbers of samples."""
    labels = network.class_names
    heard = None if network.front_end is None else network.front_end.heard(decision.steps, torch.tensor([*sizes]))
    milliseconds = [None] * len(decision.steps) if heard is None else heard.tolist()
    columns = zip(*(part.tolist() for part in decision), milliseconds, strict=True)
    for label, steps, fired, probabilities, heard_ms in columns:
        by_name = dict(zip(labels, probabilities, strict=True))
        yield Prediction(labels[label], probabilities[label], steps, fired, heard_ms, by_name)


def _decided(network: Network, front_end: Any, rows: list[StoredRow], rule: Rule) -> Decision:
    device = next(network.parameters()).device
    long = _num_values(front_end, rows[0]) > BATCH_VALUES  # such a row is alone in its batch
    if long and device.type == "cpu" and network.checkpoints is None and hasattr(front_end, "input_blocks"):
        reader = RowReader(network, rule)
        with inference(network):
            for block in front_end.input_blocks(rows[0].values, BLOCK_STEPS):
                if (decision := reader.read(checked_inputs(network, block, None)[0])) is not None:
                    return decision
            return reader.finish()
    if len({row.values.shape[1:] for row in rows}) > 1:
        raise BadData("the rows differ in shape")
    kind = reduce(torch.promote_types, [row.values.dtype for row in rows])
    stored = torch.nn.utils.rnn.pad_sequence([row.values.to(kind) for row in rows], batch_first=True).to(device)
    lengths = torch.tensor([len(row.values) for row in rows], device=device)
    inputs, lengths = front_end(stored, lengths)
    return Decision(*(part.cpu() for part in decide(network, inputs, lengths, rule)))
