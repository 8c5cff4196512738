"""The engine `compiled` gives what the reference gives, on every kind of processor, in threads and pieces of memory."""

import math
import sys

import numpy as np
import pytest
import torch
from small_networks import Later
from torch import nn
from torch.nn.utils import parametrizations

import rankcode as rc
from rankcode.compiled import layer, library
from rankcode.compiled.threads import _Oversubscription
from rankcode.engines import choose, compiled, run

pytestmark = pytest.mark.skipif(library.functions() is None, reason="needs a C compiler when rankcode is installed")
LANES = [lanes for lanes in (4, 8, 16) if library.functions() is None or lanes <= library.functions().most_lanes()]
READOUTS = {
    "linear": lambda units: nn.Linear(units, 3),
    "one output": lambda units: nn.Linear(units, 1),
    "many classes": lambda units: nn.Linear(units, 35),
    "relu": lambda units: nn.Sequential(nn.Linear(units, 7), nn.ReLU(), nn.Linear(7, 3)),
    "tanh": lambda units: nn.Sequential(nn.Linear(units, 20), nn.Tanh(), nn.Linear(20, 3)),
    "sigmoid": lambda units: nn.Sequential(nn.Linear(units, 65), nn.Sigmoid(), nn.Linear(65, 3)),
}
RULES = {
    "threshold": None,  # see `threshold_for`
    "some classes": rc.Threshold(0.5, classes=(1,)),
    "step thresholds": rc.StepThresholds([0.99, 0.95, 0.9, 0.8, 0.6, 0.5]),
    "planted": rc.FireAt(4),
    "never": rc.Never(),
}


@pytest.fixture
def lanes_of(monkeypatch):
    """Call it to compute as a processor with vectors of so many numbers does."""

    class Limited:
        def __init__(self, lanes):
            self.most_lanes = lambda: lanes

        def __getattr__(self, name):
            return getattr(library.functions(), name)

    return lambda lanes: monkeypatch.setattr(layer, "functions", lambda: Limited(lanes))


def problem(cell, units=13, inputs=3, rows=40, steps=9, readout="linear", seed=0, layers=1):
    """A network whose rows answer at different steps, and rows of different lengths with NaN past their ends."""
    torch.manual_seed(seed)
    outputs = {"one output": 1, "many classes": 35}.get(readout, 3)
    network = rc.Network(getattr(rc.cells, cell)(inputs, units, layers), outputs, READOUTS[readout](units))
    with torch.no_grad():
        for part in network.parameters():
            part.normal_(std=1.5 / part.shape[-1] ** 0.5)
        list(network.parameters())[-2].mul_(4)
    x, lengths = torch.randn(rows, steps, inputs), torch.randint(1, steps + 1, (rows,))
    x[torch.arange(steps) >= lengths[:, None]] = math.nan
    return network, x, lengths


