"""Stopping rules fitted to a wish: an accuracy, a number of steps, a cost of waiting, a rate of false alarms."""

from rankcode.stopping.tuning import Tuning, Wish, fit_rule, tune, tune_on

__all__ = ["Tuning", "Wish", "fit_rule", "tune", "tune_on"]
