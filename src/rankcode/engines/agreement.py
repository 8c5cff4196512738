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
from rankcode.engines import ENGINES, Run, run
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
    "bfloat16": Tolerance(1e-1, 1.5e-1, "7 bits of mantissa in matrix multiplications and saved activations"),
}
PRECISIONS = {"triton": ("float32", "tf32", "bfloat16"), "whole": ("float64", "float32", "tf32")}


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
                    yield _checked(case, network, inputs, engine, precision)
                except Exception as error:
                    wrong = f"raised {type(error).__name__}: {error}"
                    yield Checked(engine, precision, case.name, math.nan, math.nan, 0, wrong)


def _checked(case: _Case, network: Network, inputs: Tensor, engine: str, precision: str) -> Checked:
    device = inputs.device
    lengths, results = case.lengths.to(device), []
    exact = copy.deepcopy(network).double(), inputs.double()
    for own, x, name, digits in ((*exact, "reference", "float64"), (network, inputs, engine, precision)):
        x = x.clone().requires_grad_()
        with products_in(digits, x.is_cuda):
            results.append((run(own, x, lengths, case.rule, case.keep, name), own, x))
    expected, got = (result for result, _, _ in results)
    same = expected.decision.steps == got.decision.steps
    tolerance = TOLERANCES[precision]
    wrong = _wrong_steps(case, expected, got, same, tolerance.values)
    logits, gradients = [], []
    for (result, own, x), digits in zip(results, ("float64", precision), strict=True):
        order = (result.row * (int(lengths.max()) + 1) + result.step).argsort()
        order = order[same[result.row[order]]]
        kept = result.logits[order].double()
        weight = torch.linspace(-1, 1, kept.shape[1], dtype=torch.float64, device=device) / (
            1 + result.step[order, None]
        )
        logits.append(kept.detach())
        with products_in(digits, x.is_cuda):
            found = torch.autograd.grad((kept * weight).sum(), [*own.parameters(), x])
        gradients.append([part.double() for part in found])
    values = (logits[0] - logits[1]).abs().max().item() if len(logits[0]) else 0.0
    norms = [(a - b).norm() / a.norm().clamp(min=1e-12) for a, b in zip(*gradients, strict=True)]
    worst = torch.stack(norms).amax().item()  # NaN if any is
    if not wrong and not (values <= tolerance.values and worst <= tolerance.gradients):
        wrong = f"differs by more than {tolerance.values:g} in logits or {tolerance.gradients:g} in gradients"
    return Checked(engine, precision, case.name, values, worst, int((~same).sum()), wrong)


def _wrong_steps(case: _Case, expected: Run, got: Run, same: Tensor, tolerance: float) -> str:
    """What is wrong if a row answered at another step although no activation was near its threshold."""
    label = expected.decision.label == got.decision.label
    if bool((same & ~label).any()) or bool((same & (expected.decision.fired != got.decision.fired)).any()):
        return "labels differ"
    if not bool((~same).any()):
        return ""
    if not isinstance(case.rule, Threshold):
        return "steps differ"
    highest = torch.stack([part.decision.probabilities.double().amax(1) for part in (expected, got)])
    near = ((highest - case.rule.threshold).abs() < max(tolerance, 1e-6)).any(0)
    return "" if bool((same | near).all()) else "steps differ"


@contextmanager
def products_in(precision: str, on_gpu: bool) -> Iterator[None]:
    """Matrix multiplications of float32 tensors in a precision; bfloat16 by autocast."""
    matmul, cudnn = cast(Any, torch.backends.cuda.matmul), cast(Any, torch.backends.cudnn)
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = precision == "tf32"
    try:
        with torch.autocast("cuda" if on_gpu else "cpu", torch.bfloat16, enabled=precision == "bfloat16"):
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
    ]
    for cell, layers, units, hidden, rule, keep in settings:
        torch.manual_seed(1)
        readout = nn.Sequential(nn.Linear(units, hidden), nn.ReLU(), nn.Linear(hidden, 3)) if hidden else None
        network = Network(getattr(cells, cell)(7, units, layers), 3, readout)
        for parameter in network.parameters():
            nn.init.normal_(parameter, std=min(0.6, 2 * parameter.shape[-1] ** -0.5), generator=generator)
        inputs = torch.randn(17, 14, 7, generator=generator)
        lengths = torch.randint(1, 15, (17,), generator=generator)
        inputs[torch.arange(14) >= lengths[:, None]] = torch.nan
        name = f"{cell} of {layers}×{units}, {type(rule).__name__}, {keep}"
        yield _Case(name, network, inputs, lengths, rule, keep)
