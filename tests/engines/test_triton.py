"""The engine `triton` gives what `stepwise` gives, whatever the sizes, the order of rows and what memory held."""

import re
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import rankcode as rc
from rankcode import device_constants
from rankcode.cells import GRU, LSTM
from rankcode.engines import run, triton

language = pytest.importorskip("triton.language", reason="needs Triton")
from triton.runtime.interpreter import InterpreterBuilder  # noqa: E402

from rankcode.engines.triton import blocks, kernels  # noqa: E402

# On a machine without a GPU kernels are interpreted, and NumPy warns of what they compute past a row's end.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

# Relative norm of the error of logits and of each gradient, about twice what is measured. In float32 kernels stream
# their weights; in the others up to 128 units' weights stay on the chip, which is other code.
TOLERANCES = {
    "float32": (2e-6, 4e-6),  # sums of up to a few hundred terms, each rounded at 6e-8, in another order
    "tf32": (1e-3, 4e-3),  # 11 bits: operands are rounded at 5e-4, at every step
    "bfloat16": (2.5e-2, 5e-2),  # 8 bits: rounded at 4e-3, at every step; the interpreter truncates at 8e-3
}


@pytest.fixture(autouse=True)
def every_launch_keeps_its_promises(monkeypatch):
    """Compiled kernels are launched without inspecting their arguments, see `Kernel`: every test checks them."""
    launch = kernels.Kernel.__call__

    def checked(self, grid, *arguments):
        name = self.function.__name__ if hasattr(self.function, "__name__") else self.function.fn.__name__
        for number, part in enumerate(arguments):
            what = f"argument {number} of {name}"
            if isinstance(part, torch.Tensor):
                assert part.data_ptr() % 16 == 0, f"{what} is not aligned"
                assert part.is_contiguous(), f"{what} is not contiguous"
            else:
                assert isinstance(part, int) and abs(part) < 2**31, f"{what} is {part}"
        types = [part.dtype if isinstance(part, torch.Tensor) else int for part in arguments]
        assert self.__dict__.setdefault("types", types) == types, f"{name} was compiled for other types"
        launch(self, grid, *arguments)

    monkeypatch.setattr(kernels.Kernel, "__call__", checked)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.fixture(autouse=True)
def bfloat16_is_multiplied_as_such(monkeypatch):
    """Triton's interpreter stores bfloat16 as integers, and would multiply those."""
    dot = InterpreterBuilder.create_dot

    def widened(self, a, b, *more):
        a, b = (self.cast_impl(x, language.float32) if x.dtype.scalar == language.bfloat16 else x for x in (a, b))
        return dot(self, a, b, *more)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", widened)


@pytest.fixture
def small_blocks(monkeypatch):
    """Batches of the size of these tests in several blocks, and their gradients in several parts."""

    def use(block=3, steps=2, copied=8000):
        monkeypatch.setattr(blocks, "MAX_SINGLE_BLOCK", 0)
        monkeypatch.setattr(blocks, "BLOCK_STEPS", block)
        monkeypatch.setattr(blocks, "MAX_GATHERED_BYTES", copied)
        monkeypatch.setattr(kernels, "RULE_STEPS", steps)
        kernels.forward.cache_clear()

    yield use
    kernels.forward.cache_clear()  # those that were compiled for other RULE_STEPS


@pytest.fixture
def rubbish_in_fresh_memory():
    """What is not yet written to is NaN, or the largest whole number."""
    before = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[assignment]
    assert torch.empty(3, device=DEVICE).isnan().all()
    yield
    torch.use_deterministic_algorithms(before[0])
    torch.utils.deterministic.fill_uninitialized_memory = before[1]  # type: ignore[assignment]


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
    torch.backends.cudnn.allow_tf32 = precision != "float32"
    try:
        with torch.autocast(DEVICE, torch.bfloat16, enabled=precision == "bfloat16"):
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


def some_classes(made: Example) -> rc.Threshold:
    return threshold_for(made, (0, 2) if made.network.num_classes > 2 else (1,))


