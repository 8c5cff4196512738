"""Whole sequences; the spike is found afterwards. On a GPU LSTM and GRU run with PyTorch's own kernels (cuDNN).

This is what every other implementation of rank coding does: answering early saves nothing. But cells with
`forward_sequence` need no loop over steps, so on a GPU they are much faster than with `stepwise`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rankcode.engines.cpu_settings import is_small, run_with_settings
from rankcode.engines.run import (
    Keep,
    Run,
    activate,
    ask,
    decide_rows,
    declared,
    planted_steps,
    read_steps,
    reads_sequences,
    table_of,
)
from rankcode.network import Network
from rankcode.rules import Rule
from rankcode.state import map_state


def can_run(network: Network, inputs: Tensor, rule: Rule) -> str | None:
    if network.checkpoints is not None:
        return "its readout changes from step to step"
    if torch.is_autocast_enabled(inputs.device.type) and reads_sequences(network):
        return "in mixed precision its state would not stay float32"
    return None


def run(
    network: Network, inputs: Tensor, lengths: Tensor, rule: Rule, keep: Keep, expected_steps: Tensor | None = None
) -> Run:
    if inputs.device.type == "cpu" and reads_sequences(network):
        small = is_small(sum(part.numel() for part in network.cell.parameters()), len(inputs))
        return run_with_settings(lambda: _run(network, inputs, lengths, rule, keep), small)
    return _run(network, inputs, lengths, rule, keep)


def _run(network: Network, inputs: Tensor, lengths: Tensor, rule: Rule, keep: Keep) -> Run:
    rows, steps = inputs.shape[:2]
    row, step = torch.arange(rows, device=inputs.device), torch.arange(1, steps + 1, device=inputs.device)
    # Steps past a row's answer get a gradient of zero, and zero times NaN would be NaN.
    features, _ = read_steps(network, inputs.nan_to_num(0.0, 0.0, 0.0), network.initial_state(rows))
    planted = planted_steps(rule, lengths)
    if planted is not None and keep == "answer":  # logits are needed only where a row answers
        answered = planted.minimum(lengths)
        logits = network.logits(features[row, answered - 1])
        decision = decide_rows(network, rule, logits, answered, planted <= lengths)
        return Run(decision, logits, row, answered, lengths, keep)
    logits = network.logits(features.flatten(0, 1)).view(rows, steps, -1)
    with torch.no_grad():
        spikes = _spikes(network, features, logits, rule) if planted is None else step >= planted[:, None]
        spikes &= step <= lengths[:, None]
        fired = spikes.any(1)
        answered = torch.where(fired, spikes.int().argmax(1) + 1, lengths)
    answers = logits[row, answered - 1]
    decision = decide_rows(network, rule, answers, answered, fired)
    if keep == "answer":
        return Run(decision, answers, row, answered, lengths, keep)
    row, before = (step <= answered[:, None]).nonzero(as_tuple=True)
    return Run(decision, logits[row, before], row, before + 1, lengths, keep)


def _spikes(network: Network, features: Tensor, logits: Tensor, rule: Rule) -> Tensor:
    """Whether the rule fires at each step, had it not fired before: [rows, steps]."""
    rows, steps = logits.shape[:2]
    activations, probabilities = activate(network, logits)
    if declared(rule, "table"):
        return (activations >= table_of(rule, steps, network.num_classes, activations.dtype, activations.device)).any(2)
    state = map_state(lambda part: part.to(logits.device), rule.initial_state(rows))
    fired = []
    for step in range(steps):
        spikes, state = ask(rule, activations[:, step], probabilities[:, step], step + 1, state, features[:, step])
        fired.append(spikes)
    return torch.stack(fired, 1)
