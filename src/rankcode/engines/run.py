"""What every engine gives."""

from __future__ import annotations

from functools import cache
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from rankcode.decision import Decision
from rankcode.network import Network
from rankcode.rules import Rule, StepThresholds, Threshold, allowed

Keep = Literal["answer", "read"]


class Run(NamedTuple):
    """A network run through time: the decision, and logits with gradients.

    keep="answer": one entry for each row, in order: the logits it answered with.
    keep="read": one entry for each step that was read, in no particular order; or, where nobody may look how many these
    are, one for every step of every row, in order, and `read` says which of them count.
    """

    decision: Decision
    logits: Tensor  # [entries, classes]
    row: Tensor  # [entries] int64
    step: Tensor  # [entries] int64, 1…length
    lengths: Tensor  # [rows] int64
    read: Tensor | None = None  # [entries] bool

    def at_answer(self) -> Tensor:
        """The logits each row answered with, [rows, classes]."""
        if self.step is self.decision.steps:  # keep="answer"
            return self.logits
        if self.read is not None:
            each = self.logits.view(len(self.lengths), -1, self.logits.shape[1])
            return each[torch.arange(len(each), device=each.device), self.decision.steps - 1]
        if len(self.logits) == len(self.lengths):  # one entry a row, though every step read was kept
            order = self.row.argsort()
        else:
            (last,) = (self.step == self.decision.steps[self.row]).nonzero(as_tuple=True)
            order = last[self.row[last].argsort()]
        return self.logits[order]


class Engine(Protocol):
    def __call__(self, network: Network, inputs: Tensor, lengths: Tensor, rule: Rule, keep: Keep) -> Run: ...


def table_of(rule: Any, steps: int, classes: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A rule's thresholds by step and class, [steps, classes], on the device."""
    if type(rule) in (Threshold, StepThresholds):  # which never change: copied once, for a copy makes the host wait
        return _kept_table(rule, steps, classes, dtype, device)
    return rule.table(steps, classes).to(device, dtype)


@cache  # what is recorded goes on reading them
def _kept_table(rule: Any, steps: int, classes: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return rule.table(steps, classes).to(device, dtype).contiguous()


def checked_fired(fired: Tensor, rows: int) -> Tensor:
    """What a rule gave, if it is what a rule must give."""
    if fired.shape != (rows,) or fired.dtype != torch.bool:
        raise ValueError(f"a rule gives fired as bool [rows], here [{rows}], not {fired.dtype} {list(fired.shape)}")
    return fired


def decide_rows(network: Network, rule: Rule, logits: Tensor, steps: Tensor, fired: Tensor) -> Decision:
    """The Decision of rows that answered with these logits: a row that fired names the largest
    activation among the classes that may fire, any other the largest of all."""
    with torch.no_grad():
        activations, probabilities = network.activate(logits.detach())
        label = activations.argmax(1)
        if (classes := getattr(rule, "classes", None)) is not None:
            label = torch.where(fired, allowed(activations, classes).argmax(1), label)
        return Decision(label, steps, fired, probabilities)
