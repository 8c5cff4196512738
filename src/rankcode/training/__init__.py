"""Train a network: `fit`, and the settings of a training run."""

from rankcode.training.config import Training
from rankcode.training.loop import fit
from rankcode.training.records import History

__all__ = ["History", "Training", "fit"]