def by_step(made: Example) -> rc.StepThresholds:
    theta = threshold_for(made).threshold
    return rc.StepThresholds(((theta + 1) / 2, (theta + 1) / 2, theta, 0.97 * theta))


CASES: dict[str, tuple[Any, dict[str, Any], Any, str]] = {
    # name: cell, what differs from `example`, rule (or a function that makes it), what is kept
    "lstm": (LSTM, {"rows": 18}, threshold_for, "answer"),
    "lstm of 2 layers": (LSTM, {"layers": 2, "units": 16}, threshold_for, "read"),
    "lstm, some classes": (LSTM, {}, some_classes, "answer"),
    "lstm, planted": (LSTM, {}, planted, "read"),
    "lstm, never": (LSTM, {"units": 16}, never, "read"),
    "gru": (GRU, {"units": 16}, threshold_for, "read"),
    "gru of 2 layers": (GRU, {"layers": 2, "rows": 18}, some_classes, "read"),
    "gru, by step": (GRU, {"layers": 2, "units": 16, "rows": 18}, by_step, "answer"),
    "gru, planted": (GRU, {}, planted, "answer"),
    "gru, never": (GRU, {}, never, "answer"),
    "gru, large": (GRU, {"layers": 2, "units": 130, "steps": 2, "rows": 7, "outputs": 20}, threshold_for, "read"),
    "relu": (GRU, {"readout": hidden_layer(nn.ReLU(), inner=33)}, threshold_for, "answer"),
    "tanh": (LSTM, {"readout": hidden_layer(nn.Tanh())}, threshold_for, "answer"),
    "sigmoid": (GRU, {"readout": hidden_layer(nn.Sigmoid())}, threshold_for, "answer"),
    "one output": (LSTM, {"outputs": 1}, threshold_for, "read"),
    "one output, tanh": (
        GRU,
        {"outputs": 1, "rows": 18, "readout": hidden_layer(nn.Tanh(), outputs=1)},
        threshold_for,
        "answer",
    ),
    "one output, one class": (GRU, {"outputs": 1}, some_classes, "answer"),
    "one step": (LSTM, {"steps": 1}, threshold_for, "answer"),
    "one row": (GRU, {"rows": 1}, rc.Threshold(1.0), "read"),
    "one row of one step": (LSTM, {"rows": 1, "steps": 1, "layers": 2}, rc.Threshold(1.0), "read"),
    "a tile": (LSTM, {"rows": 16}, threshold_for, "read"),
    "a tile and a row": (GRU, {"rows": 17, "layers": 2}, threshold_for, "answer"),
    "three tiles": (LSTM, {"rows": 48, "steps": 2}, threshold_for, "read"),
    "inputs of width 1": (LSTM, {"inputs": 1, "rows": 7}, threshold_for, "answer"),
    "inputs as wide as 16 units": (GRU, {"inputs": 16, "layers": 2, "rows": 7}, threshold_for, "read"),
    "one unit": (LSTM, {"units": 1, "layers": 2, "rows": 7}, threshold_for, "read"),
    "17 classes": (GRU, {"outputs": 17, "rows": 7}, threshold_for, "answer"),
    "no row fires": (LSTM, {"rows": 7}, rc.Threshold(1.0), "read"),
    "all fire at once": (GRU, {"rows": 7}, rc.Threshold(0.3333), "answer"),
}


@pytest.mark.parametrize("case", CASES)
def test_equals_stepwise(case):
    kind, sizes, rule, keep = CASES[case]
    made = example(kind, **sizes)
    chosen = rule(made) if callable(rule) and not isinstance(rule, rc.Rule) else rule
    expected = stepwise(made, chosen, keep)
    fired, steps = expected.decision.fired, expected.decision.steps
    if chosen is not rule:
        assert fired.any() and not fired.all()
    elif case == "all fire at once":
        assert fired.all() and steps.max() == 1
    else:
        assert not fired.any() and torch.equal(steps, made.lengths)
    if len(made.inputs) >= 15 and made.inputs.shape[1] == 5 and chosen is not rule:
        mixed(expected.decision, made.lengths)
    compare(expected, outcome(made, chosen, keep))


