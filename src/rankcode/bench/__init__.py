"""Measures how long training and inference take, relative to conventional training in the same run."""
