"""LSTM and GRU over whole sequences with PyTorch's own kernels (cuDNN on a GPU); the spike is picked out afterwards.

What every implementation of rank coding does: nothing is saved by answering early, but there is no Python loop
over steps, so on a GPU it is much faster than `stepwise`.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from rankcode.cells import GRU, LSTM
from rankcode.engines.run import Keep, Run, checked_fired, decide_rows
from rankcode.network import Network
from rankcode.rules import Never, Rule
from rankcode.state import map_state


def can_run(network: Network) -> str | None:
    """The reason why not, or None."""
    if type(network.cell) not in (LSTM, GRU):
        return f"{type(network.cell).__name__} is not one of PyTorch's recurrent layers"
    if torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu"):
        return "in mixed precision its state would not stay float32"
    return None


def run(network: Network, inputs: Tensor, lengths: Tensor, rule: Rule, keep: Keep) -> Run:
    if reason := can_run(network):
        raise ValueError(f"the engine whole cannot run this network: {reason}")
    rows, steps = len(inputs), int(lengths.max())
    row, step = torch.arange(rows, device=inputs.device), torch.arange(1, steps + 1, device=inputs.device)
    # What lies past a row's answer gets no gradient, but zero times NaN would be one.
    features = _features(network.cell, inputs[:, :steps].nan_to_num(0.0, 0.0, 0.0))  # [rows, steps, units]
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


def _features(cell: LSTM | GRU, inputs: Tensor) -> Tensor:
    weights = [part for layer in range(cell.layers) for part in cell.weights(layer)]
    state = inputs.new_zeros(cell.layers, len(inputs), cell.units)
    train = torch.is_grad_enabled()
    settings = (True, cell.layers, 0.0, train, False, True)  # bias, layers, dropout, train, bidirectional, rows first
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
        return (activations >= rule.table(steps, network.classes).to(activations)).any(2)  # type: ignore[attr-defined]
    state = map_state(lambda part: part.to(logits.device), rule.initial_state(rows))
    fired = []
    for step in range(steps):
        spikes, state = rule(activations[:, step], probabilities[:, step], step + 1, state)
        fired.append(checked_fired(spikes, rows))
    return torch.stack(fired, 1)
