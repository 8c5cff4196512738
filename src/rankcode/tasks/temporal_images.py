"""Images of digits as sequences (paper, section 3.3): every pixel spikes once, the darkest first."""

from __future__ import annotations

from typing import ClassVar

from rankcode.data.sources import Arrays
from rankcode.front_ends.latency_code import LatencyCode
from rankcode.tasks.splits import Splits


class TemporalImages(Splits[Arrays]):
    """Square images of digits. Each task has the fields `steps` and `flat`, and says where its images come from."""

    side: ClassVar[int]  # pixels
    levels: ClassVar[int]  # the largest pixel value
    num_classes: ClassVar[int] = 10
    label_names: ClassVar[tuple[str, ...]] = tuple("0123456789")
    steps: int
    flat: bool

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, not {self.steps}")

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (self.side**2,) if self.flat else (1, self.side, self.side)

    @property
    def front_end(self) -> LatencyCode:
        return LatencyCode(self.levels, self.steps, self.input_shape)
