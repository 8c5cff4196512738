"""`export_onnx`: a network and its rule as one ONNX file, compared with PyTorch before it is written."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from rankcode.data.sources import BadData
from rankcode.export.agreement import Agreement, compare, milliseconds_per_step, session_of
from rankcode.export.check_rows import CheckRows, data_rows, random_rows, task_rows
from rankcode.export.graph import OPSETS, OUTPUTS, graph_of, rounded_weights, set_metadata, store_as_int8
from rankcode.export.step import Step, exportable
from rankcode.inference import rule_for
from rankcode.network import Network
from rankcode.rules import Rule
from rankcode.saving.config_file import versions
from rankcode.saving.description import describe
from rankcode.saving.files import write_whole

MAX_LOST = 0.003  # share of the answers that 8-bit weights may lose
RANDOM = "random numbers"  # what a file is compared on where there is no data
BEGINNING = b'{"rankcode": {'  # of the metadata: by this a file is told from one that something else wrote


@dataclass(frozen=True)
class Exported:
    """An ONNX file that was written, and how it compares with PyTorch."""

    path: Path
    size: int  # bytes
    parameters: int
    milliseconds: float  # median time of a call for one row, on one thread
    checked_on: str  # what the rows are
    agreement: Agreement


def export_onnx(
    network: Network,
    path: str | Path,
    rule: Rule | None = None,
    *,
    from_inputs: bool = False,
    int8: bool = False,
    opset: int = OPSETS[0],
    check_on: Any = None,
    check_rows: int = 256,
    source: str | None = None,
) -> Exported:
    """Write one step of a network as an ONNX file that needs neither rankcode nor PyTorch.

    The inputs of the file are `x`, a step of any number of rows, and the state, which begins with zeros. The outputs
    are `probabilities` [rows, classes], `fired` [rows], `label` [rows] and the new state. The rule is by default that
    of the network, or `Threshold(0.95)`. The metadata says everything else: docs/export.md.

    `x` is raw data where the front end can be part of the file: the newest samples of sound, the values of a series.
    `from_inputs=True`: x is a step of the network's inputs in any case. `int8=True` stores weights in 8 bits.

    The file is compared with PyTorch first, on about `check_rows` test rows of a task, or on all of any data that
    `predict` takes: `check_on`. Default, and where the data of a task cannot be read: random numbers. A file that
    decides differently is not written. `source` is recorded as the origin of the network.
    """
    path = _checked_path(path)
    if opset not in OPSETS:
        raise ValueError(f"opset must be {OPSETS[0]}…{OPSETS[-1]}, not {opset}")
    rule = rule_for(network, rule)
    original = exportable(network)
    step = Step(deepcopy(original), rule, None if from_inputs else _raw_module(network))
    rows, checked_on = _rows(step, check_on, check_rows)
    weights = rounded_weights(step) if int8 else {}
    model = graph_of(step, opset)
    store_as_int8(model, weights)
    set_metadata(model, _metadata(step, opset, int8, source))
    content = model.SerializeToString()
    session = session_of(content)
    agreement = compare(session, step, rows, original if int8 else None)
    _check(agreement, path, checked_on)
    milliseconds = milliseconds_per_step(session, step, random_rows(step))
    write_whole(path, content)
    parameters = sum(part.numel() for part in original.parameters())
    return Exported(path, len(content), parameters, milliseconds, checked_on, agreement)


def _checked_path(path: str | Path) -> Path:
    path = Path(path)
    if path.suffix.lower() != ".onnx":
        raise ValueError(f"the file must be called something.onnx, not {str(path)!r}")
    if path.is_dir():
        raise ValueError(f"{path} is a folder: choose another name")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent}: make it first")
    if path.exists() and BEGINNING not in path.read_bytes():
        raise ValueError(f"{path} exists, and was not exported by rankcode: choose another name")
    return path


def _raw_module(network: Network) -> Any:
    """The front end as a part of the file; None: the file reads inputs."""
    front_end: Any = network.front_end
    return front_end.step_module().eval() if hasattr(front_end, "step_module") else None


def _rows(step: Step, check_on: Any, count: int) -> tuple[Iterable[CheckRows], str]:
    """The rows to compare on, and what they are. The first are read at once, to find bad data before the work."""
    if check_on is None:
        return [random_rows(step)], RANDOM
    task = "train" in dir(check_on)  # hasattr would read the data
    rows = task_rows(step, check_on, count) if task else data_rows(step, check_on)
    try:
        return chain([next(rows)], rows), "test data" if task else "the data"
    except StopIteration:
        raise BadData("there is no data to compare on") from None
    except (BadData, OSError) as error:
        if not task:
            raise
        warnings.warn(f"compared on random numbers, as the test data cannot be read: {error}", stacklevel=3)
        return [random_rows(step)], RANDOM


def _check(agreement: Agreement, path: Path, checked_on: str) -> None:
    if agreement.wrong:
        first, count = agreement.wrong[0], len(agreement.wrong)
        raise ArithmeticError(
            f"{path} was not written: it decides differently from PyTorch in {count} of {agreement.rows} rows of "
            f"{checked_on}; {first}"
        )
    # Random numbers are often close to the border between two classes, where data is not.
    if checked_on != RANDOM and agreement.lost > max(1, MAX_LOST * agreement.rows):
        raise ArithmeticError(
            f"{path} was not written: weights in 8 bits lose {agreement.lost} of {agreement.rows} answers on "
            f"{checked_on}; leave out int8=True"
        )


def _metadata(step: Step, opset: int, int8: bool, source: str | None) -> dict[str, Any]:
    network, raw = step.network, step.raw
    front_end: Any = network.front_end
    about = {
        "rankcode": versions() | {"opset": opset, "int8": int8, "source": source},
        "labels": list(network.class_names),
        "activation": network.activation,
        "rule": describe(step.rule),
        "checkpoints": network.checkpoints and list(network.checkpoints),
        "x": {"shape": list(step.x_shape), "dtype": _name(step.x_dtype), "raw": raw is not None},
        "outputs": list(OUTPUTS),
        "state": [
            {"name": part.name, "new": f"new_{part.name}", "shape": list(part.initial.shape[1:]), "dtype": dtype}
            for part in step.state
            for dtype in [_name(part.initial.dtype)]
        ],
        "warm_up": step.warm_up,
        "front_end": describe(front_end),
    }
    if hasattr(front_end, "sample_rate"):
        about["sound"] = _sound(front_end, raw)
    return about


def _sound(front_end: Any, raw: Any) -> dict[str, Any]:
    log_mel = front_end.log_mel
    about = {"sample_rate": log_mel.sample_rate, "hop": log_mel.hop, "window": log_mel.window}
    about["look_ahead"] = front_end.context * log_mel.hop + log_mel.window // 2
    return about if raw is None else about | {"silence_before": raw.silence_before}


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
