"""The settings that a run has when none are given, and the paper's."""

import numpy as np
import pytest
import torch

import rankcode as rc
from rankcode.training.recipes import recipe

QUIET = {"device": "cpu", "progress": False}


def resolved(rows, front_end=None, **given):
    config = rc.Training(**given).for_data(rows, front_end)
    return config.batch_size, config.learning_rate, config.input_noise


def test_defaults_depend_on_the_number_of_rows():
    assert resolved(999) == (32, 0.01, 0.0)
    assert resolved(1_000) == (128, 0.003, 0.0)
    assert resolved(None) == (128, 0.003, 0.0)  # generated


def test_what_is_given_takes_precedence():
    assert resolved(10, batch_size=7, learning_rate=0.5, input_noise=0.1) == (7, 0.5, 0.1)
    standardise = rc.tasks.OwnData.of(np.random.default_rng(0).normal(size=(20, 6)), np.arange(20) % 2).front_end
    assert resolved(10, standardise) == (32, 0.01, 0.2)
    assert resolved(10, standardise, input_noise=0.0) == (32, 0.01, 0.0)
    assert resolved(5_000, standardise) == (128, 0.003, 0.0)


def test_the_default_recipe_is_smaller_for_fewer_rows():
    assert recipe("default", 100)[:3] == ("gru", 64, "until-spike")
    assert recipe("default", 5_000)[:3] == recipe("default", None)[:3] == ("gru", 125, "until-spike")


@pytest.mark.parametrize(("rows", "learning_rate"), [(None, 0.0003), (60_000, 0.001)])
def test_the_recipe_of_the_paper(rows, learning_rate):
    cell, hidden_size, objective, config = recipe("paper", rows)
    assert (cell, hidden_size, objective) == ("lstm", 125, "at-spike")
    assert config == config.for_data(rows, None)  # everything is set
    assert (config.learning_rate, config.schedule, config.batch_size) == (learning_rate, "constant", 128)
    assert (config.max_grad_norm, config.ema_decay, config.input_noise) == (None, None, 0.0)


def test_noise_is_added_to_the_inputs_in_training_alone():
    """Inputs that are all 3 reach the cell with noise in training, and as they are in validation."""
    seen = {True: [], False: []}

    class Sum(torch.nn.Module):
        output_shape = (1,)

        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1))

        def initial_state(self, batch_size):
            return torch.zeros(batch_size, 1)

        def forward(self, x_t, state):
            seen[self.training].append(x_t.detach().clone())
            return self.weight * x_t, state

    inputs, labels = torch.full((400, 5, 1), 3.0), torch.arange(400) % 2
    data = {"train": (inputs, labels), "validation": (inputs, labels)}
    task = type("Task", (), data)
    rc.fit(rc.Network(Sum(), 1), task, rc.AtEnd(), rc.Training(epochs=2, batch_size=100, input_noise=0.5, **QUIET))
    noisy = torch.cat(seen[True])
    assert noisy.std() == pytest.approx(0.5, rel=0.05) and noisy.mean() == pytest.approx(3, abs=0.05)
    assert torch.cat(seen[False]).eq(3).all()