def threshold_for(network, x, lengths):
    """A threshold that a quarter of the steps reach."""
    largest = rc.trace(network, x.nan_to_num()).activations.amax(2)
    read = largest[torch.arange(x.shape[1]) < lengths[:, None]].sort().values
    return rc.Threshold(float(read[len(read) * 3 // 4 - 1 : len(read) * 3 // 4 + 1].mean()))


def outcome(network, x, lengths, rule, keep, engine):
    """The decision, every entry in order, and the gradients of the inputs and parameters, in float64."""
    x = x.clone().requires_grad_()
    result = run(network, x, lengths, rule, keep, engine)
    order = (result.row * 10_000 + result.step).argsort()
    logits = result.logits[order]
    weight = torch.linspace(-1, 1, logits.shape[1]) / (1 + result.step[order, None]).to(logits.dtype)
    gradients = torch.autograd.grad((logits * weight).sum(), [x, *network.parameters()])
    return (
        result.decision,
        result.row[order],
        result.step[order],
        logits.detach().double(),
        [g.double() for g in gradients],
    )


def assert_same(one, other, tolerance=2e-5):
    for name in ("label", "steps", "fired"):
        assert getattr(one[0], name).equal(getattr(other[0], name)), name
    assert one[1].equal(other[1]) and one[2].equal(other[2])
    torch.testing.assert_close(other[0].probabilities.double(), one[0].probabilities.double(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(other[3], one[3], rtol=1e-4, atol=1e-4)
    for a, b in zip(one[4], other[4], strict=True):
        assert (a - b).norm() <= tolerance * a.norm() + 1e-6


def assert_gives_what_the_reference_gives(network, x, lengths, rule, keep="answer"):
    got = outcome(network, x, lengths, rule, keep, "compiled")
    network.double()
    expected = outcome(network, x.double(), lengths, rule, keep, "reference")
    network.float()
    assert_same(expected, got)
    return expected[0]


@pytest.mark.parametrize("keep", ["answer", "read"])
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
@pytest.mark.parametrize("lanes", LANES)
def test_every_rule(lanes, cell, layers, rule, keep, lanes_of):
    lanes_of(lanes)
    given = problem(cell, layers=layers)
    decision = assert_gives_what_the_reference_gives(*given, rule or threshold_for(*given), keep)
    assert len(decision.steps.unique()) > 3


@pytest.mark.parametrize("readout", READOUTS)
@pytest.mark.parametrize("lanes", LANES)
def test_every_readout(lanes, readout, lanes_of):
    lanes_of(lanes)
    network, x, lengths = problem("GRU", readout=readout)
    rule = threshold_for(network, x, lengths)
    decision = assert_gives_what_the_reference_gives(network, x, lengths, rule)
    assert len(decision.steps.unique()) > 3 and decision.fired.any() and not decision.fired.all()
    with torch.no_grad():  # the logits then come from the compiled steps too
        got, expected = (run(network, x, lengths, rule, "answer", engine) for engine in ("compiled", "cpu"))
    assert got.decision.steps.equal(expected.decision.steps) and got.decision.label.equal(expected.decision.label)
    torch.testing.assert_close(got.logits, expected.logits, rtol=1e-4, atol=1e-4)


SHAPES = [  # units, inputs, rows, steps
    (1, 1, 1, 1),
    (1, 2, 3, 5),
    (2, 1, 130, 7),
    (8, 17, 50, 4),
    (9, 1, 1, 30),
    (16, 5, 49, 1),
    (33, 3, 6, 13),
    (64, 40, 53, 12),
    (130, 3, 7, 8),
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
@pytest.mark.parametrize("lanes", LANES)
def test_every_shape(lanes, cell, layers, shape, lanes_of, rubbish_in_fresh_memory):
    lanes_of(lanes)
    network, x, lengths = problem(cell, *shape, layers=layers)
    for keep in ("answer", "read"):
        assert_gives_what_the_reference_gives(network, x, lengths, rc.Threshold(0.55), keep)


@pytest.mark.parametrize("keep", ["answer", "read"])
@pytest.mark.parametrize(("cell", "layers"), [("LSTM", 1), ("GRU", 1), ("LSTM", 2)])
def test_memory_in_pieces_and_used_before(cell, layers, keep, monkeypatch):
    network, x, lengths = problem(cell, rows=120, layers=layers)
    expected = outcome(network, x, lengths, rc.Threshold(0.6), keep, "compiled")
    monkeypatch.setattr(layer, "FEW_VALUES", 0)
    monkeypatch.setattr(layer, "MAX_CHUNK_VALUES", 4096)
    monkeypatch.setattr(layer, "MAX_CHUNKS_AT_ONCE", 2)
    monkeypatch.setattr(layer, "_FREE", layer._Free())
    for _ in range(3):
        assert_same(expected, outcome(network, x, lengths, rc.Threshold(0.6), keep, "compiled"))
        chunks = max(layer._FREE.by_size.values(), key=len)
        assert len(chunks) > 3
        for chunk in chunks:
            chunk[:] = np.nan
        del chunks[3:]
    monkeypatch.setattr(layer, "_FREE", layer._Free())
    monkeypatch.setattr(layer, "MAX_FREE_VALUES", 10_000)
    assert_same(expected, outcome(network, x, lengths, rc.Threshold(0.6), keep, "compiled"))
    assert 6_000 < layer._FREE.values <= 10_000
    assert layer._FREE.values == sum(size * len(each) for size, each in layer._FREE.by_size.items())


@pytest.mark.parametrize("keep", ["answer", "read"])
@pytest.mark.parametrize("threads", [2, 3, 7])
@pytest.mark.parametrize(("cell", "layers"), [("LSTM", 1), ("GRU", 2)])
def test_rows_are_shared_between_threads(cell, layers, threads, keep, set_threads, monkeypatch):
    network, x, lengths = problem(cell, units=20, rows=50, layers=layers)
    expected = outcome(network, x, lengths, rc.Threshold(0.6), keep, "compiled")
    monkeypatch.setattr(layer, "MIN_PARALLEL_SIZE", 0)
    jobs, call = [], layer.in_threads
    monkeypatch.setattr(layer, "in_threads", lambda _, team, size: jobs.append(len(team)) or call(_, team, size))
    set_threads(threads)
    assert_same(expected, outcome(network, x, lengths, rc.Threshold(0.6), keep, "compiled"), tolerance=1e-6)
    assert jobs == [threads if layer.openmp() else 1] * 2


@pytest.mark.parametrize("keep", ["answer", "read"])
@pytest.mark.parametrize("threads", [2, 8])
@pytest.mark.parametrize(("cell", "layers", "rows"), [("LSTM", 1, 1), ("GRU", 1, 4), ("LSTM", 1, 6), ("LSTM", 2, 3)])
@pytest.mark.skipif(not layer.openmp(), reason="needs OpenMP")
def test_the_units_of_few_rows_are_shared_between_threads(cell, layers, rows, threads, keep, set_threads, monkeypatch):
    """However many cores there are."""
    network, x, lengths = problem(cell, units=150, rows=rows, steps=40, layers=layers)
    rule = threshold_for(network, x, lengths)
    expected = outcome(network, x, lengths, rule, keep, "compiled")
    monkeypatch.setattr(layer, "MIN_PARALLEL_SIZE", 0)
    jobs, call = [], layer.in_threads
    monkeypatch.setattr(layer, "in_threads", lambda _, team, size: jobs.append(len(team)) or call(_, team, size))
    set_threads(threads)
    for _ in range(20):
        got = outcome(network, x, lengths, rule, keep, "compiled")
        assert_same(expected, got, tolerance=1e-6)
        assert keep == "read" or got[3].equal(expected[3])  # bit for bit
    assert set(jobs) == {min(threads, -(-150 // library.functions().most_lanes()) // 2)}


def test_one_thread_alone_gives_what_several_give(set_threads, monkeypatch):
    network, x, lengths = problem("LSTM", units=20, rows=50)
    monkeypatch.setattr(layer, "MIN_PARALLEL_SIZE", 0)
    set_threads(3)
    expected = outcome(network, x, lengths, rc.Threshold(0.6), "answer", "compiled")
    monkeypatch.setattr(_Oversubscription, "is_expected", lambda *_: True)
    got = outcome(network, x, lengths, rc.Threshold(0.6), "answer", "compiled")
    assert all(one.equal(other) for one, other in zip((*expected[0], *expected[4]), (*got[0], *got[4]), strict=True))


@pytest.mark.parametrize("junk", [1e30, math.nan, -math.inf])
def test_inputs_past_the_answer_change_nothing(junk):
    network, x, lengths = problem("GRU")
    expected = outcome(network, x, lengths, rc.Threshold(0.6), "read", "compiled")
    past = torch.arange(x.shape[1]) >= expected[0].steps[:, None]
    x[past] = junk
    got = outcome(network, x, lengths, rc.Threshold(0.6), "read", "compiled")
    for one, other in zip((*expected[0], *expected[1:4], *expected[4]), (*got[0], *got[1:4], *got[4]), strict=True):
        assert one.equal(other)


@pytest.mark.parametrize("lanes", LANES)
def test_a_row_with_a_missing_value_does_not_fire_after_it_and_others_do(lanes, lanes_of):
    lanes_of(lanes)
    network, x, _ = problem("LSTM")
    lengths = torch.full((len(x),), x.shape[1])
    x = x.nan_to_num(0.3)
    expected = rc.decide(network, x, rule=rc.Threshold(0.6), engine="compiled")
    assert expected.fired[:2].all()
    x[0, 0, 0] = math.nan
    got = run(network, x, lengths, rc.Threshold(0.6), "answer", "compiled").decision
    assert not got.fired[0] and got.steps[0] == x.shape[1] and got.probabilities[0].isnan().all()
    assert got.steps[1:].equal(expected.steps[1:])


@pytest.mark.parametrize("layers", [1, 2])
def test_backward_passes_can_be_repeated(layers):
    for keep in ("answer", "read"):
        network, x, lengths = problem("LSTM", layers=layers)
        parameters = list(network.parameters())
        loss = run(network, x, lengths, rc.Threshold(0.6), keep, "compiled").logits.square().sum()
        first, second = (torch.autograd.grad(loss, parameters, retain_graph=True) for _ in range(2))
        third = torch.autograd.grad(loss, parameters)
        for gradients in zip(first, second, third, strict=True):
            assert gradients[0].equal(gradients[1]) and gradients[0].equal(gradients[2])
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            loss.backward()


@pytest.mark.parametrize("keep", ["answer", "read"])
@pytest.mark.parametrize("rule", [rc.Threshold(0.6), rc.Never()], ids=repr)
def test_a_repeated_backward_pass_reads_the_same_steps_whatever_has_changed_meanwhile(rule, keep):
    network, x, lengths = problem("LSTM", layers=2)
    lengths = lengths.clamp(max=5)
    result = run(network, x.nan_to_num(), lengths, rule, keep, "compiled")
    loss, weights = result.logits.square().sum(), list(network.cell.parameters())
    first = torch.autograd.grad(loss, weights, retain_graph=True)
    with torch.no_grad():
        network.readout.bias += torch.tensor([5.0, 0.0, -5.0])
    lengths.fill_(4000)
    result.decision.steps.add_(100)
    expected = result.decision.steps.clone()
    second = torch.autograd.grad(loss, weights)
    assert all(one.equal(other) for one, other in zip(first, second, strict=True))
    assert result.decision.steps.equal(expected)


@pytest.mark.parametrize("bias", [math.inf, math.nan])
def test_a_row_whose_probabilities_are_nan_is_labelled_as_by_the_reference(bias):
    network, x, lengths = problem("GRU")
    with torch.no_grad():
        network.readout.bias[1] = bias
    for engine in ("compiled", "reference"):
        decision = run(network, x, lengths, rc.Threshold(0.6), "answer", engine).decision
        assert not decision.label.any() and not decision.fired.any() and decision.probabilities.isnan().all()


def test_networks_with_logits_or_hooks_of_their_own_run_elsewhere():
    class Cooled(rc.Network):
        def logits(self, features, step=None):
            return super().logits(features, step) / 3

    network, x, lengths = problem("LSTM")
    cooled, hooked = Cooled(network.cell, 3, network.readout), problem("LSTM")[0]
    hooked.cell.register_full_backward_hook(lambda *given: None)
    for other in (cooled, hooked):
        assert compiled.can_run(other, x, rc.Threshold(0.6)) is not None
    found = [rc.decide(cooled, x, lengths, rc.Threshold(0.6), engine) for engine in ("auto", "cpu", "reference")]
    for decision in found[:2]:
        assert decision.steps.equal(found[2].steps)
        torch.testing.assert_close(decision.probabilities, found[2].probabilities)


def test_a_weight_that_has_changed_before_the_backward_pass_is_an_error():
    network, x, lengths = problem("LSTM")
    loss = run(network, x, lengths, rc.Threshold(0.6), "answer", "compiled").logits.sum()
    with torch.no_grad():
        network.cell.weight_hh_l0.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("keep", ["answer", "read"])
def test_a_cell_or_a_readout_can_be_frozen(keep):
    network, x, lengths = problem("LSTM", readout="relu")
    for frozen, trained in ((network.cell, network.readout), (network.readout, network.cell)):
        network.requires_grad_()
        frozen.requires_grad_(False)
        found = []
        for engine in ("compiled", "cpu"):
            network.zero_grad()
            run(network, x.nan_to_num(), lengths, rc.Threshold(0.6), keep, engine).logits.square().sum().backward()
            found.append([part.grad.clone() for part in trained.parameters()])
            assert all(part.grad is None for part in frozen.parameters())
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_parametrized_weights_get_gradients():
    network, x, lengths = problem("GRU")
    parametrizations.weight_norm(network.cell, "weight_hh_l0")
    assert_gives_what_the_reference_gives(network, x, lengths, rc.Threshold(0.6))


def test_inputs_may_be_slices():
    network, x, lengths = problem("LSTM", steps=12)
    lengths, wide = lengths.clamp(max=5), torch.stack([x, x], 3)[:, :5, :, 1]
    assert not wide.is_contiguous()
    one, other = (run(network, each, lengths, rc.Threshold(0.6), "answer", "compiled") for each in (x[:, :5], wide))
    assert one.logits.equal(other.logits)


def test_memory_follows_the_steps_read_and_is_used_again(monkeypatch):
    monkeypatch.setattr(layer, "_FREE", layer._Free())
    monkeypatch.setattr(layer, "MAX_CHUNKS_AT_ONCE", 1)
    monkeypatch.setattr(layer, "FEW_VALUES", 0)
    monkeypatch.setattr(layer, "MAX_CHUNK_VALUES", 2**13)
    network, inputs, lengths = problem("LSTM", units=16)[0], torch.randn(64, 400, 3), torch.full((64,), 400)
    for steps in (100, 50):
        monkeypatch.setattr(layer, "_FREE", layer._Free())
        for _ in range(2):
            run(network, inputs, lengths, rc.FireAt(steps), "answer", "compiled").logits.sum().backward()
            assert layer._FREE.values == pytest.approx(64 * steps * 6 * 16, rel=0.1)


def test_denormal_numbers_are_flushed_only_while_it_runs():
    network, x, lengths = problem("LSTM")
    run(network, x, lengths, rc.Threshold(0.6), "answer", "compiled").logits.sum().backward()
    assert sys.float_info.min / 2 > 0
    assert torch.tensor(1e-38).div(8) > 0


@pytest.mark.parametrize("keep", ["answer", "read"])
def test_a_stack_of_cells_of_one_kind_and_size(keep):
    network, x, lengths = problem("GRU", layers=2)
    lower, upper = rc.cells.GRU(3, 13, 2), rc.cells.GRU(13, 13)
    lower.load_state_dict(network.cell.state_dict())
    network.cell = rc.cells.Stack(lower, upper)
    assert choose(network, x, rc.Threshold(0.6)).name == "compiled"
    assert_gives_what_the_reference_gives(network, x, lengths, rc.Threshold(0.6), keep)


def test_what_it_cannot_run():
    (network, x, _), rule = problem("LSTM"), rc.Threshold(0.6)
    dropout = rc.Network(rc.cells.LSTM(3, 4), 3, nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)))
    for refused, inputs, by, said in (
        (rc.Network(rc.cells.LIF(3, 3, emits="membranes"), 3), x, rule, "LSTMs and GRUs"),
        (rc.Network(rc.cells.Stack(rc.cells.GRU(3, 4), rc.cells.GRU(4, 5)), 3), x, rule, "one kind and size"),
        (rc.Network(rc.cells.Stack(rc.cells.CausalConv(3, 4, 2), rc.cells.GRU(4, 4)), 3), x, rule, "one kind and size"),
        (problem("LSTM")[0].double(), x.double(), rule, "float32"),
        (network, x, rc.Patience(rule, 2), "Patience is not a table"),
        (network, x, Later(0.6), "Later is not a table"),
        (dropout, x, rule, "linear readouts"),
    ):
        assert said in (compiled.can_run(refused, inputs, by) or "")
        assert choose(refused, inputs, by).name != "compiled"
    with torch.autocast("cpu", torch.bfloat16):
        assert "mixed precision" in (compiled.can_run(network, x, rule) or "")
    assert compiled.can_run(dropout, x, rc.Never()) is None
    assert choose(network, x, rule).name == "compiled"


def test_what_does_not_fit_is_an_error_and_not_read():
    network, x, lengths = problem("LSTM", readout="relu")
    for damage, said in (
        (lambda: (network, torch.randn(40, 9, 2), lengths), "reads 3 numbers a step, not 2"),
        (lambda: (network, x, lengths + 9), "from 1 to 9"),
        (lambda: (network, x, lengths * 0), "from 1 to 9"),
        (lambda: (network, x, lengths[1:]), "40 numbers"),
        (lambda: (problem("GRU")[0].double(), x, lengths), "float64"),
        (lambda: (rc.Network(network.cell, 3, nn.Linear(12, 3)), x, lengths), r"shape \[3, 13\]"),
    ):
        with pytest.raises(ValueError, match=said):
            run(*damage(), rc.Threshold(0.6), engine="compiled")


def test_without_it_blocks_of_steps_run_on_a_cpu(monkeypatch):
    network, x, lengths = problem("LSTM")
    monkeypatch.setattr(compiled, "functions", lambda: None)
    assert choose(network, x, rc.Threshold(0.6)).name == "cpu"
    with pytest.raises(ValueError, match="install a C compiler"):
        run(network, x, lengths, rc.Threshold(0.6), engine="compiled")


def test_without_openmp_it_runs_in_one_thread(monkeypatch):
    monkeypatch.setattr(layer, "openmp", lambda: None)
    monkeypatch.setattr(layer, "MIN_PARALLEL_SIZE", 0)
    network, x, lengths = problem("LSTM")
    assert_gives_what_the_reference_gives(network, x, lengths, rc.Threshold(0.6))


@pytest.mark.parametrize("lanes", LANES)
def test_tanh_is_exact_to_rounding(lanes, lanes_of):
    """The features of a GRU of one unit that takes its candidate as it is are tanh of the inputs."""
    lanes_of(lanes)
    network = rc.Network(rc.cells.GRU(1, 1), 3)
    with torch.no_grad():
        for part in network.cell.parameters():
            part.zero_()
        network.cell.weight_ih_l0[2] = 1.0
        network.cell.bias_ih_l0[1] = -1e9
        network.readout.weight[:], network.readout.bias[:] = 1.0, 0.0
    x = torch.cat([torch.linspace(-20, 20, 2001), torch.logspace(-30, 2, 500), torch.tensor([0.0, 1e30, -1e30])])
    ends = torch.ones(len(x), dtype=torch.long)
    got = run(network, x[:, None, None], ends, rc.Never(), engine="compiled").logits[:, 0].double()
    expected = x.double().tanh()
    assert ((got - expected).abs() <= 3e-7 * expected.abs()).all()
