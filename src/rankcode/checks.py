"""Checks of inputs, labels and lengths where they enter, so that engines need none."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from rankcode.data.arrays import as_tensor
from rankcode.data.sources import BadData
from rankcode.network import Network


class BadRow(ValueError):  # noqa: N818 (it is the row that is bad)
    """A row of a batch that cannot be used. `what` is the message, with {} in place of the row."""

    def __init__(self, what: str, row: int):
        super().__init__(what.format(f"row {row} of the batch"))
        self.what, self.row = what, row

    def __reduce__(self):
        return BadRow, (self.what, self.row)


@contextmanager
def rows_named(name: Callable[[int], str]) -> Iterator[None]:
    """Replace the name of a bad row, its index in the batch, by `name(index)`."""
    try:
        yield
    except BadRow as bad:
        raise BadData(bad.what.format(name(bad.row))) from None


def checked_inputs(network: Network, inputs, lengths, values: bool = True) -> tuple[Tensor, Tensor]:
    """Inputs [rows, steps, features…] in the network's precision, and lengths [rows]. `values=False` checks shapes and
    types only: to check values, the host has to wait for a GPU."""
    inputs = as_tensor(inputs)
    if inputs.dim() < 3:
        raise ValueError(f"inputs must have shape [rows, steps, features…], not {list(inputs.shape)}")
    if inputs.numel() == 0:
        raise ValueError(f"inputs are empty: shape {list(inputs.shape)}")
    parameter = next((p for p in network.parameters() if p.is_floating_point()), None)
    if parameter is not None:
        if inputs.device != parameter.device:
            raise ValueError(f"inputs are on {inputs.device} but the network is on {parameter.device}")
        inputs = inputs.to(parameter.dtype)
    check_features(network.cell, tuple(inputs.shape[2:]))
    rows, steps = inputs.shape[:2]
    if lengths is None:
        return inputs, torch.full((rows,), steps, device=inputs.device)
    lengths = as_tensor(lengths).to(inputs.device)
    if lengths.shape != (rows,) or lengths.is_floating_point() or lengths.dtype == torch.bool:
        raise ValueError(f"lengths must be {rows} whole numbers, one for each row")
    lengths = lengths.long()  # before the comparison: uint8 cannot hold every number of steps
    if values:
        _check_range("length", lengths, 1, steps)
    return inputs, lengths


def check_rows_apart(network: Network) -> None:
    """Raise if a row's answer would depend on the other rows of its batch: rows leave the batch as they answer."""
    for part in network.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.training:
            name = type(part).__name__
            raise ValueError(f"{name} takes means over rows, which leave as they answer: use LayerNorm or GroupNorm")


def check_features(cell: nn.Module, given: tuple[int, ...]) -> None:
    """Raise if the cell cannot read steps of this shape. A cell that says neither its `input_shape` nor its
    `input_size` reads any; one that says only `input_size` reads vectors of that size, and arrays of any shape."""
    size: Any = getattr(cell, "input_size", None)
    shape: Any = getattr(cell, "input_shape", (size,) if isinstance(size, int) and len(given) == 1 else given)
    flattens = getattr(cell, "flattens_inputs", False)
    if math.prod(given) != math.prod(shape) if flattens else given != tuple(shape):
        raise ValueError(f"a step of the inputs has shape {list(given)}, the network reads {list(shape)}")


def step_shape(cell: Any) -> tuple[int, ...] | None:
    """The shape of a step of the inputs, if the cell says it."""
    size = getattr(cell, "input_size", None)
    shape = getattr(cell, "input_shape", (size,) if isinstance(size, int) else None)
    return None if shape is None else tuple(shape)


def checked_labels(network: Network, labels, rows: int, device: torch.device, values: bool = True) -> Tensor:
    """Labels [rows], each a class of the network. `values=False` checks shape and type only."""
    labels = as_tensor(labels).to(device)
    if labels.shape != (rows,) or labels.is_floating_point():
        raise ValueError(
            f"labels must be {rows} whole numbers, one for each row, not {labels.dtype} {list(labels.shape)}"
        )
    labels = labels.long()
    if values:
        _check_range("label", labels, 0, network.num_classes - 1)
    return labels


def _check_range(name: str, values: Tensor, low: int, high: int) -> None:
    for row in ((values < low) | (values > high)).nonzero().flatten()[:1].tolist():
        raise BadRow(f"the {name} of {{}} is {int(values[row])}, outside {low}…{high}", row)


def is_clean(batch: tuple[Tensor, Tensor, Tensor | None], num_classes: int, dtype: torch.dtype) -> bool:
    """Whether every value of (inputs, labels, lengths) is right, so that no other check can fail on it. `dtype`: of the
    network, in which large inputs may be infinite."""
    inputs, labels, lengths = batch
    if inputs.dim() < 3 or not bool(((labels >= 0) & (labels < num_classes)).all()):
        return False
    if inputs.is_floating_point() and torch.finfo(inputs.dtype).max > torch.finfo(dtype).max:
        finite = bool(inputs.abs().amax() <= torch.finfo(dtype).max)  # not if NaN
    else:  # if the sum is finite, every value is; a sum is much cheaper than checking each
        finite = not inputs.is_floating_point() or bool(inputs.sum().isfinite() or inputs.isfinite().all())
    return finite and (lengths is None or bool(((lengths >= 1) & (lengths <= inputs.shape[1])).all()))


def check_read(inputs: Tensor, steps: Tensor) -> None:
    """Raise if a step that was read holds NaN or infinity. Steps that were not read may hold anything."""
    inputs = inputs.detach()[:, : int(steps.max())]
    if inputs.sum().isfinite():  # then every value is; a sum is much cheaper than checking each
        return
    bad = ~inputs.isfinite().flatten(2).all(2)  # [rows, steps]
    bad &= torch.arange(inputs.shape[1], device=inputs.device) < steps[:, None]
    for row, step in bad.nonzero()[:1].tolist():
        raise BadRow(f"inputs hold NaN or infinity in {{}}, step {step + 1}", row)
