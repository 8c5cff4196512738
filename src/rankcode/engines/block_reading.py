"""Rows read in blocks of steps: rows that have answered leave between blocks.

Readout and rule are evaluated for all steps of a block at once. What was computed past an answer inside its block
reaches neither outputs nor gradients. Time and memory follow the sum of steps read.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from rankcode.engines.run import (
    Keep,
    Run,
    activate,
    ask,
    decide_rows,
    declared,
    has_hooks,
    has_plain_logits,
    planted_steps,
)
from rankcode.network import Network
from rankcode.rules import Rule
from rankcode.state import State, map_state, rows_of

# Readouts of these modules give the same logits each time. A dropout, for example, does not.
REPEATABLE = {nn.Sequential, nn.Linear, nn.Flatten, nn.Identity, nn.LayerNorm, nn.ReLU, nn.GELU, nn.Tanh, nn.Sigmoid}


class Plan(Protocol):
    """Where blocks of steps end."""

    def expect(self, answers: np.ndarray) -> None:
        """Plan for rows of which equal shares answer at these steps, in order."""
        ...

    def steps(self, first: int, remaining: np.ndarray) -> int:
        """The number of steps of the next block, after `first` steps, if rows end after the `remaining` steps."""
        ...


def read_in_blocks(
    network: Network,
    inputs: Tensor,
    lengths: Tensor,
    rule: Rule,
    keep: Keep,
    expected_steps: Tensor | None,
    plan: Plan,
    read: Callable[[Tensor, State], tuple[Tensor, State]],
) -> Run:
    """Run all rows until they answer. `read` takes the inputs of a block [rows, steps, …] and the state before it, and
    returns features [rows, steps, …] and the state after it. Which rows answer is worked out in numpy, which takes a
    third of PyTorch's time for small arrays."""
    rows, gradients, planted, device = len(inputs), torch.is_grad_enabled(), planted_steps(rule, lengths), inputs.device

    def here(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(device)

    if planted is None:
        answered, fired = lengths.cpu().numpy().copy(), np.zeros(rows, bool)
    else:
        expected_steps = planted.minimum(lengths)
        answered, fired = expected_steps.cpu().numpy(), (planted <= lengths).cpu().numpy()
    if expected_steps is not None and expected_steps is not lengths:  # lengths are passed where nothing else is known
        plan.expect(np.sort(expected_steps.cpu().numpy()))
    # Whether logits with gradients are computed at the end, from the features of the steps that are kept.
    logits_last = planted is not None or (gradients and keep == "answer" and _is_repeatable(network.readout))
    logits_of = network.logits if gradients and not logits_last else _logits_alone(network, device)
    # The gradient of `unbind` takes linear time, that of indexing in every block quadratic time.
    columns = inputs.unbind(1) if gradients and inputs.requires_grad else None
    live, ends, first = np.arange(rows), answered, 0
    state = network.initial_state(rows)
    rule_state = map_state(lambda part: part.to(device), rule.initial_state(rows))
    entries = []  # of each block: logits (or features, if `logits_last`), row and step
    while True:  # every row answers at its end
        steps_read = ends - first  # or fewer, if the rule fires before
        steps = plan.steps(first, steps_read)
        block = slice(first, first + steps)
        x = inputs[:, block] if columns is None else torch.stack(columns[block], 1)
        if live.size < rows:
            x = x.index_select(0, here(live))
        if gradients:
            x = _finite(x, steps_read)
        features, state = read(x, state)
        features = features.transpose(0, 1)  # [steps, live, …]
        steps, outputs = len(features), features.flatten(0, 1)
        if planted is None:
            if not logits_last:
                outputs = logits_of(outputs)
            with torch.no_grad() if gradients else nullcontext():
                logits = logits_of(outputs) if logits_last else outputs
                found, rule_state = block_spikes(network, rule, features, logits, first, rule_state)
            spikes = found.cpu().numpy()
            if spikes.any():
                spike = spikes.argmax(0)
                fires = spikes[spike, np.arange(live.size)] & (spike < steps_read)
                steps_read = np.where(fires, spike + 1, steps_read)
                answered[live], fired[live] = first + steps_read, fires
        left = steps_read <= steps
        if keep == "read":
            step, place = (np.arange(steps)[:, None] < steps_read).nonzero()
        else:
            place = left.nonzero()[0]
            step = steps_read[place] - 1
        if place.size:
            kept = outputs.index_select(0, here(step * live.size + place))
            entries.append((kept, live[place], first + 1 + step))
        if left.all():
            break
        first += steps
        if left.any():
            staying = (~left).nonzero()[0]
            live, ends = live[staying], ends[staying]
            state, rule_state = rows_of((state, rule_state), here(staying))
    if len(entries) == 1:
        logits, row, step = entries[0]
    else:
        parts, row, step = zip(*entries, strict=True)
        logits, row, step = torch.cat(parts), np.concatenate(row), np.concatenate(step)
    if logits_last:
        logits = network.logits(logits)
    answers = logits
    if len(entries) > 1 or keep == "read":  # otherwise rows are in order
        last = (step == answered[row]).nonzero()[0]
        answers = logits.index_select(0, here(last[row[last].argsort()]))
    answered = here(answered)
    decision = decide_rows(network, rule, answers, answered, here(fired))
    if keep == "answer":
        return Run(decision, answers, torch.arange(rows, device=device), answered, lengths, keep)
    return Run(decision, logits, here(row), here(step), lengths, keep)


def _logits_alone(network: Network, device: torch.device) -> Callable[[Tensor], Tensor]:
    """Logits without gradients. For many rows, on a CPU, a linear layer with few outputs takes half the time if its
    outputs have the classes first in memory, which also is what `activate` needs."""
    readout: Any = network.readout
    *before, last = readout if type(readout) is nn.Sequential else (readout,)
    if device.type != "cpu" or type(last) is not nn.Linear or not 1 < last.out_features == network.outputs:
        return network.logits
    weight, bias = last.weight, last.bias
    if (
        bias is None
        or weight.dtype not in (torch.float32, torch.float64)
        or not has_plain_logits(type(network))
        or any(has_hooks(part) for part in (readout, last))
    ):
        return network.logits
    column = bias[:, None]

    def logits_of(features: Tensor) -> Tensor:
        for layer in before:
            features = layer(features)
        return torch.addmm(column, weight, features.t()).t()

    return logits_of


def _is_repeatable(readout: nn.Module) -> bool:
    return all(type(module) in REPEATABLE for module in readout.modules())


def _finite(x: Tensor, remaining: np.ndarray) -> Tensor:
    """The inputs of a block [live, steps, …], with zeros past the ends of rows, and cut before NaN or infinity. What is
    computed past an answer gets a gradient of zero, and zero times NaN would be NaN. A row that is live after the cut
    does read it. On a GPU, where the host would have to wait, there are zeros instead of NaN."""
    if x.is_cuda:
        return x.nan_to_num(0.0, 0.0, 0.0)
    if remaining.min() < x.shape[1]:
        past = (np.arange(x.shape[1]) >= remaining[:, None]).ravel().nonzero()[0]
        x = x.flatten(0, 1).index_fill(0, torch.from_numpy(past), 0.0).view(x.shape)
    if math.isfinite(x.detach().sum()):  # then every value is
        return x
    bad = (~x.detach().isfinite()).transpose(0, 1).flatten(1).any(1).nonzero()[:, 0]
    return x[:, : bad[0]] if len(bad) and bad[0] > 0 else x


def block_spikes(
    network: Network, rule: Any, features: Tensor, logits: Tensor, first: int, state: Any
) -> tuple[Tensor, Any]:
    """Whether the rule fires, [steps, live], and its state after a block of features [steps, live, …] and their logits
    [steps · live, classes]."""
    steps, live = features.shape[:2]
    activations, probabilities = activate(network, logits)
    if declared(rule, "stationary"):
        return rule(activations, probabilities, first + 1, state)[0].view(steps, live), state
    if declared(rule, "memoryless"):
        step = torch.from_numpy(np.arange(first + 1, first + steps + 1).repeat(live)).to(logits.device)
        return ask(rule, activations, probabilities, step, state, features.flatten(0, 1))[0].view(steps, live), state
    spikes = []
    for k, rows in enumerate(zip(activations.split(live), probabilities.split(live), features, strict=True)):
        fired, state = ask(rule, rows[0], rows[1], first + k + 1, state, rows[2])
        spikes.append(fired)
    return torch.stack(spikes), state
