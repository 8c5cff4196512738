"""What the engine `triton` gives, and what `stepwise` gives, in a form that can be compared."""

from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import rankcode as rc
from rankcode.cells import LSTM
from rankcode.engines import run

# On a machine without a GPU kernels are interpreted, and NumPy warns of what they compute past a row's end.
MARKS = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.usefixtures("every_launch_keeps_its_promises", "bfloat16_is_multiplied_as_such"),
]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

# Relative norm of the error of logits and of each gradient, about twice what is measured. In float32 kernels stream
# their weights; in the others up to 128 units' weights stay on the chip, which is other code.
TOLERANCES = {
    "float32": (2e-6, 4e-6),  # sums of up to a few hundred terms, each rounded at 6e-8, in another order
    "tf32": (1e-3, 4e-3),  # 11 bits: operands are rounded at 5e-4, at every step
    "float16": (1e-3, 4e-3),  # computed like tf32
    "bfloat16": (2.5e-2, 5e-2),  # 8 bits: rounded at 4e-3, at every step; the interpreter truncates at 8e-3
}


class Example(NamedTuple):
    network: rc.Network
    inputs: torch.Tensor
    lengths: torch.Tensor


def example(kind: Any = LSTM, layers=1, units=5, rows=15, steps=5, inputs=3, outputs=3, readout=None) -> Example:
    """A network and data; 15 rows do not quite fill a tile, and 18 are one and a bit."""
    torch.manual_seed(1)
    network = rc.Network(kind(inputs, units, layers), outputs, readout)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            std = 0.3 if parameter.dim() == 1 else (4.0 if "readout" in name else 1.5) * parameter.shape[1] ** -0.5
            parameter.normal_(std=std)
    data = torch.randn(rows, steps, inputs)
    lengths = torch.randint(1, steps + 1, (rows,))
    lengths[:2] = torch.tensor([steps, 1])[:rows]
    return Example(network.to(DEVICE), data.to(DEVICE), lengths.to(DEVICE))


def threshold_for(made: Example, classes: Any = None) -> rc.Threshold:
    """A θ that between a quarter and half of the rows never reach, as far as can be from every probability."""
    with torch.no_grad():
        read = run(*made, rc.Never(), "read", "stepwise")
    largest = read.logits.softmax(1)[:, slice(None) if classes is None else list(classes)].amax(1)
    peaks = sorted(float(largest[read.row == row].max()) for row in range(len(made.inputs)))
    low, high = peaks[len(peaks) // 4], peaks[len(peaks) // 2]
    values = sorted(value for value in largest.tolist() if low <= value <= high)
    gap, theta = max((above - below, (above + below) / 2) for below, above in pairwise(values))
    assert gap > 2e-3  # tf32 moves probabilities by less than half of it
    return rc.Threshold(theta, classes)


@contextmanager
def products_in(precision: str):
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = precision in ("tf32", "bfloat16")
    try:
        mixed = torch.float16 if precision == "float16" else torch.bfloat16
        with torch.autocast(DEVICE, mixed, enabled=precision.endswith("16")):
            yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


class Outcome(NamedTuple):
    decision: rc.Decision
    entries: list[list[int]]  # row and step, in order
    logits: torch.Tensor  # in the order of the entries
    gradients: dict[str, torch.Tensor]
    precision: str


def loss(result, steps: int, scale: Any = 1.0) -> torch.Tensor:
    """Every logit counts differently. `scale`, a number or one for each row, multiplies it."""
    size = len(result.lengths), steps, result.logits.shape[1]
    weights = torch.randn(size, generator=torch.Generator().manual_seed(5)).to(DEVICE)
    weights = weights * torch.as_tensor(scale, device=DEVICE).reshape(-1, 1, 1)
    return (result.logits * weights[result.row, result.step - 1]).sum()


def outcome(
    made, rule, keep="answer", precision="float32", engine="triton", expected_steps=None, scale: Any = 1.0
) -> Outcome:
    network, inputs, lengths = made
    network.zero_grad(set_to_none=True)
    given = inputs.detach().requires_grad_()
    with products_in(precision):
        result = run(network, given, lengths, rule, keep, engine, expected_steps)
    loss(result, inputs.shape[1], scale).backward()
    order = (result.row * (inputs.shape[1] + 1) + result.step).argsort()
    entries = torch.stack([result.row, result.step], 1)[order].tolist()
    gradients = {name: part.grad for name, part in network.named_parameters() if part.grad is not None}
    assert given.grad is not None
    gradients |= {"inputs": given.grad}
    return Outcome(result.decision, entries, result.logits.detach()[order], gradients, precision)


def stepwise(made, rule, keep="answer", scale: Any = 1.0) -> Outcome:
    """What every outcome is compared with."""
    return outcome(made, rule, keep, engine="stepwise", scale=scale)


def error(one: torch.Tensor, other: torch.Tensor) -> float:
    """Relative norm."""
    return float((one.double() - other.double()).norm() / one.double().norm())


def same_decisions(expected: rc.Decision, got: rc.Decision) -> None:
    assert torch.equal(expected.steps, got.steps)
    assert torch.equal(expected.fired, got.fired)
    assert torch.equal(expected.label, got.label)


def compare(expected: Outcome, got: Outcome) -> None:
    of_logits, of_gradients = TOLERANCES[got.precision]
    # The terms of a sum are about 1 and rounded at 6e-8, however small it comes out.
    absolute = 5e-7 if got.precision == "float32" else 0.0
    assert torch.equal(expected.decision.steps, got.decision.steps)
    assert torch.equal(expected.decision.fired, got.decision.fired)
    if got.precision == "float32":  # in others two classes may be equally likely but for rounding
        assert torch.equal(expected.decision.label, got.decision.label)
    assert expected.entries == got.entries
    assert error(expected.logits, got.logits) <= of_logits
    assert error(expected.decision.probabilities, got.decision.probabilities) <= of_logits
    assert expected.gradients.keys() == got.gradients.keys()
    for name, gradient in expected.gradients.items():
        if "weight_hh" in name and expected.decision.steps.max() == 1:
            assert not gradient.any() and not got.gradients[name].any()  # the state before was 0
        else:
            size = gradient.double().norm()
            assert size > absolute, f"nothing to compare in {name}"
            assert (gradient.double() - got.gradients[name].double()).norm() <= of_gradients * size + absolute, name
    steps = torch.arange(got.gradients["inputs"].shape[1], device=DEVICE)
    assert not got.gradients["inputs"][steps >= got.decision.steps[:, None]].any()


def identical(expected: Outcome, got: Outcome) -> None:
    """To the last digit, which `compare` does not ask for; NaN equals nothing."""
    same_decisions(expected.decision, got.decision)
    assert expected.entries == got.entries
    assert torch.equal(expected.logits, got.logits)
    assert expected.gradients.keys() == got.gradients.keys()
    for name, gradient in expected.gradients.items():
        assert torch.equal(gradient, got.gradients[name]), name


def mixed(decision: rc.Decision, lengths: torch.Tensor) -> None:
    """Rows fire at several steps and before their end, others never: else a comparison is empty."""
    assert len(set(decision.steps[decision.fired].tolist())) >= 3
    assert (decision.fired & (decision.steps < lengths)).sum() >= 3
    assert (~decision.fired).any()


def hidden_layer(squash: nn.Module, units=5, outputs=3, inner=7) -> nn.Module:
    return nn.Sequential(nn.Linear(units, inner), squash, nn.Linear(inner, outputs))


never = rc.Never()


def planted(made: Example) -> rc.FireAt:
    return rc.FireAt(torch.arange(len(made.inputs)) % 5 + 1)