PERMUTATION = torch.randperm(18, generator=torch.Generator().manual_seed(0))
VARIATIONS: dict[str, tuple[Any, int, str, str, tuple[int, ...], Any]] = {
    # name: cell, layers, what is kept, precision, sizes of blocks, and the steps that are expected
    "parts of one row": (LSTM, 2, "read", "tf32", (1, 1, 1), None),
    "parts of some rows": (GRU, 2, "answer", "float32", (3, 2, 8000), None),
    "parts of more rows": (GRU, 2, "read", "tf32", (3, 2, 16000), None),
    "a block that is not full": (LSTM, 1, "answer", "float32", (4, 2, 2**27), None),
    "one block": (LSTM, 1, "answer", "bfloat16", (50, 4, 2**27), None),
    "expected: a permutation": (LSTM, 1, "read", "tf32", (50,), PERMUTATION),
    "expected: the same for all": (GRU, 1, "answer", "tf32", (2,), torch.full((18,), 4)),
    "expected: the opposite": (LSTM, 1, "answer", "float32", (2,), lambda steps: -steps),
    "expected: right": (GRU, 1, "read", "float32", (2,), lambda steps: steps),
    "expected: not whole, not possible": (GRU, 1, "answer", "bfloat16", (50,), torch.linspace(-1e9, 1e9, 18)),
}


@pytest.mark.parametrize("variation", VARIATIONS)
def test_blocks_and_expected_steps_change_nothing(variation, small_blocks):
    kind, layers, keep, precision, sizes, guess = VARIATIONS[variation]
    made = example(kind, layers, rows=15 if guess is None else 18)
    rule = threshold_for(made)
    expected = stepwise(made, rule, keep)
    mixed(expected.decision, made.lengths)
    small_blocks(*sizes)
    guess = guess(expected.decision.steps) if callable(guess) else guess
    compare(expected, outcome(made, rule, keep, precision, expected_steps=guess))


def test_more_steps_than_a_block_as_it_is(monkeypatch):
    monkeypatch.setattr(blocks, "MAX_SINGLE_BLOCK", 0)
    made = example(GRU, steps=blocks.BLOCK_STEPS + 2, rows=4)
    made.lengths[:3] = blocks.BLOCK_STEPS + 2
    rule = rc.FireAt(torch.tensor([blocks.BLOCK_STEPS, blocks.BLOCK_STEPS + 1, blocks.BLOCK_STEPS + 3, 2]))
    compare(stepwise(made, rule, "read"), outcome(made, rule, "read", "tf32"))


def test_rows_that_should_end_together_stand_together(small_blocks):
    small_blocks()
    lengths = example(rows=18).lengths
    guess = PERMUTATION.to(DEVICE)
    tiles, number = blocks._tiles(lengths, 5, never, guess)
    assert number == 2 and len(tiles.order) == 32
    assert guess[tiles.order[:18]].tolist() == list(range(17, -1, -1))
    assert tiles.ends.tolist() == [*lengths[tiles.order[:18]].tolist(), *[0] * 14]


@pytest.mark.parametrize(
    ("kind", "layers", "keep", "precision", "rubbish", "several"),
    [
        (LSTM, 1, "answer", "float32", float("nan"), False),
        (LSTM, 1, "read", "tf32", float("inf"), False),
        (GRU, 1, "read", "float32", float("inf"), True),
        (GRU, 2, "answer", "tf32", float("nan"), True),
    ],
)
def test_what_follows_the_answer_changes_nothing(kind, layers, keep, precision, rubbish, several, small_blocks):
    if several:
        small_blocks(2)
    made = example(kind, layers)
    rule = threshold_for(made) if keep == "answer" else planted(made)
    clean = outcome(made, rule, keep, precision)
    past = torch.arange(5, device=DEVICE) >= clean.decision.steps[:, None]
    assert (past & (torch.arange(5, device=DEVICE) < made.lengths[:, None])).any()  # not only past the length
    dirty = made._replace(inputs=made.inputs.masked_fill(past[:, :, None], rubbish))
    identical(clean, outcome(dirty, rule, keep, precision))


