"""Tasks: data, shapes, labels and, where it exists, the theoretical limit."""

from .own_data import OwnData, rows_for
from .speech_commands import SpeechCommands
from .spotting import Spotting, SpottingLimit
from .temporal_digits import TemporalDigits
from .temporal_mnist import TemporalMNIST
from .two_sequence import Limit, TwoSequence

TASKS = {task.name: task for task in (Spotting, TwoSequence, TemporalDigits, TemporalMNIST, SpeechCommands)}

__all__ = [
    "TASKS",
    "Limit",
    "OwnData",
    "SpeechCommands",
    "Spotting",
    "SpottingLimit",
    "TemporalDigits",
    "TemporalMNIST",
    "TwoSequence",
    "rows_for",
]
