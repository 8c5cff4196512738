"""A cell that is called for one step after the other."""

import torch


def step_by_step(cell, inputs):
    """Features of every step [rows, steps, …], and the last state."""
    state, features = cell.initial_state(len(inputs)), []
    for x_t in inputs.unbind(1):
        now, state = cell(x_t, state)
        features.append(now)
    return torch.stack(features, 1), state