@pytest.mark.parametrize(
    ("kind", "layers", "keep", "precision", "several"),
    [
        (LSTM, 1, "read", "tf32", False),
        (GRU, 2, "answer", "tf32", True),
        (LSTM, 1, "answer", "float32", True),
        (GRU, 1, "read", "bfloat16", True),
    ],
)
def test_what_memory_held_changes_nothing(kind, layers, keep, precision, several, small_blocks, request):
    made = example(kind, layers)
    rule = threshold_for(made)
    expected = stepwise(made, rule, keep)
    if several:
        small_blocks(2)
    request.getfixturevalue("rubbish_in_fresh_memory")
    compare(expected, outcome(made, rule, keep, precision, expected_steps=-expected.decision.steps))
    with torch.no_grad(), products_in(precision):
        got = run(*made, rule, keep, "triton", expected.decision.steps).decision
    assert torch.equal(expected.decision.steps, got.steps) and torch.equal(expected.decision.fired, got.fired)
    assert error(expected.decision.probabilities, got.probabilities) <= TOLERANCES[precision][0]


def kept_by(monkeypatch) -> list[list[Any]]:
    """Filled with what the layers of each run keep."""
    kept, forward = [], blocks._forward

    def watched(*given, **named):
        found = forward(*given, **named)
        kept.append(found[3])
        return found

    monkeypatch.setattr(blocks, "_forward", watched)
    return kept


@pytest.mark.parametrize("precision", ["float32", "tf32"])
@pytest.mark.parametrize("rule", [rc.FireAt([1, 3, 2, 3]), rc.Threshold(0.34)], ids=["planted", "threshold"])
def test_a_tile_stops_when_its_rows_have_answered(rule, precision, small_blocks, monkeypatch):
    small_blocks(50, 1)
    made, kept = example(rows=4), kept_by(monkeypatch)
    made.lengths[:] = 5
    monkeypatch.setattr(torch, "empty_like", lambda like, **more: torch.full_like(like, 7, **more))
    with products_in(precision):
        last = int(run(*made, rule, "answer", "triton").decision.steps.max())
    assert last == (1 if isinstance(rule, rc.Threshold) else 3)
    hidden = kept[0][0].hidden
    assert (hidden[:, : last + 1] != 7).all() and (hidden[:, last + 1 :] == 7).all()


@pytest.mark.parametrize(
    ("kind", "keep", "precision"),
    [(LSTM, "answer", "tf32"), (LSTM, "read", "float32"), (GRU, "answer", "float32"), (GRU, "read", "tf32")],
)
def test_without_gradients_the_same(kind, keep, precision, small_blocks, monkeypatch):
    made = example(kind, layers=2, steps=7)
    rule = threshold_for(made)
    expected = stepwise(made, rule, keep)  # which the run with gradients equals
    mixed(expected.decision, made.lengths)
    small_blocks()
    kept = kept_by(monkeypatch)
    with torch.no_grad(), products_in(precision):
        got = run(*made, rule, keep, "triton")
    assert torch.equal(expected.decision.steps, got.decision.steps)
    assert torch.equal(expected.decision.fired, got.decision.fired)
    order = (got.row * 8 + got.step).argsort()
    assert torch.stack([got.row, got.step], 1)[order].tolist() == expected.entries
    assert error(expected.logits, got.logits[order]) <= TOLERANCES[precision][0]
    slots = {part.shape[1] for layer in kept[0] for part in layer}
    assert slots == ({3, 3 + 1} if keep == "answer" else {7, 7 + 1})  # answers need the memory of one block


