"""What a front end is: the part of a network that turns raw data into inputs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from rankcode.data.arrays import as_tensor


class StoredRow(NamedTuple):
    """One row of raw data in the form in which a data set stores it."""

    values: Tensor  # [length, …]
    size: int  # length of the raw data: the samples of a recording, the steps of a series


@runtime_checkable
class FrontEnd(Protocol):
    """Turns raw data into the inputs of a network. It is part of the network and is saved with it.

    Data sets store rows in a compact form (log-mel frames, series, images): `read` makes it of one raw row, and
    calling the front end makes inputs of a batch of it, on any device. A subclass needs `reads`, `output_shape` and
    `__call__`; the other methods are those of a front end for arrays of numbers that keeps the length of a row.

    A front end may also have:

    - `stream(rows)`: returns `rankcode.front_ends.InputStreams` for this many live rows. Networks with a front end that
      does not have it cannot be streamed.
    - `step_module()`: returns a module that makes inputs of raw data one step at a time, like a cell, with
      `forward(x, state) -> (inputs, state)` and `initial_state(rows)`, all zeros. It has `input_shape` and `dtype`, of
      x; `warm_up`, how many calls come before the first that completes a step; and `sequence(raw)`, every x of a row.
      With it, exported networks read raw data.
    - `sample_rate`: of the sound that it reads, in Hz.
    - `shown(stored)`: what a picture of stored rows shows, [rows, length, …], if that is not the inputs. The last entry
      is that of the last step.
    - `input_blocks(row, steps)`: the inputs of one stored row in blocks of this many steps, [1, steps, features…]. A
      front end whose inputs take more memory than what it stores needs it to read rows of any length.
    """

    file_suffixes: ClassVar[tuple[str, ...]] = ()
    """Suffixes of the files that `rows` reads; none: it reads arrays alone."""

    @property
    def reads(self) -> str:
        """The form in which it stores rows, in words. Front ends that read the same can replace each other."""
        ...

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of one step of the inputs."""
        ...

    def __call__(self, stored: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Stored rows [rows, length, …] and their lengths to (inputs [rows, steps, features…], number of steps)."""
        ...

    @property
    def needs_float64(self) -> bool:
        """Whether float32 is too coarse for the stored numbers."""
        return False

    def num_steps(self, lengths: Tensor) -> Tensor:
        """The number of steps of rows with these stored lengths."""
        return lengths

    def rows(self, data: Any, left_out: list[str] | None = None) -> Iterable[tuple[str, Any]]:
        """Each row of raw data, for `read`, and its name: of an array, a list, a file or a folder.

        A bad row of a file raises BadData; where `left_out` is a list, the message is appended to it instead.
        """
        if isinstance(data, str | Path):
            raise ValueError(f"the network reads {self.reads}, from arrays and not from files such as {data}")
        return ((f"row {number} of the data", row) for number, row in enumerate(data))

    def read(self, raw: Any) -> StoredRow:
        """One raw row as it is stored: numbers [steps] or [steps, features…]."""
        row = as_tensor(raw)
        if row.dim() == 0:
            raise ValueError(f"a row has shape [steps] or [steps, channels]; this is the single number {row.item()}")
        if row.is_floating_point() and row.numel() and row.isnan().all():
            raise ValueError("all of its values are missing (NaN)")
        row = row.to(torch.promote_types(row.dtype, torch.float32))
        return StoredRow(row[:, None] if row.dim() == 1 else row, len(row))

    def heard(self, steps: Tensor, sizes: Tensor) -> Tensor | None:
        """Milliseconds of recordings of these sizes that answers after this many steps depend on; None: not sound."""
        return None


def check_scale(mean: tuple[float, ...], std: tuple[float, ...]) -> None:
    """Raise unless there is a finite mean and a positive, finite standard deviation for each channel."""
    values = torch.tensor([*mean, *std], dtype=torch.float64)
    if len(mean) != len(std) or len(mean) == 0:
        raise ValueError(f"mean and std must have one entry for each channel, not {len(mean)} and {len(std)}")
    if not values.isfinite().all() or min(std) <= 0:
        raise ValueError(f"mean must be finite and std finite and positive, not {_short(mean)} and {_short(std)}")


def _short(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:g}" for value in values[:4]) + ", …" * (len(values) > 4)
