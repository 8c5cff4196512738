"""Tasks: data, shapes, labels and, where it exists, the theoretical limit."""

from .latency import latency_code
from .spotting import Spotting, SpottingLimit
from .temporal_digits import TemporalDigits
from .two_sequence import Limit, TwoSequence

TASKS = {task.name: task for task in (Spotting, TwoSequence, TemporalDigits)}

__all__ = ["TASKS", "Limit", "Spotting", "SpottingLimit", "TemporalDigits", "TwoSequence", "latency_code"]
