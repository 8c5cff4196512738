"""Tasks: data, shapes, labels and, where it is known, the theoretical limit."""

from rankcode.tasks.own_data import OwnData, rows_for
from rankcode.tasks.speech_commands import SpeechCommands
from rankcode.tasks.spotting import Spotting, SpottingLimit
from rankcode.tasks.temporal_digits import TemporalDigits
from rankcode.tasks.temporal_mnist import TemporalMNIST
from rankcode.tasks.two_sequence import Limit, TwoSequence

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
