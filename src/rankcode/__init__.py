"""rankcode: recurrent networks that learn when to answer."""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # as type checkers know it: `typing` takes longer to import than this whole file
if TYPE_CHECKING:
    from typing import Any

    from rankcode import cells, data, engines, tasks
    from rankcode.data import BadData, Batch
    from rankcode.decision import Decision
    from rankcode.estimator import EarlyClassifier
    from rankcode.export import export_onnx
    from rankcode.front_ends.audio import Audio, LogMel
    from rankcode.inference import Trace, decide, trace
    from rankcode.metrics import Curve, Report, evaluate, tradeoff
    from rankcode.network import Network
    from rankcode.objectives import AtEnd, AtSpike, EveryStep, Objective, Switch, UntilSpike
    from rankcode.prediction import Prediction, predict
    from rankcode.rules import FireAt, Never, OptimalStopping, Patience, Rule, StepThresholds, Threshold
    from rankcode.saving.model_file import save
    from rankcode.saving.run_folder import load
    from rankcode.stopping import Tuning, fit_rule, tune
    from rankcode.streaming import Detection, Listener, Stream, StreamPool
    from rankcode.sweeps import sweep
    from rankcode.training import History, Training, fit

__all__ = [
    "AtEnd",
    "AtSpike",
    "Audio",
    "BadData",
    "Batch",
    "Curve",
    "Decision",
    "Detection",
    "EarlyClassifier",
    "EveryStep",
    "FireAt",
    "History",
    "Listener",
    "LogMel",
    "Network",
    "Never",
    "Objective",
    "OptimalStopping",
    "Patience",
    "Prediction",
    "Report",
    "Rule",
    "StepThresholds",
    "Stream",
    "StreamPool",
    "Switch",
    "Threshold",
    "Trace",
    "Training",
    "Tuning",
    "UntilSpike",
    "cells",
    "data",
    "decide",
    "engines",
    "evaluate",
    "export_onnx",
    "fit",
    "fit_rule",
    "load",
    "predict",
    "save",
    "sweep",
    "tasks",
    "trace",
    "tradeoff",
    "tune",
]


# Modules in which a public name is looked for; the last needs scikit-learn.
_HOMES = """data decision front_ends.audio inference metrics network objectives prediction rules saving.model_file
saving.run_folder stopping streaming training export sweeps estimator"""


def __getattr__(name: str) -> Any:
    """A public name, imported when it is first used: `rankcode --help` does not wait for PyTorch."""
    if name in ("cells", "data", "engines", "tasks"):
        return import_module(f"rankcode.{name}")
    if name in __all__:
        for home in _HOMES.split():
            if hasattr(module := import_module(f"rankcode.{home}"), name):
                return getattr(module, name)
    raise AttributeError(f"module 'rankcode' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
