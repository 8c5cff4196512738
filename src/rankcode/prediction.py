"""Answers in the user's own terms: from sound files, waveforms, series or images to the name of a class."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rankcode.checks import rows_named
from rankcode.data.series_files import read_rows
from rankcode.data.sound_files import read_audio
from rankcode.data.sources import BadData
from rankcode.decision import Decision
from rankcode.front_ends.audio import Audio
from rankcode.front_ends.latency_code import LatencyCode
from rankcode.front_ends.standardise import Standardise
from rankcode.inference import decide
from rankcode.network import Network
from rankcode.rules import Rule
from rankcode.tasks.sound import sound_files

ROWS = 256  # at once
LOUDEST = 4  # a waveform in −1…1 may pass it a little; one in whole numbers' scale passes it far


class Prediction(NamedTuple):
    """What a network answered, and when."""

    label: str  # the name of the class
    probability: float  # of that class, when it answered
    steps: int  # steps read
    fired: bool  # False: the end came before the answer
    milliseconds: float | None  # heard of a recording, look-ahead included; None where the data is not sound


def predict(
    network: Network, data: Any, rule: Rule | None = None, skipped: list[str] | None = None
) -> list[Prediction]:
    """What a network answers to raw data, one prediction a row; the rule is by default the network's own, or
    else `Threshold(0.95)`.

    `data`: for a network that reads sound, a file, a folder, a waveform [samples] at the network's rate (16 kHz), or a
    list of files or waveforms; for one that reads series, a data file, or rows [steps] or [steps, channels] in a list
    or array; for one that reads images, images of bytes. A bad row of a data file is an error; where `skipped` is a
    list, its message is appended there and the row left out.
    """
    sound = isinstance(network.front_end, Audio)
    if isinstance(data, str | Path):
        return [answer for _, answer in predict_file(network, data, rule, skipped)]
    if sound and not isinstance(data, list | tuple) and np.ndim(data) == 1:
        data = [data]
    elif sound and not isinstance(data, list | tuple) and np.ndim(data) == 2 and np.shape(data)[1] <= 16:
        raise ValueError(f"a waveform is [samples], not {list(np.shape(data))}: average its channels first")
    elif isinstance(network.front_end, LatencyCode) and getattr(data, "shape", ()) == network.front_end.shape[-2:]:
        data = [data]  # one image
    if not hasattr(data, "__len__") or isinstance(data, dict):
        raise ValueError(f"predict takes a file, an array or a list of them, not a {type(data).__name__}")
    return _in_parts(network, data, rule, lambda row: f"row {row} of the data")


def predict_file(
    network: Network, path: str | Path, rule: Rule | None = None, skipped: list[str] | None = None
) -> list[tuple[str, Prediction]]:
    """`predict` of a file, or a folder: where each row is found, and the answer to it."""
    path = Path(path)
    if isinstance(network.front_end, Audio):
        files = [path / name for name in sound_files(path)] if path.is_dir() else [path]
        return list(zip(map(str, files), predict(network, files, rule), strict=True))
    if not isinstance(network.front_end, Standardise):
        raise ValueError(f"the network reads neither sound nor series, so not {path}: give it arrays, from Python")
    try:
        rows = read_rows(path, skipped)
        answers = _in_parts(network, [values for _, values in rows], rule, lambda row: rows[row][0])
        return [(f"{path}, {where}", answer) for (where, _), answer in zip(rows, answers, strict=True)]
    except BadData:
        raise
    except ValueError as error:
        raise BadData(f"{path}: {error}") from None


def _in_parts(network: Network, data: Any, rule: Rule | None, name: Callable[[int], str]) -> list[Prediction]:
    """Answers to rows of data; a bad one is named."""
    answers: list[Prediction] = []
    for first in range(0, len(data), ROWS):
        with rows_named(lambda row, first=first: name(first + row)):
            answers += _predict(network, data[first : first + ROWS], rule)
    return answers


def _predict(network: Network, data: Sequence[Any], rule: Rule | None) -> Iterator[Prediction]:
    device = next(network.parameters()).device
    names = network.label_names or [str(label) for label in range(network.num_classes)]
    front_end = network.front_end
    samples = None
    if isinstance(front_end, Audio):
        waveforms = [_waveform(each, front_end.log_mel.sample_rate) for each in data]
        samples = torch.tensor([len(waveform) for waveform in waveforms])
        rows = [front_end.frames(waveform) for waveform in waveforms]
    else:
        images = isinstance(front_end, LatencyCode)
        # Where rows cannot differ in width, steps missing at the end mean that a row is shorter, as in files.
        ragged = isinstance(data, list | tuple) or getattr(data, "dtype", None) == np.dtype(object)
        padded = isinstance(front_end, Standardise) and not ragged
        rows = [_row(each, images, padded) for each in data]
        if len({row.shape if images else row.shape[1:] for row in rows}) > 1:
            raise ValueError(f"the {'images' if images else 'rows'} differ in shape")
    stored = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(device)
    lengths: Tensor | None = torch.tensor([len(row) for row in rows], device=device)
    inputs, lengths = (stored, lengths) if front_end is None else front_end(stored, lengths)
    decision = decide(network, inputs, lengths, rule)
    decision = Decision(*(part.cpu() for part in decision))
    heard: list[Any] = [None] * len(rows)
    if isinstance(front_end, Audio) and samples is not None:
        heard = front_end.heard(decision.steps, samples).tolist()
    for row, label in enumerate(decision.label.tolist()):
        steps, fired = int(decision.steps[row]), bool(decision.fired[row])
        yield Prediction(names[label], float(decision.probabilities[row, label]), steps, fired, heard[row])


def _waveform(each: Any, rate: int) -> Tensor:
    if isinstance(each, str | Path):
        return torch.from_numpy(read_audio(each, rate))
    waveform = _tensor(each)
    if waveform.dim() != 1 or not waveform.is_floating_point() or len(waveform) == 0:
        raise ValueError(
            f"a waveform is [samples] of floating-point numbers in −1…1, not {waveform.dtype} {list(waveform.shape)}"
        )
    if not waveform.isfinite().all():
        raise ValueError("the waveform holds NaN or infinity")
    if waveform.abs().max() > LOUDEST:
        raise ValueError(f"a waveform is in −1…1, not up to {waveform.abs().max():,.0f}: scale it first")
    return waveform


def _row(each: Any, image: bool, padded: bool) -> Tensor:
    if isinstance(each, str | Path):
        raise ValueError(f"cannot read {each} in a list: the network does not read sound")
    row = _tensor(each)
    if row.dim() == 0 or row.is_complex():
        raise ValueError(f"a row is [steps] or [steps, channels] of numbers, not {row.dtype} {list(row.shape)}")
    if row.is_floating_point() and row.numel() and row.isnan().all():
        raise ValueError("a row is wholly missing: it holds nothing but NaN")
    row = row if image else row.to(torch.promote_types(row.dtype, torch.float32))
    row = row[:, None] if row.dim() == 1 else row
    return row[: int((~row.isnan().flatten(1).all(1)).nonzero()[-1]) + 1] if padded and row.numel() else row


def _tensor(each: Any) -> Tensor:
    if isinstance(each, np.ndarray) and not each.flags.writeable:
        each = each.copy()  # PyTorch would warn that it cannot promise to leave it alone
    try:
        return torch.as_tensor(each)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"cannot read numbers from a {type(each).__name__}: {error}") from None
