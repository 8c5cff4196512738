"""The network that is served: what it reads, and which one it is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from rankcode.inference import rule_for
from rankcode.network import Network
from rankcode.rules import Rule
from rankcode.saving.description import FORMAT, describe
from rankcode.saving.model_file import checksum
from rankcode.streaming.live_inputs import LiveInputs

SOUND_TYPES = {"int16": np.dtype("<i2"), "float32": np.dtype("<f4")}
NUMBER_TYPES = {"float32": np.dtype("<f4"), "float64": np.dtype("<f8")}


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A network with the rule that it answers by. It is loaded once: a file that is replaced changes nothing."""

    network: Network
    name: str
    rule: Rule | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "rule", rule_for(self.network, self.rule))
        if self.step_shape is None:
            raise ValueError("a network can be served if its cell has an attribute input_shape or input_size")

    @cached_property
    def sample_rate(self) -> int | None:
        """Of the sound that it reads, in Hz; None: it does not read sound."""
        return getattr(self.network.front_end, "sample_rate", None)

    @cached_property
    def step_shape(self) -> tuple[int, ...] | None:
        """Of one item of the data: a step, or a sample, which is a single number."""
        return () if self.sample_rate else getattr(LiveInputs(self.network, 1, None).streams, "shape", None)

    @property
    def dtypes(self) -> dict[str, np.dtype]:
        """Of the data, by the names that a client uses."""
        return SOUND_TYPES if self.sample_rate else NUMBER_TYPES

    @cached_property
    def version(self) -> str:
        """A checksum of the weights, of how the network is built, and of its rule."""
        header = {"format": FORMAT, "network": describe(self.network), "rule": describe(self.rule)}
        weights = {name: part.detach().cpu().contiguous() for name, part in self.network.state_dict().items()}
        return checksum(header, weights)[:16]

    def item_bytes(self, dtype: str) -> int:
        return self.dtypes[dtype].itemsize * math.prod(self.step_shape or ())

    def items(self, data: Any, dtype: str) -> np.ndarray:
        """Bytes as samples, or as steps."""
        items = np.frombuffer(data, self.dtypes[dtype])
        return items.reshape(-1, *self.step_shape) if self.step_shape else items

    def description(self) -> dict[str, Any]:
        """What a client has to know, as JSON."""
        front_end = self.network.front_end
        return {
            "name": self.name,
            "version": self.version,
            "reads": "numbers" if front_end is None else front_end.reads,
            "sample_rate": self.sample_rate,
            "step_shape": list(self.step_shape or ()),
            "dtypes": list(self.dtypes),
            "labels": list(self.network.class_names),
            "rule": describe(self.rule),
        }
