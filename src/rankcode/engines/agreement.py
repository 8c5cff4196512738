"""Checks on this machine that every engine gives what the reference gives: labels, steps, logits and every gradient.

`rankcode bench --check` runs it, on a GPU in all precisions. A row may answer at another step than the reference if an
activation is within rounding of its threshold; such rows are counted and left out of the comparison.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from rankcode import cells
from rankcode.decision import Decision
from rankcode.engines import ENGINES, run
from rankcode.network import Network
from rankcode.rules import FireAt, Never, Rule, StepThresholds, Threshold


class Tolerance(NamedTuple):
    values: float  # largest difference of logits
    gradients: float  # norm of the difference of a gradient ÷ its norm
    reason: str


TOLERANCES = {
    "float64": Tolerance(1e-12, 1e-10, "sums in another order"),
    "float32": Tolerance(5e-5, 5e-5, "sums in another order, and exp and tanh of other libraries such as cuDNN"),
    "tf32": Tolerance(1e-2, 3e-2, "10 bits of mantissa in matrix multiplications, the readout's included"),
    "float16": Tolerance(1e-2, 3e-2, "as tf32: 10 bits of mantissa"),
    "bfloat16": Tolerance(1e-1, 1.5e-1, "7 bits of mantissa in matrix multiplications and saved activations"),
}
PRECISIONS = {
    "cpu": ("float64", "float32"),
    "compiled": ("float32",),
    "triton": ("float32", "tf32", "float16", "bfloat16"),
    "whole": ("float64", "float32", "tf32"),
    "graphs": ("float64", "tf32", "bfloat16"),
}


class Checked(NamedTuple):
    engine: str
    precision: str
    case: str
    values: float
    gradients: float
    differing: int  # rows that answered at another step, with an activation within rounding of the threshold
    wrong: str  # what is wrong; empty if nothing is


class _Case(NamedTuple):
    name: str
    network: Network
    inputs: Tensor
    lengths: Tensor
    rule: Rule
    keep: Any


def check_engines(device: str) -> Iterator[Checked]:
    """Every case with every engine that can run it on the device. An engine that raises an error is wrong."""
    on_gpu = device.startswith("cuda")
    for case in _cases():
        expected = _Result(case, copy.deepcopy(case.network).double(), case.inputs.double(), "reference", "float64")
        for engine in ENGINES:
            if engine == "reference" or (engine == "triton" and not on_gpu):
                continue
            for precision in PRECISIONS.get(engine, ("float64",)):
                if precision not in ("float64", "float32") and not on_gpu:
                    continue
                dtype = torch.float64 if precision == "float64" else torch.float32
                network, inputs = copy.deepcopy(case.network).to(device, dtype), case.inputs.to(device, dtype)
                with products_in(precision, on_gpu):
                    if ENGINES[engine].can_run(network, inputs, case.rule) is not None:
                        continue
                try:
                    yield _checked(expected, _Result(case, network, inputs, engine, precision))
                except Exception as error:
                    wrong = f"raised {type(error).__name__}: {error}"
                    yield Checked(engine, precision, case.name, math.nan, math.nan, 0, wrong)


class _Result:
    """What an engine gives: on the CPU, in float64."""

    def __init__(self, case: _Case, network: Network, inputs: Tensor, engine: str, precision: str):
        self.case, self.network, self.engine, self.precision = case, network, engine, precision
        self.inputs = inputs.clone().requires_grad_()
        lengths = case.lengths.to(inputs.device)
        with products_in(precision, inputs.is_cuda):
            self.run = run(network, self.inputs, lengths, case.rule, case.keep, engine)
        self.decision = Decision(*(part.cpu() for part in self.run.decision))

    def compared(self, rows: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The logits of these rows, and the gradients of a sum over them."""
        row, step = self.run.row.cpu(), self.run.step.cpu()
        order = (row * (int(self.case.lengths.max()) + 1) + step).argsort()
        order = order[rows[row[order]]]
        logits = self.run.logits[order.to(self.inputs.device)].double()
        weight = torch.linspace(-1, 1, logits.shape[1], dtype=torch.float64) / (1 + step[order, None])
        with products_in(self.precision, self.inputs.is_cuda):
            found = torch.autograd.grad(
                (logits * weight.to(logits.device)).sum(), [*self.network.parameters(), self.inputs], retain_graph=True
            )
        return logits.detach().cpu(), [part.double().cpu() for part in found]


