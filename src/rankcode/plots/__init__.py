"""Plots of runs. Needs matplotlib: `pip install 'rankcode[plots]'`."""

try:
    import matplotlib  # noqa: F401 (every picture needs it)
except ImportError:
    raise ImportError("plots need matplotlib: pip install 'rankcode[plots]'") from None

from rankcode.plots.answers import plot_answers
from rankcode.plots.confusion import plot_confusion
from rankcode.plots.examples import plot_examples
from rankcode.plots.tradeoff import plot_tradeoff
from rankcode.plots.training import plot_spike_times, plot_training
from rankcode.plots.tuning import plot_reliability, plot_tuning

__all__ = [
    "plot_answers",
    "plot_confusion",
    "plot_examples",
    "plot_reliability",
    "plot_spike_times",
    "plot_tradeoff",
    "plot_training",
    "plot_tuning",
]
