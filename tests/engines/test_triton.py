"""The engine `triton` gives what `stepwise` gives, whatever the sizes, the rule and the precision."""

import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("triton.language", reason="needs Triton")

from triton_outcomes import (  # isort: skip
    DEVICE, MARKS, TOLERANCES, Example, compare, error, example, hidden_layer, loss, mixed, never, outcome, planted,
    products_in, same_decisions, stepwise, threshold_for,
)  # fmt: skip

import rankcode as rc
from rankcode import cells, device_constants
from rankcode.cells import GRU, LSTM
from rankcode.engines import run, triton
from rankcode.engines.triton import blocks

pytestmark = MARKS


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


STACKS: dict[str, tuple[Any, int]] = {
    # cells of 3 inputs and 5 units, and the number of layers that kernels compute
    "on a convolution": (lambda: (cells.CausalConv(3, 4, 2), LSTM(4, 5)), 1),
    "on a convolution, two layers": (lambda: (cells.CausalConv(3, 3, 2, depthwise=True), GRU(3, 5, 2)), 2),
    "alike": (lambda: (GRU(3, 5), GRU(5, 5)), 2),
    "three alike on one of another size": (lambda: (LSTM(3, 4), LSTM(4, 5, 2), LSTM(5, 5)), 3),
    "of another kind": (lambda: (GRU(3, 5, 2), LSTM(5, 5)), 1),
    "in stacks": (lambda: (cells.Stack(cells.CausalConv(3, 4, 2), GRU(4, 5)), cells.Stack(GRU(5, 5))), 2),
}


@pytest.mark.parametrize("keep", ["answer", "read"])
@pytest.mark.parametrize("name", STACKS)
def test_the_top_of_a_stack(name, keep, monkeypatch):
    make, layers = STACKS[name]
    made = example(lambda *_: cells.Stack(*make()), rows=18)
    rule = threshold_for(made)
    expected = stepwise(made, rule, keep)
    assert expected.decision.fired.any() and not expected.decision.fired.all()
    after = torch.arange(5, device=DEVICE) >= expected.decision.steps[:, None]
    made.inputs[after] = torch.nan
    counts, plan = [], blocks._Plan.__init__
    monkeypatch.setattr(
        blocks._Plan, "__init__", lambda self, *given: (plan(self, *given), counts.append(self.layers))[0]
    )
    got = outcome(made, rule, keep)
    compare(expected, got._replace(precision="tf32") if DEVICE == "cuda" else got)  # cuDNN's, for the cells below
    assert [len(each) for each in counts] == [layers]
    with torch.no_grad():
        same_decisions(expected.decision, run(*made, rule, keep, "triton").decision)


def test_stacks_in_mixed_precision():
    made = example(lambda *_: cells.Stack(cells.CausalConv(3, 4, 2), GRU(4, 5), GRU(5, 5)), rows=18)
    compare(stepwise(made, planted(made)), outcome(made, planted(made), precision="bfloat16"))


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


LOW: dict[str, tuple[Any, dict[str, Any], str, tuple[str, ...]]] = {
    "lstm": (LSTM, {"rows": 18}, "read", ("tf32", "float16", "bfloat16")),
    "gru": (GRU, {"layers": 2, "units": 16, "rows": 10}, "answer", ("tf32", "bfloat16")),
    "one row": (LSTM, {"rows": 1}, "answer", ("tf32",)),
    "more programs than processors": (LSTM, {"rows": 70, "steps": 2}, "read", ("tf32", "bfloat16")),
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
    hooked = LSTM(3, 5), cells.Stack(LSTM(3, 5))
    for each in hooked:
        each.register_forward_hook(lambda *_: None)
    for stack in (
        (cells.LIF(3, 3), LSTM(3, 5)), (LSTM(3, 5), cells.CausalConv(5, 5, 2)), (LSTM(3, 3), hooked[0]),
        (hooked[0], GRU(5, 5)),
    ):  # fmt: skip
        assert refusal(rc.Network(cells.Stack(*stack), 3)) == "Stack has no fused step"
    assert refusal(rc.Network(hooked[1], 3)) == "Stack has no fused step"
    assert refusal(lstm, dtype=torch.float64) == "it runs float32, the network is torch.float64"
    of_rule = "is not a table of thresholds for probabilities"
    assert refusal(lstm, rc.Patience(rc.Threshold(0.9), 2)) == f"Patience {of_rule}"
    assert refusal(rc.Network(LSTM(3, 5), 3, activation="membrane")) == f"Threshold {of_rule}"
    for precision in (torch.float16, torch.bfloat16):
        with torch.autocast(DEVICE, precision):
            assert refusal(lstm) is None
    older = SimpleNamespace(is_cuda=True, device=torch.device("cuda", 0))
    with monkeypatch.context() as patch:
        patch.setattr(triton, "_shared_memory", lambda device: 164 * 1024)
        assert "227 KB of shared memory" in str(triton.can_run(lstm, older, rc.Threshold(0.9)))  # type: ignore[arg-type]
    monkeypatch.setattr(blocks, "INTERPRETED", False)
    assert refusal(lstm, device="cpu") == "the inputs are on cpu, not on a GPU"
    monkeypatch.setattr(blocks, "TRITON_VERSION", (3, 5))
    assert refusal(lstm) == "it needs Triton 3.6 or newer, which comes with PyTorch 2.10"
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
