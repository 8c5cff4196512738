"""Whole sequences; the spike is picked out afterwards. LSTM and GRU run with PyTorch's own kernels (cuDNN on a GPU).

What every implementation of rank coding does: nothing is saved by answering early. But LSTM and GRU need no loop over
steps, so on a GPU they are much faster than with `stepwise`; and nobody looks at what comes out on the way, so that a
training step can be recorded.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from rankcode.cells import GRU, LSTM
from rankcode.engines.run import Keep, Run, checked_fired, decide_rows, table_of
from rankcode.network import Network
from rankcode.rules import Never, Rule
from rankcode.state import map_state


def can_run(network: Network) -> str | None:
    """The reason why not, or None."""
    mixed = torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu")
    if mixed and has_kernels(network):
        return "in mixed precision its state would not stay float32"
    return None


def has_kernels(network: Network) -> bool:
    """Whether PyTorch runs the cell through all steps at once."""
    return type(network.cell) in (LSTM, GRU)


def run(network: Network, inputs: Tensor, lengths: Tensor, rule: Rule, keep: Keep) -> Run:
    if reason := can_run(network):
        raise ValueError(f"the engine whole cannot run this network: {reason}")
    rows, steps = inputs.shape[:2]
    row, step = torch.arange(rows, device=inputs.device), torch.arange(1, steps + 1, device=inputs.device)
    # What lies past a row's answer gets no gradient, but zero times NaN would be one.
    features = _features(network, inputs.nan_to_num(0.0, 0.0, 0.0))  # [rows, steps, features…]
    if keep == "answer" and isinstance(rule, Never):
        logits = network.logits(features[row, lengths - 1])
        decision = decide_rows(network, rule, logits, lengths, torch.zeros_like(lengths, dtype=torch.bool))
        return Run(decision, logits, row, lengths, lengths)
    logits = network.logits(features.flatten(0, 1)).view(rows, steps, -1)
    with torch.no_grad():
        spikes = _spikes(network, logits, rule) & (step <= lengths[:, None])
        fired = spikes.any(1)
        answered = torch.where(fired, spikes.int().argmax(1) + 1, lengths)
    answers = logits[row, answered - 1]
    decision = decide_rows(network, rule, answers, answered, fired)
    if keep == "answer":
        return Run(decision, answers, row, answered, lengths)
    row, before = (step <= answered[:, None]).nonzero(as_tuple=True)
    return Run(decision, logits[row, before], row, before + 1, lengths)


def _features(network: Network, inputs: Tensor) -> Tensor:
    if has_kernels(network):
        return _with_kernels(network.cell, inputs)
    found, state = [], network.initial_state(len(inputs))
    for x_t in inputs.unbind(1):
        features, state = network.cell(x_t, state)
        found.append(features)
    return torch.stack(found, 1)


def _with_kernels(cell: LSTM | GRU, inputs: Tensor) -> Tensor:
    weights = [part for layer in range(cell.num_layers) for part in cell.weights(layer)]
    state = inputs.new_zeros(cell.num_layers, len(inputs), cell.hidden_size)
    train = torch.is_grad_enabled()
    settings = (
        True,
        cell.num_layers,
        0.0,
        train,
        False,
        True,
    )  # bias, …, dropout, train, bidirectional, batch_first
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "RNN module weights")  # cuDNN joins the weights first, which costs little
        if isinstance(cell, LSTM):
            return torch.lstm(inputs, (state, state), weights, *settings)[0]
        return torch.gru(inputs, state, weights, *settings)[0]


def _spikes(network: Network, logits: Tensor, rule: Rule) -> Tensor:
    """Whether the rule fires at each step, were it asked: [rows, steps]."""
    rows, steps = logits.shape[:2]
    activations, probabilities = network.activate(logits)
    if hasattr(rule, "table"):
        return (activations >= table_of(rule, steps, network.num_classes, activations.dtype, activations.device)).any(2)
    state = map_state(lambda part: part.to(logits.device), rule.initial_state(rows))
    fired = []
    for step in range(steps):
        spikes, state = rule(activations[:, step], probabilities[:, step], step + 1, state)
        fired.append(checked_fired(spikes, rows))
    return torch.stack(fired, 1)
