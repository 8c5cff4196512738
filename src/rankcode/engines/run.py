"""What every engine takes and returns, and what engines share."""

from __future__ import annotations

import math
from contextlib import nullcontext
from functools import cache
from typing import Any, Literal, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrize import type_before_parametrizations

from rankcode.cells import GRU, LSTM, Stack
from rankcode.decision import Decision
from rankcode.device_constants import cached
from rankcode.network import Network
from rankcode.rules import Rule, allowed
from rankcode.state import State

Keep = Literal["answer", "read"]
ACTIVATIONS = {nn.ReLU: "relu", nn.Tanh: "tanh", nn.Sigmoid: "sigmoid"}  # of a readout's hidden layer


class Run(NamedTuple):
    """A network run through time: the decision, and logits with gradients.

    keep="answer": one entry for each row, in order: the logits it answered with.
    keep="read": one entry for each step that was read and has an output, in any order. While a CUDA graph is captured,
    when their number cannot be read on the host, one entry for every step of every row, in order, and `read` says which
    were read.
    """

    decision: Decision
    logits: Tensor  # [entries, classes]
    row: Tensor  # [entries] int64
    step: Tensor  # [entries] int64, 1…length
    lengths: Tensor  # [rows] int64
    keep: Keep
    read: Tensor | None = None  # [entries] bool
    one_thread: bool = False  # whether the loss and its gradients should be computed in one thread of the CPU

    def at_answer(self) -> Tensor:
        """The logits each row answered with, [rows, classes]."""
        if self.keep == "answer":
            return self.logits
        if self.read is not None:
            each = self.logits.view(len(self.lengths), -1, self.logits.shape[1])
            return each[torch.arange(len(each), device=each.device), self.decision.steps - 1]
        (last,) = (self.step == self.decision.steps[self.row]).nonzero(as_tuple=True)
        return self.logits[last[self.row[last].argsort()]]


class Engine(Protocol):
    """One way to run a network through time."""

    def can_run(self, network: Network, inputs: Tensor, rule: Rule) -> str | None:
        """None if the engine can run the network, otherwise the reason why not."""
        ...

    def run(
        self,
        network: Network,
        inputs: Tensor,
        lengths: Tensor,
        rule: Rule,
        keep: Keep,
        expected_steps: Tensor | None = None,
    ) -> Run:
        """Run every row until it fires or ends. `expected_steps` [rows], the steps at which rows will probably answer,
        makes some engines faster and never changes the result."""
        ...


def _is_as_it_is(cell: nn.Module, *kinds: type) -> bool:
    """Whether it is a cell of one of these classes, with nothing added to it."""
    return type_before_parametrizations(cell) in kinds and not has_hooks(cell)


def has_hooks(part: nn.Module) -> bool:
    """Whether anything besides its `forward` happens when it is called."""
    return bool(part._forward_hooks or part._forward_pre_hooks or part._backward_hooks or part._backward_pre_hooks)


class Layers(NamedTuple):
    """The cells of a network: those that are read as whole sequences, and the LSTMs or GRUs above them, of one kind and
    size, whose steps some engines compute without calling the cells."""

    below: list[nn.Module]
    top: list[Any]


def layers_of(network: Network) -> Layers | None:
    if _is_as_it_is(network.cell, LSTM, GRU):
        return None if network.checkpoints else Layers([], [network.cell])
    below, top = _cells_in(network.cell), []
    while below and _is_as_it_is(below[-1], LSTM, GRU) and (not top or _are_alike(below[-1], top[0])):
        top.insert(0, below.pop())
    at_once = network.checkpoints is None and all(_all_read(cell, ("forward_sequence",)) for cell in below)
    return Layers(below, top) if top and at_once else None


def _cells_in(cell: nn.Module) -> list[nn.Module]:
    """The cells of a stack, from the lowest to the topmost; of any other cell itself."""
    return [part for each in cell.cells for part in _cells_in(each)] if _is_as_it_is(cell, Stack) else [cell]  # type: ignore[union-attr]


def _are_alike(one: Any, other: Any) -> bool:
    kinds = {type_before_parametrizations(cell) for cell in (one, other)}
    return len(kinds) == 1 and one.hidden_size == other.hidden_size


def readout_of(network: Network) -> tuple[nn.Linear | None, str, nn.Linear] | None:
    """The readout as a hidden layer, its activation and the output layer; None if it is of another kind."""
    readout = network.readout
    parts = list(readout) if type(readout) is nn.Sequential else [readout]
    match parts:
        case [last]:
            inner, activation = None, ""
        case [inner, between, last] if type(inner) is nn.Linear and type(between) in ACTIVATIONS:
            activation = ACTIVATIONS[type(between)]
        case _:
            return None
    if type(last) is not nn.Linear or last.bias is None:  # a subclass may compute anything
        return None
    if inner is not None and inner.bias is None:
        return None
    if any(has_hooks(part) for part in (readout, *parts)) or not has_plain_logits(type(network)):
        return None
    return inner, activation, last


@cache
def has_plain_logits(kind: type[Network]) -> bool:
    """Whether a class of networks computes logits and activations as `Network` does."""
    return all(getattr(kind, name) is getattr(Network, name) for name in ("logits", "as_logits", "activate"))


def declared(rule: Any, name: str) -> Any:
    """An attribute that describes the `__call__` of a rule, such as `table` or `memoryless`, or None. What the class of
    the rule inherits does not count if it has a `__call__` of its own."""
    if name in getattr(rule, "__dict__", ()) or _describes_call(type(rule), name):
        return getattr(rule, name)
    return None


@cache
def _describes_call(kind: type, name: str) -> bool:
    return _defined_by(kind, name) <= _defined_by(kind, "__call__")


