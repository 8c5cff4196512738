"""Measure how long training and inference take, against conventional training in the same run."""
