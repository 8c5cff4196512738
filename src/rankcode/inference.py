"""Use a network: `decide` reads each row until the rule fires, `trace` computes every step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils import parametrize

from rankcode.checks import check_read, checked_inputs
from rankcode.decision import Decision
from rankcode.engines import Keep, Run, run
from rankcode.network import Network
from rankcode.rules import Rule, Threshold, check_rule
from rankcode.state import State, map_state


class Trace(NamedTuple):
    """Every step of every row, past the spike too. Padded steps hold NaN, or 0 in integer states."""

    activations: Tensor  # [rows, steps, classes]: what rules compare with θ
    probabilities: Tensor  # [rows, steps, classes]
    states: State  # the cell's state after each step; its tensors are [rows, steps, …]


@contextmanager
def inference(network: Network) -> Iterator[None]:
    """Evaluation mode and no gradients; afterwards every module is back in its own mode."""
    training = [module for module in network.modules() if module.training]
    for module in training:
        object.__setattr__(module, "training", False)  # ten times as fast as the __setattr__ of a module
    try:
        with torch.no_grad(), parametrize.cached():
            yield
    finally:
        for module in training:
            object.__setattr__(module, "training", True)


def rule_for(network: Network, rule: Rule | None) -> Rule:
    """The rule that was given, or else the network's own, or else `Threshold(0.95)`, checked against the network."""
    rule = (network.rule or Threshold()) if rule is None else rule
    check_rule(rule, network.activation, network.num_classes)
    return rule


def decide(
    network: Network,
    inputs: Tensor,
    lengths: Tensor | None = None,
    rule: Rule | None = None,
    engine: str = "auto",
) -> Decision:
    """Read each row until the rule fires, and return the answers. The rule is by default the network's own, or else
    `Threshold(0.95)`."""
    return checked_run(network, inputs, lengths, rule, "answer", engine).decision


def checked_run(
    network: Network,
    inputs: Tensor,
    lengths: Tensor | None,
    rule: Rule | None,
    keep: Keep,
    engine: str,
    expected_steps: Tensor | None = None,
) -> Run:
    """Check the inputs and run the network without gradients, with the rule that `decide` uses."""
    rule = rule_for(network, rule)
    ragged = lengths is not None
    inputs, lengths = checked_inputs(network, inputs, lengths)
    expected_steps = lengths if ragged and expected_steps is None else expected_steps
    with inference(network):
        result = run(network, inputs, lengths, rule, keep, engine, expected_steps)
    check_read(inputs, result.decision.steps)
    return result


def trace(network: Network, inputs: Tensor, lengths: Tensor | None = None) -> Trace:
    """Activations and states of whole sequences, past the spike too, for figures."""
    inputs, lengths = checked_inputs(network, inputs, lengths)
    check_read(inputs, lengths)
    moments = []  # one (activations, probabilities, state) for each step
    with inference(network):
        state = network.initial_state(len(inputs))
        for step in range(int(lengths.max())):
            live = step < lengths
            logits, after = network(inputs[live, step], map_state(lambda part, at=live: part[at], state), step + 1)
            now = (*network.activate(logits), after)
            state = map_state(lambda whole, part, at=live: whole.index_put((at,), part), state, after)
            moments.append(map_state(lambda part, at=live: _spread(part, at), now))
        moments += [map_state(_blank, moments[-1])] * (inputs.shape[1] - len(moments))  # steps past every row's end
        columns = map_state(lambda *steps: torch.stack(steps, 1), *moments)
    return Trace(*columns)


def _spread(part: Tensor, rows: Tensor) -> Tensor:
    """`part` in the rows that are True, blank in the others."""
    whole = _blank(part.new_empty(len(rows), *part.shape[1:]))
    whole[rows] = part
    return whole


def _blank(part: Tensor) -> Tensor:
    return torch.full_like(part, torch.nan if part.is_floating_point() or part.is_complex() else 0)
