"""rankcode: recurrent networks that learn when to answer."""

from rankcode import cells, data, engines, tasks
from rankcode.data import BadData, Batch
from rankcode.decision import Decision
from rankcode.front_ends.audio import Audio, LogMel
from rankcode.inference import Trace, decide, trace
from rankcode.metrics import Curve, Report, evaluate, tradeoff
from rankcode.network import Network
from rankcode.objectives import AtEnd, AtSpike, EveryStep, Objective, Switch, UntilSpike
from rankcode.prediction import Prediction, predict
from rankcode.rules import FireAt, Never, Patience, Rule, StepThresholds, Threshold
from rankcode.saving.model_file import save
from rankcode.saving.run_folder import load
from rankcode.training import History, Training, fit

__all__ = [
    "AtEnd",
    "AtSpike",
    "Audio",
    "BadData",
    "Batch",
    "Curve",
    "Decision",
    "EveryStep",
    "FireAt",
    "History",
    "LogMel",
    "Network",
    "Never",
    "Objective",
    "Patience",
    "Prediction",
    "Report",
    "Rule",
    "StepThresholds",
    "Switch",
    "Threshold",
    "Trace",
    "Training",
    "UntilSpike",
    "cells",
    "data",
    "decide",
    "engines",
    "evaluate",
    "fit",
    "load",
    "predict",
    "save",
    "tasks",
    "trace",
    "tradeoff",
]