def why_not_fused(network: Network, rule: Rule) -> str | None:
    """None if readout and rule can be computed beside a fused step, otherwise the reason why not."""
    if declared(rule, "planted_steps"):
        return None
    if not declared(rule, "table") or network.activation == "membrane":
        return f"{type(rule).__name__} is not a table of thresholds for probabilities"
    if readout_of(network) is None:
        return "with this rule it supports linear readouts and those with one hidden layer"
    return None


def reads_sequences(network: Network) -> bool:
    """Whether the cell, and every cell in it, computes many steps at once with `forward_sequence`. Not if hooks or a
    subclass change its `forward` alone."""
    return network.checkpoints is None and _all_read(network.cell, ("forward_sequence",))


def reads_in_blocks(network: Network) -> bool:
    """Whether the network can fire at checkpoints only, and its cell, with every cell in it, reads many steps at once:
    up to the next."""
    cell = network.cell
    if network.checkpoints is None or not hasattr(cell, "forward_block"):
        return False
    stacked = [each for part in cell.modules() if isinstance(part, Stack) for each in part.cells]
    return _all_read(cell, ("forward_block", "forward_sequence")) and all(
        _all_read(each, ("forward_sequence",)) for each in stacked
    )


def _all_read(cell: nn.Module, methods: tuple[str, ...]) -> bool:
    """Whether the cell, and every cell in it, has one of the methods, and hooks or a subclass do not change its
    `forward` alone."""
    parts = list(cell.modules())
    if any(has_hooks(part) for part in parts):
        return False
    return all(_reads(type(part), methods) for part in parts if part is cell or hasattr(part, "initial_state"))


@cache
def _reads(kind: type, methods: tuple[str, ...]) -> bool:
    """Whether one of the methods of a cell of this class does what its `forward` does."""
    return min(_defined_by(kind, method) for method in methods) <= _defined_by(kind, "forward")


def _defined_by(kind: type, method: str) -> float:
    """Which of its classes, counted from its own upwards, defines a method."""
    return next((place for place, each in enumerate(kind.__mro__) if method in vars(each)), math.inf)


def read_steps(network: Network, inputs: Tensor, state: State) -> tuple[Tensor, State]:
    """The features after each of several steps, [rows, steps, …], and the state after the last."""
    if inputs.shape[1] > 1 and reads_sequences(network) and not torch.is_autocast_enabled(inputs.device.type):
        return network.cell.forward_sequence(inputs, state)
    found = []
    for x_t in inputs.unbind(1):
        features, state = network.cell(x_t, state)
        found.append(features)
    return torch.stack(found, 1), state


def planted_steps(rule: Any, lengths: Tensor) -> Tensor | None:
    """The step at which each row fires, if the rule does not depend on the network's output: see `rankcode.rules`."""
    return rule.planted_steps(lengths) if declared(rule, "planted_steps") else None


def table_of(
    rule: Any, steps: int, num_classes: int, dtype: torch.dtype, device: torch.device, padding: int = 0
) -> Tensor:
    """A rule's thresholds for all steps, [steps, classes + padding], on the device; those of the padding are never
    reached."""

    def make() -> Tensor:
        table = rule.table(range(1, steps + 1), num_classes).to(device, dtype)
        return F.pad(table, (0, padding), value=math.inf).contiguous()

    if not declared(rule, "capturable"):  # its thresholds may change
        return make()
    return cached((rule, steps, num_classes, dtype, device, padding), device, make)


def activate(network: Network, logits: Tensor) -> tuple[Tensor, Tensor]:
    """(activations, probabilities) of logits [..., classes]. On a CPU the softmax of all rows at once, with the classes
    first in memory, takes a tenth of the time. Its last digit depends on a row's place in the batch; networks with
    checkpoints, which need few softmaxes, do without it."""
    if logits.is_cuda or network.checkpoints is not None:
        return network.activate(logits)
    probabilities = logits.flatten(0, -2).t().softmax(0).t().view(logits.shape)
    return logits if network.activation == "membrane" else probabilities, probabilities


def ask(
    rule: Any, activations: Tensor, probabilities: Tensor, step: int | Tensor, state: Any, features: Tensor
) -> tuple[Tensor, Any]:
    """The (fired, state) that a rule returns, if `fired` is bool [rows]. Features [rows, …] go to rules that read
    them."""
    more = (features.flatten(1),) if getattr(rule, "reads_features", False) else ()
    result, rows = rule(activations, probabilities, step, state, *more), activations.shape[0]  # len() is not traced
    is_pair = isinstance(result, tuple | list) and len(result) == 2
    fired, state = result if is_pair else (result, None)
    if not is_pair or not isinstance(fired, Tensor) or fired.shape != (rows,) or fired.dtype != torch.bool:
        got = f"{fired.dtype} {list(fired.shape)}" if isinstance(fired, Tensor) else repr(fired)
        raise ValueError(
            f"a rule returns (fired, state), fired a bool tensor of shape [rows], here [{rows}], not {got}"
        )
    return fired, state


def decide_rows(network: Network, rule: Rule, logits: Tensor, steps: Tensor, fired: Tensor) -> Decision:
    """The Decision of rows that answered with these logits: the label of a row that fired is the largest activation
    among the classes that may fire, that of any other row the largest of all."""
    with torch.no_grad() if logits.requires_grad else nullcontext():
        activations, probabilities = activate(network, logits)
        label = activations.max(1).indices  # many times as fast as argmax where the classes come first in memory
        if (classes := getattr(rule, "classes", None)) is not None:
            label = torch.where(fired, allowed(activations, classes).argmax(1), label)
        return Decision(label, steps, fired, probabilities)