@pytest.mark.parametrize("units", [5, 130])
def test_a_second_backward_pass_gives_the_same(units):
    made = example(units=units, rows=3)
    result = run(*made, never, "answer", "triton")
    gradients = []
    for again in (True, False):
        made.network.zero_grad(set_to_none=True)
        result.logits.sum().backward(retain_graph=again)
        gradients.append([part.grad for part in made.network.parameters()])
    for first, second in zip(*gradients, strict=True):
        assert torch.equal(first, second)


def test_a_backward_pass_under_autocast():
    made = example(GRU, rows=7, steps=3)
    expected = outcome(made, never).gradients
    made.network.zero_grad(set_to_none=True)
    result = run(*made, never, "answer", "triton")
    with torch.autocast(DEVICE, torch.bfloat16):  # which PyTorch's own part of it then is in
        loss(result, 3).backward()
    for name, parameter in made.network.named_parameters():
        assert error(expected[name], parameter.grad) <= TOLERANCES["bfloat16"][1], name


@pytest.mark.parametrize("frozen", [r"cell\.weight_hh_l0|cell\.bias_ih_l1|readout\.weight", r"cell\..*"])
def test_frozen_weights_get_no_gradient(frozen):
    made = example(layers=2, rows=7)
    expected = stepwise(made, planted(made)).gradients
    still = {name for name, _ in made.network.named_parameters() if re.fullmatch(frozen, name)}
    for name in still:
        made.network.get_parameter(name).requires_grad_(False)
    made.network.zero_grad(set_to_none=True)
    loss(run(*made, planted(made), "answer", "triton"), 5).backward()
    got = {name: part.grad for name, part in made.network.named_parameters() if part.grad is not None}
    assert expected.keys() - got.keys() == still | {"inputs"} and got
    for name, gradient in got.items():
        assert error(expected[name], gradient) <= TOLERANCES["float32"][1], name


def test_two_runs_before_their_backward_passes_keep_apart():
    network, inputs, lengths = example(rows=7)
    rule = threshold_for(example(rows=7))
    given = [part.clone().requires_grad_() for part in (inputs, -inputs)]
    results = [run(network, part, lengths, rule, "answer", "triton") for part in given]
    for result in results:
        loss(result, 5).backward()
    for part in given:
        expected = stepwise(Example(network, part, lengths), rule).gradients["inputs"]
        assert error(expected, part.grad) <= TOLERANCES["float32"][1]


def shifted(part: torch.Tensor) -> torch.Tensor:
    """The same values, at an address that is no multiple of 16 bytes."""
    room = torch.empty(part.numel() + 1, dtype=part.dtype, device=part.device)
    view = room[1:].view(part.shape)
    assert view.data_ptr() % 16
    return view.copy_(part)


@pytest.mark.parametrize("how", ["a part of each step", "steps first", "every second row", "an odd address"])
def test_where_tensors_lie_changes_nothing(how):
    network, inputs, lengths = made = example(GRU, rows=7, readout=hidden_layer(nn.Tanh()))
    rule: Any = threshold_for(made)
    expected = stepwise(made, rule)
    if how == "a part of each step":
        inputs = torch.cat([inputs * 0 + 9, inputs, inputs * 0 + 9], 2)[:, :, 3:6]
    elif how == "steps first":
        inputs = inputs.transpose(0, 1).contiguous().transpose(0, 1)
    elif how == "every second row":
        inputs, lengths = inputs.repeat_interleave(2, 0)[::2], lengths.repeat_interleave(2)[::2]
    else:
        inputs, lengths = shifted(inputs), shifted(lengths)
        for parameter in network.parameters():
            parameter.data = shifted(parameter.data)
    moved = Example(network, inputs, lengths)
    compare(expected, outcome(moved, rule))
    if how == "an odd address":
        rule = rc.FireAt(shifted(planted(made).steps))
        compare(stepwise(moved, rule), outcome(moved, rule))


