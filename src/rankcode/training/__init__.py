"""Train a network: `fit`, and the settings of a training run."""

from rankcode.training.config import Training
from rankcode.training.loop import History, fit

__all__ = ["History", "Training", "fit"]
