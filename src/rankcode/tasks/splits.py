"""The three splits of a task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import Generic, TypeVar

from rankcode.data.sources import Rows

R = TypeVar("R", bound=Rows)


class Splits(ABC, Generic[R]):
    """Splits that are read when they are first used. Only training rows are augmented."""

    augment: bool

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