LOW: dict[str, tuple[Any, dict[str, Any], str, tuple[str, ...]]] = {
    "lstm": (LSTM, {"rows": 18}, "read", ("tf32", "bfloat16")),
    "gru": (GRU, {"layers": 2, "units": 16, "rows": 10}, "answer", ("tf32", "bfloat16")),
    "inputs as wide as 16 units": (LSTM, {"layers": 2, "inputs": 16, "rows": 10}, "answer", ("bfloat16",)),
    "lstm, large": (LSTM, {"units": 130, "steps": 2, "rows": 10}, "read", ("tf32",)),
    "gru, large": (GRU, {"units": 130, "steps": 2, "rows": 10}, "answer", ("bfloat16",)),
}


@pytest.mark.parametrize(("case", "precision"), [(case, each) for case in LOW for each in LOW[case][3]])
def test_lower_precisions_are_near(case, precision):
    kind, sizes, keep, _ = LOW[case]
    made = example(kind, **sizes)
    rule = planted(made)
    expected, got = stepwise(made, rule, keep), outcome(made, rule, keep, precision)
    compare(expected, got)
    assert error(expected.logits, got.logits) > 1e-5  # it is another precision


@pytest.mark.parametrize("precision", ["tf32", "bfloat16"])
@pytest.mark.parametrize("kind", [LSTM, GRU])
def test_rows_fire_where_the_logits_of_their_precision_say(kind, precision):
    made = example(kind, readout=hidden_layer(nn.Tanh()))
    for theta in (threshold_for(made).threshold, 0.6):
        with torch.no_grad(), products_in(precision):
            result = run(*made, rc.Threshold(theta), "read", "triton")
        near = TOLERANCES[precision][0]  # the readout is rounded in another way on the way out
        highest, last = result.logits.softmax(1).amax(1), result.step == result.decision.steps[result.row]
        fires = last & result.decision.fired[result.row]
        assert fires.any() and not fires.all()
        assert (highest[fires] >= theta - near).all()
        assert (highest[~fires] < theta + near).all()


@pytest.mark.parametrize("kind", [LSTM, GRU])
@pytest.mark.parametrize("scale", [1e-12, 1e12, "each row its own"])
def test_the_size_of_gradients_does_not_matter_in_tf32(scale, kind):
    """They pass through matrix multiplications in float16, whose range ends at 65504 and 6e-8."""
    made = example(kind, rows=10)
    made.lengths[:] = 5
    if scale == "each row its own":
        scale = 10.0 ** torch.linspace(-12, 12, 10)[torch.randperm(10, generator=torch.Generator().manual_seed(0))]
    expected, got = stepwise(made, never, scale=scale), outcome(made, never, "answer", "tf32", scale=scale)
    compare(expected, got)
    for one, other in zip(expected.gradients["inputs"], got.gradients["inputs"], strict=True):
        assert error(one, other) <= 2 * TOLERANCES["tf32"][1]  # of one row: fewer errors that cancel


class Falling:
    """A user's rule that is a table of thresholds."""

    classes = None

    def __init__(self, thresholds, laid_out=torch.Tensor.contiguous):
        self.thresholds, self.laid_out = torch.tensor(thresholds), laid_out

    def initial_state(self, rows):
        return None

    def __call__(self, activations, probabilities, step, state):
        return activations.amax(1) >= float(self.thresholds[step - 1]), state

    def table(self, steps, num_classes):
        return self.laid_out(self.thresholds[steps.start - 1 : steps.stop - 1, None].expand(-1, num_classes))


