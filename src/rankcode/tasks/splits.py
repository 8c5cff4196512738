"""The three splits of a task: rows that are stored, or rows that are generated."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from rankcode.data.sources import Batch, Generated, Rows

R = TypeVar("R", bound=Rows)


class Splits(ABC, Generic[R]):
    """Splits that are read when they are first used. Only training rows are augmented."""

    augment: bool = False

    @cached_property
    def train(self) -> R:
        return self._split("train", self.augment)

    @cached_property
    def validation(self) -> R:
        return self._split("validation")

    @cached_property
    def test(self) -> R:
        return self._split("test")

    @abstractmethod
    def _split(self, split: str, augment: bool = False) -> R: ...


class GeneratedSplits(ABC):
    """Sequences of single values, positive or negative: endless training rows, and fixed validation and test rows
    drawn with other seeds."""

    input_shape: ClassVar[tuple[int, ...]] = (1,)
    num_classes: ClassVar[int] = 2
    label_names: ClassVar[tuple[str, ...]] = ("negative", "positive")
    steps: int
    validation_rows: int
    test_rows: int

    @cached_property
    def train(self) -> Generated:
        return Generated(self.draw)

    @cached_property
    def validation(self) -> Generated:
        return Generated(self.draw, self.validation_rows, seed=1)

    @cached_property
    def test(self) -> Generated:
        return Generated(self.draw, self.test_rows, seed=2)

    def check_shape(self, inputs: Tensor) -> None:
        if inputs.shape[1:] != (self.steps, *self.input_shape):
            raise ValueError(f"inputs must have shape [rows, {self.steps}, 1], not {list(inputs.shape)}")

    @abstractmethod
    def draw(self, batch_size: int, generator: torch.Generator) -> Batch:
        """New rows, on the generator's device."""
