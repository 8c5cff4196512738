"""LSTM and GRU on a CPU, compiled from C: steps, readout and rule in one call.

Up to 48 rows are read at once. When one answers, the next row takes its place, so time follows the sum of steps read,
however the answers are distributed. The backward pass works in the same way, from each row's answer to its first step;
the gradients of the weights are matrix multiplications over the steps that were read.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rankcode.engines.compiled.library import functions
from rankcode.engines.compiled.reading import Reading
from rankcode.engines.run import Keep, Run, decide_rows, has_fused_step, is_table, planted_steps, readout_of
from rankcode.network import Network
from rankcode.rules import Rule


def can_run(network: Network, inputs: Tensor, rule: Rule) -> str | None:
    if functions() is None:
        return "it was not compiled when rankcode was installed: install a C compiler, then rankcode again"
    if inputs.device.type != "cpu":
        return f"the inputs are on {inputs.device}"
    if not has_fused_step(network) or network.cell.num_layers > 1:
        return "it runs LSTMs and GRUs of one layer"
    if inputs.dtype != torch.float32:
        return f"it runs float32, the network is {inputs.dtype}"
    if torch.is_autocast_enabled("cpu"):
        return "it does not support mixed precision"
    if inputs.requires_grad:
        return "it does not compute gradients of the inputs"
    if hasattr(rule, "planted_steps"):
        return None
    if not is_table(rule) or network.activation == "membrane":
        return f"{type(rule).__name__} is not a table of thresholds for probabilities"
    if readout_of(network) is None:
        return "with this rule it supports linear readouts and those with one hidden layer"
    return None


def run(
    network: Network, inputs: Tensor, lengths: Tensor, rule: Rule, keep: Keep, expected_steps: Tensor | None = None
) -> Run:
    planted = planted_steps(rule, lengths)
    reading = Reading(network, inputs, lengths, rule, planted, keep)
    features, answered = reading.features(), reading.answered
    fired = reading.fired if planted is None else planted <= lengths
    if keep == "answer":
        logits = network.logits(features) if reading.logits is None else reading.logits
        decision = decide_rows(network, rule, logits, answered, fired)
        return Run(decision, logits, torch.arange(len(inputs)), answered, lengths, keep)
    logits, place = network.logits(features), reading.places()
    row, step = place // inputs.shape[1], place % inputs.shape[1] + 1
    last = (step == answered[row]).nonzero()[:, 0]
    decision = decide_rows(network, rule, logits.detach()[last[row[last].argsort()]], answered, fired)
    return Run(decision, logits, row, step, lengths, keep)