LAYOUTS = {
    "contiguous": torch.Tensor.contiguous,
    "expanded": lambda table: table,
    "classes first": lambda table: table.double().t().contiguous().t(),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_users_table(layout):
    made = example(GRU)
    early, _, middle, late = by_step(made).thresholds
    rule = Falling([early, early, middle, late, late], LAYOUTS[layout])
    expected = stepwise(made, rule)
    mixed(expected.decision, made.lengths)
    compare(expected, outcome(made, rule))


def test_a_rule_that_changes_between_runs():
    made, rule = example(rows=7), Falling([0.999] * 5)
    found = []
    for theta in (0.999, 0.4):
        rule.thresholds = torch.full((5,), theta)
        found.append([run(*made, rule, "answer", engine).decision.steps for engine in ("stepwise", "triton")])
    assert not torch.equal(found[0][0], found[1][0])
    for expected, got in found:
        assert torch.equal(expected, got)


class Tenfold(nn.Linear):
    def forward(self, input):
        return 10 * super().forward(input)


def test_a_subclass_of_a_linear_layer_is_not_taken_for_one():
    made = example(rows=7, readout=Tenfold(5, 3))
    reason = triton.can_run(made.network, made.inputs, rc.Threshold(0.95))
    assert reason == "with this rule it supports linear readouts and those with one hidden layer"


def test_a_linear_layer_that_has_no_size_yet():
    network, inputs, lengths = example(rows=7, steps=2)
    network.readout = nn.LazyLinear(3, device=DEVICE)
    rule = rc.Threshold(0.5)
    assert triton.can_run(network, inputs, rule) is not None
    expected = run(network, inputs, lengths, rule, "answer", "stepwise").decision  # which gives it its size
    assert triton.can_run(network, inputs, rule) is None
    same_decisions(expected, run(network, inputs, lengths, rule, "answer", "triton").decision)


def test_weights_that_layers_share():
    made = example(layers=2, inputs=5, rows=7)
    made.network.cell.weight_ih_l1 = made.network.cell.weight_ih_l0
    compare(stepwise(made, never), outcome(made, never))


@pytest.fixture
def fresh_caches():
    """What a test does to them stays in it."""
    device_constants._cache.clear()
    yield
    device_constants._cache.clear()


def test_training_after_inference(fresh_caches):
    made = example(rows=7, steps=2)
    with torch.inference_mode():
        run(*made, never, "answer", "triton")
    result = run(*made, never, "answer", "triton")
    for_each_row = torch.ones(7, 3, device=DEVICE, requires_grad=True)
    (result.logits * for_each_row[result.row]).sum().backward()
    assert torch.equal(for_each_row.grad, result.logits)


def test_results_are_the_callers_own(fresh_caches):
    made = example(rows=16, steps=3)
    rule = threshold_for(made)
    expected = run(*made, rule, "answer", "stepwise").decision
    run(*made, rule, "answer", "triton").row.zero_()
    got = run(*made, rule, "answer", "triton")
    assert got.row.tolist() == list(range(16))
    same_decisions(expected, got.decision)


def test_precisions_set_by_their_new_names():
    made = example(rows=7, steps=3)
    expected = stepwise(made, never)
    matmul, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn.conv
    before = matmul.fp32_precision, convolutions.fp32_precision
    try:
        matmul.fp32_precision = convolutions.fp32_precision = "tf32"
        result = run(*made, never, "answer", "triton")
        loss(result, 3).backward()
        assert matmul.fp32_precision == "tf32"  # afterwards too
    finally:
        matmul.fp32_precision, convolutions.fp32_precision = before
    assert error(expected.logits, result.logits.detach()) <= TOLERANCES["tf32"][0]


def refusal(network, rule=rc.Threshold(0.9), dtype=torch.float32, device=DEVICE) -> str | None:  # noqa: B008
    return triton.can_run(network, torch.randn(2, 3, 3, dtype=dtype, device=device), rule)


def test_what_it_cannot_run_it_says(monkeypatch):
    lstm = example().network
    assert refusal(lstm) is None
    assert refusal(rc.Network(rc.cells.LIF(3, 3, emits="membranes"), 3)) == "LIF has no fused step"
    assert refusal(lstm, dtype=torch.float64) == "it runs float32, the network is torch.float64"
    of_rule = "is not a table of thresholds for probabilities"
    assert refusal(lstm, rc.Patience(rc.Threshold(0.9), 2)) == f"Patience {of_rule}"
    assert refusal(rc.Network(LSTM(3, 5), 3, activation="membrane")) == f"Threshold {of_rule}"
    with torch.autocast(DEVICE, torch.float16):
        assert refusal(lstm) == "bfloat16 is the only mixed precision it supports"
    with torch.autocast(DEVICE, torch.bfloat16):
        assert refusal(lstm) is None
    monkeypatch.setattr(blocks, "INTERPRETED", False)
    assert refusal(lstm, device="cpu") == "the inputs are on cpu, not on a GPU"
    monkeypatch.setattr(triton, "_blocks", lambda: None)
    assert refusal(lstm) == "Triton is not installed"


def test_where_it_is_slower_it_says(monkeypatch):
    inputs = torch.randn(2, 3, 3, device=DEVICE)
    few, many = (
        rc.Network(LSTM(3, units), 3) for units in (triton.MAX_FASTER_HIDDEN_SIZE, triton.MAX_FASTER_HIDDEN_SIZE + 1)
    )
    assert triton.slower(few, inputs) == "matrix multiplications in full float32 are faster elsewhere"
    with torch.autocast(DEVICE, torch.bfloat16):
        assert triton.slower(few, inputs) is None
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    assert triton.slower(few, inputs) is None
    assert (
        triton.slower(many, inputs)
        == f"with more than {triton.MAX_FASTER_HIDDEN_SIZE} hidden units the weights are too large for it"
    )


READOUTS = {
    "dropout": nn.Sequential(nn.Linear(5, 3), nn.Dropout(0.0)),
    "normalised": nn.Sequential(nn.LayerNorm(5), nn.Linear(5, 3)),
    "two hidden layers": nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3)),
    "another activation": hidden_layer(nn.GELU()),
    "no bias": nn.Linear(5, 3, bias=False),
}