def _checked(expected: _Result, got: _Result) -> Checked:
    same = expected.decision.steps == got.decision.steps
    tolerance = TOLERANCES[got.precision]
    wrong = _wrong_steps(got.case.rule, expected.decision, got.decision, same, tolerance.values)
    (logits, gradients), (got_logits, got_gradients) = expected.compared(same), got.compared(same)
    values = (logits - got_logits).abs().max().item() if len(logits) else 0.0
    norms = [(a - b).norm() / a.norm().clamp(min=1e-12) for a, b in zip(gradients, got_gradients, strict=True)]
    worst = torch.stack(norms).amax().item()  # NaN if any is
    if not wrong and not (values <= tolerance.values and worst <= tolerance.gradients):
        wrong = f"differs by more than {tolerance.values:g} in logits or {tolerance.gradients:g} in gradients"
    return Checked(got.engine, got.precision, got.case.name, values, worst, int((~same).sum()), wrong)


def _wrong_steps(rule: Rule, expected: Decision, got: Decision, same: Tensor, tolerance: float) -> str:
    """What is wrong if a row answered at another step although no activation was near its threshold."""
    if bool((same & ((expected.label != got.label) | (expected.fired != got.fired))).any()):
        return "labels differ"
    if not bool((~same).any()):
        return ""
    if not isinstance(rule, Threshold):
        return "steps differ"
    highest = torch.stack([part.probabilities.double().amax(1) for part in (expected, got)])
    near = ((highest - rule.threshold).abs() < max(tolerance, 1e-6)).any(0)
    return "" if bool((same | near).all()) else "steps differ"


@contextmanager
def products_in(precision: str, on_gpu: bool) -> Iterator[None]:
    """Matrix multiplications of float32 tensors in a precision; bfloat16 and float16 by autocast."""
    matmul, cudnn = cast(Any, torch.backends.cuda.matmul), cast(Any, torch.backends.cudnn)
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = precision == "tf32"
    try:
        mixed = torch.float16 if precision == "float16" else torch.bfloat16
        with torch.autocast("cuda" if on_gpu else "cpu", mixed, enabled=precision.endswith("16")):
            yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


def _cases() -> Iterator[_Case]:
    generator = torch.Generator().manual_seed(0)
    planted = FireAt(torch.randint(1, 15, (17,), generator=generator))
    settings: list[tuple[str, int, int, int, Rule, str]] = [
        # cell, layers, hidden size, size of the readout's hidden layer, rule, keep
        ("LSTM", 1, 5, 0, Threshold(0.4), "answer"),
        ("LSTM", 1, 125, 32, Threshold(0.5), "answer"),
        ("LSTM", 2, 16, 0, StepThresholds((0.9,) * 5 + (0.4,)), "read"),
        ("LSTM", 1, 128, 0, planted, "read"),
        ("LSTM", 1, 340, 0, Threshold(0.45), "answer"),
        ("LSTM", 1, 16, 0, Never(), "answer"),
        ("GRU", 1, 128, 32, Threshold(0.45, classes=(0, 2)), "answer"),
        ("GRU", 2, 20, 7, planted, "answer"),
        ("GRU", 1, 130, 0, Threshold(0.5), "read"),
        ("stack", 4, 20, 0, Threshold(0.5), "answer"),
    ]
    for cell, layers, units, hidden, rule, keep in settings:
        torch.manual_seed(1)
        readout = nn.Sequential(nn.Linear(units, hidden), nn.ReLU(), nn.Linear(hidden, 3)) if hidden else None
        kinds = {"LSTM": cells.LSTM, "GRU": cells.GRU, "stack": _stack}
        network = Network(kinds[cell](7, units, layers), 3, readout)
        for parameter in network.parameters():
            nn.init.normal_(parameter, std=min(0.6, 2 * parameter.shape[-1] ** -0.5), generator=generator)
        inputs = torch.randn(17, 14, 7, generator=generator)
        lengths = torch.randint(1, 15, (17,), generator=generator)
        inputs[torch.arange(14) >= lengths[:, None]] = torch.nan
        name = f"{cell} of {layers}×{units}, {type(rule).__name__}, {keep}"
        yield _Case(name, network, inputs, lengths, rule, keep)


def _stack(inputs: int, units: int, layers: int) -> cells.Stack:
    """A convolution, an LSTM, and GRUs of one size."""
    above = [cells.GRU(units, units) for _ in range(layers - 2)]
    return cells.Stack(cells.CausalConv(inputs, 6, 3), cells.LSTM(6, units), *above)
