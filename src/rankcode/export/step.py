"""One step of a network and its rule as one module: tensors in, tensors out.

All of the state is passed in and out, and a sequence begins with zeros in every state tensor, so that a client needs to
know nothing but names, shapes and types.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rankcode.checks import step_shape
from rankcode.engines.run import ask, decide_rows
from rankcode.network import Network
from rankcode.rules import Rule
from rankcode.state import State, map_state


class StateTensor(NamedTuple):
    """A tensor of the state."""

    name: str
    initial: Tensor  # [1, …]: of a row that has not read any step


class Step(nn.Module):
    """`forward(x, *state)` returns (probabilities, fired, label, *new state).

    The last state tensor is `calls`, how often a row has been called. With a front end `raw`, the module that
    `step_module` of a front end returns, the first `warm_up` calls complete no step: the probabilities are those of
    chance, and nothing fires.
    """

    def __init__(self, network: Network, rule: Rule, raw: nn.Module | None):
        super().__init__()
        self.network, self.rule, self.raw = network, rule, raw
        self.warm_up: int = getattr(raw, "warm_up", 0)
        shape = step_shape(network.cell if raw is None else raw)
        if shape is None:
            name = type(network.cell).__name__
            raise ValueError(f"{name} does not say what it reads: set its input_shape to export it")
        self.x_shape = shape
        self.x_dtype: torch.dtype = getattr(raw, "dtype", torch.float32)
        with torch.no_grad():
            raw_state = None if raw is None else raw.initial_state(1)  # type: ignore[operator]
            self._template = (raw_state, network.initial_state(1), rule.initial_state(1))
        parts = zip(("", "cell", "rule"), self._template, strict=True)
        self.state = [each for name, part in parts for each in _named(part, name)]
        # Up to the first step these are replaced by their initial value: it is not zero, or calls of the warm-up have
        # changed them. A front end begins with zeros.
        first = len(_leaves(raw_state))
        self._replaced = [
            place >= first and (self.warm_up > 0 or bool(part.initial.any())) for place, part in enumerate(self.state)
        ]
        self.state.append(StateTensor("calls", torch.zeros(1, dtype=torch.long)))

    def initial_state(self, rows: int) -> list[Tensor]:
        """What a client begins with."""
        return [part.initial.new_zeros(rows, *part.initial.shape[1:]) for part in self.state]

    def forward(self, x: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        *parts, calls = state
        calls = calls + 1
        number = calls - self.warm_up
        given = (
            _where(number <= 1, initial, part) if replaced else part
            for (_, initial), part, replaced in zip(self.state, parts, self._replaced, strict=False)
        )
        raw_state, cell_state, rule_state = map_state(lambda _: next(given), self._template)
        if self.raw is not None:
            x, raw_state = self.raw(x, raw_state)
        ready = number >= 1
        number = number.clamp(min=1) if self.warm_up else number
        features, cell_state = self.network.cell(x, cell_state)
        logits = self.network.logits(features, number)
        activations, probabilities = self.network.activate(logits)
        fired, new_rule_state = ask(self.rule, activations, probabilities, number, rule_state, features)
        if (checkpoints := self.network.checkpoints) is not None:
            may_fire = (number[:, None] == torch.tensor(checkpoints)).any(1)
            fired = fired & may_fire
            new_rule_state = map_state(lambda new, old: _where(may_fire, new, old), new_rule_state, rule_state)
        if self.warm_up:
            fired = fired & ready
            chance = torch.full_like(probabilities[:1], 1 / self.network.num_classes)
            probabilities = _where(ready, probabilities, chance)
        after = (raw_state, cell_state, new_rule_state)
        label = decide_rows(self.network, self.rule, logits, number, fired).label
        # An output cannot be an input: a state that stays as it is is copied.
        new = [part.clone() if any(part is old for old in state) else part for part in _leaves(after)]
        return probabilities, fired, label, *new, calls


def _where(condition: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """By row: `condition` is [rows]."""
    return torch.where(condition.view(-1, *[1] * (no.dim() - 1)), yes, no)


def _leaves(state: State) -> list[Tensor]:
    found: list[Tensor] = []
    map_state(lambda part: found.append(part) or part, state)
    return found


def _named(state: State, name: str) -> Iterator[StateTensor]:
    """The tensors of a state, named after the fields and places at which they are: cell_0_hidden."""
    if isinstance(state, Tensor):
        yield StateTensor(name or "raw", state)
    elif state is not None:
        fields = getattr(state, "_fields", range(len(state)))
        for field, part in zip(fields, state, strict=True):
            yield from _named(part, f"{name}_{field}" if name else str(field))


def exportable(network: Network) -> Network:
    """A copy in float32, on the CPU and in evaluation mode."""
    made: Any = deepcopy(network).float().cpu().eval()
    return made.requires_grad_(False)