@pytest.mark.parametrize("readout", READOUTS)
def test_readouts_it_does_not_know_run_where_no_rule_looks(readout):
    made = example(GRU, rows=4, steps=3, readout=READOUTS[readout])
    with pytest.raises(
        ValueError, match="the engine triton cannot run this network: with this rule it supports linear"
    ):
        run(*made, rc.Threshold(0.9), "answer", "triton")
    for rule, keep in ((rc.FireAt(2), "read"), (never, "answer")):
        compare(stepwise(made, rule, keep), outcome(made, rule, keep))


@pytest.mark.parametrize(("kind", "layers", "units", "precision"), [(LSTM, 1, 5, "bfloat16"), (GRU, 2, 7, "float32")])
@pytest.mark.parametrize("objective", ["every step", "until the spike", "until the spike, with a penalty"])
def test_while_a_graph_is_captured_every_step_has_an_entry(
    objective, kind, layers, units, precision, monkeypatch, rubbish_in_fresh_memory
):
    """The number of steps read cannot be read on the host; entries of steps that were not read do not count."""
    made = example(kind, layers, units, rows=18)
    theta = threshold_for(made).threshold
    make = {"every step": rc.EveryStep(), "until the spike": rc.UntilSpike(theta)}
    chosen = make.get(objective, rc.UntilSpike(theta, beta=0.2))
    labels = torch.randint(3, (18,), device=DEVICE)
    results = []
    for captured in (False, True):
        monkeypatch.setattr(blocks, "capturing", lambda device, captured=captured: captured)
        made.network.zero_grad(set_to_none=True)
        with products_in(precision):
            result = run(*made, chosen.rule, "read", "triton")
        assert (result.read is not None) == captured
        loss = chosen.loss(result, labels)
        loss.backward()
        results.append((loss.detach(), result, [part.grad for part in made.network.parameters()]))
    (expected, seen, gradients), (got, unseen, others) = results
    assert len(seen.logits) < len(unseen.logits) == 18 * 5
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)
    for one, other in zip(seen.decision, unseen.decision, strict=True):
        torch.testing.assert_close(other, one)
    torch.testing.assert_close(unseen.at_answer(), seen.at_answer())
    for one, other in zip(gradients, others, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-6)
