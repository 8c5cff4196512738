"""Blocks of steps as CUDA graphs: see also test_run.py, which runs them on a CPU, without capturing them."""

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import rankcode as rc
from rankcode.engines import capture, choose, graphs

ON_A_GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
DEVICES = ["cpu", pytest.param("cuda", marks=ON_A_GPU)]


class Counting(nn.Module):
    """A cell of one's own, whose state has a number that is not a float."""

    output_shape = (6,)

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4 + 6, 6)

    def initial_state(self, batch_size):
        weight = self.layer.weight
        return weight.new_zeros(batch_size, 6), torch.zeros(batch_size, dtype=torch.long, device=weight.device)

    def forward(self, x_t, state):
        hidden = self.layer(torch.cat([x_t, state[0]], 1)).tanh() + 0.1 * (state[1] % 2)[:, None]
        return hidden, (hidden, state[1] + 1)


class Stateless(nn.Module):
    """A cell that remembers nothing."""

    output_shape = (6,)

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 6)

    def initial_state(self, batch_size):
        return None

    def forward(self, x_t, state):
        return self.layer(x_t).tanh(), None


CELLS = {
    "ConvLSTM": (lambda: rc.cells.ConvLSTM(1, 3, (8, 8)), (1, 8, 8)),
    "Glimpses": (lambda: rc.cells.Glimpses((8, 8), 20, channels=8, hidden_size=6, dropout=0.0), (1, 8, 8)),
    "LIF": (lambda: rc.cells.LIF(4, 6), (4,)),
    "stack": (lambda: rc.cells.Stack(rc.cells.LIF(4, 6), rc.cells.LSTM(6, 5)), (4,)),
    "sequences": (lambda: rc.cells.Stack(rc.cells.GRU(4, 6), rc.cells.LSTM(6, 5)), (4,)),
    "own": (Counting, (4,)),
    "stateless": (Stateless, (4,)),
}


def made(cell, device, rows=20, steps=19):
    torch.manual_seed(0)
    make, shape = CELLS[cell]
    network = rc.Network(make(), 3).double()
    with torch.no_grad():
        for parameter in network.readout.parameters():
            parameter *= 6
    inputs = torch.randn(rows, steps, *shape).double()
    lengths = torch.randint(1, steps + 1, (rows,))
    inputs[torch.arange(steps) >= lengths[:, None]] = torch.nan
    return network.to(device), inputs.to(device), lengths.to(device)


def outcome(network, inputs, lengths, objective, engine, labels):
    network.zero_grad()
    loss, decision = objective(network, inputs, labels, lengths, engine=engine)
    loss.backward()
    return [loss.detach(), decision.steps, decision.label, *(part.grad.clone() for part in network.parameters())]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "objective", [rc.AtSpike(0.8, beta=0.1), rc.UntilSpike(0.8), rc.AtEnd()], ids=["at", "until", "end"]
)
@pytest.mark.parametrize("cell", CELLS)
def test_every_cell_gives_what_stepwise_gives_while_its_weights_change(cell, objective, device, monkeypatch):
    monkeypatch.setattr(capture, "WARMUP_RUNS", 1)
    network, inputs, lengths = made(cell, device)
    labels = torch.arange(len(inputs), device=device) % 3
    for _ in range(6):
        results = [outcome(network, inputs, lengths, objective, engine, labels) for engine in ("stepwise", "graphs")]
        for one, other in zip(*results, strict=True):
            torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-11)
        with torch.no_grad():
            for parameter in network.parameters():
                parameter -= 0.05 * parameter.grad
            inputs = inputs.roll(1, 0)
            lengths = lengths.roll(1, 0)
    (blocks,) = graphs._Blocks.all[network].values()
    captured = [graph for block in blocks.blocks.values() for graph in block.graphs if graph.graphs]
    assert len(captured) >= 4 if device == "cuda" else not captured


@pytest.mark.parametrize("device", DEVICES)
def test_answers_without_gradients(device, monkeypatch):
    monkeypatch.setattr(capture, "WARMUP_RUNS", 1)
    network, inputs, lengths = made("ConvLSTM", device)
    for turn in range(5):
        one, other = (
            rc.decide(network, inputs[turn:], lengths[turn:], rc.Threshold(0.8), engine=engine)
            for engine in ("stepwise", "graphs")
        )
        assert torch.equal(one.steps, other.steps) and torch.equal(one.label, other.label)
        torch.testing.assert_close(other.probabilities, one.probabilities)
    assert len(set(one.steps.tolist())) > 2


@pytest.mark.parametrize("device", DEVICES)
def test_a_cell_with_dropout_has_the_gradient_of_its_own_random_numbers(device, monkeypatch):
    """The gradient of the cell's weight is the sum of the features, over the steps and units kept."""
    monkeypatch.setattr(capture, "WARMUP_RUNS", 1)

    class Dropped(nn.Module):
        output_shape = (16,)

        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(1.0))

        def initial_state(self, batch_size):
            return self.scale.new_zeros(batch_size, 16)

        def forward(self, x_t, state):
            state = state + nn.functional.dropout(x_t * self.scale, 0.5, self.training)
            return state, state

    network = rc.Network(Dropped(), 16, nn.Identity(), activation="softmax").to(device)
    inputs = torch.randn(12, 9, 16, device=device)
    for _ in range(6):
        network.zero_grad()
        kept = rc.engines.run(
            network, inputs, torch.full((12,), 9, device=device), rc.Never(), "answer", "graphs"
        ).logits
        kept.sum().backward()
        torch.testing.assert_close(network.cell.scale.grad, kept.sum().detach(), rtol=1e-4, atol=1e-4)
    other = rc.engines.run(network, inputs, torch.full((12,), 9, device=device), rc.Never(), "answer", "graphs").logits
    assert not torch.allclose(kept, other)


@pytest.mark.parametrize("device", DEVICES)
def test_training_after_inference_and_inference_in_several_threads(device, monkeypatch):
    monkeypatch.setattr(capture, "WARMUP_RUNS", 1)
    network, inputs, lengths = made("ConvLSTM", device)
    labels, rule = torch.arange(len(inputs), device=device) % 3, rc.Threshold(0.8)
    expected = rc.decide(network, inputs, lengths, rule, engine="stepwise")
    with ThreadPoolExecutor(4) as pool:
        turns = [pool.submit(rc.decide, network, inputs, lengths, rule, engine="graphs") for _ in range(12)]
    for turn in turns:
        assert torch.equal(turn.result().steps, expected.steps)
        torch.testing.assert_close(turn.result().probabilities, expected.probabilities)
    for _ in range(4):
        results = [
            outcome(network, inputs, lengths, rc.AtSpike(rule=rule), engine, labels)
            for engine in ("stepwise", "graphs")
        ]
        for one, other in zip(*results, strict=True):
            torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-11)


def test_what_it_cannot_run():
    network, inputs, _ = made("LIF", "cpu")
    hooked, bound = copy.deepcopy(network), copy.deepcopy(network)
    hooked.cell.register_forward_hook(lambda *given: None)
    nn.utils.parametrizations.weight_norm(bound.cell.synapses[1])
    for other, said in ((hooked, "hooks"), (bound, "parametrized")):
        with pytest.raises(ValueError, match=said):
            choose(other, inputs, rc.Never(), "graphs")


def test_graphs_are_freed_with_the_network_and_made_anew_for_other_weights():
    network, inputs, lengths = made("LIF", "cpu")
    before = len(graphs._Blocks.all)
    rc.decide(network, inputs, lengths, rc.Threshold(0.8), engine="graphs")
    assert len(graphs._Blocks.all[network]) == 1
    network.cell.synapses[1].weight = nn.Parameter(torch.zeros_like(network.cell.synapses[1].weight))
    rc.decide(network, inputs, lengths, rc.Threshold(0.8), engine="graphs")
    assert len(graphs._Blocks.all[network]) == 2
    for _ in range(5):
        network.cell.synapses[1].weight = nn.Parameter(network.cell.synapses[1].weight.detach().clone())
        rc.decide(network, inputs, lengths, rc.Threshold(0.8), engine="graphs")
    assert len(graphs._Blocks.all[network]) <= graphs.MAX_SETTINGS
    del network
    assert len(graphs._Blocks.all) == before


def test_captured_blocks_keep_no_graph_of_a_training_step():
    """Gradients would otherwise be added on the stream of that step, which no other capture may wait for."""
    network, inputs, lengths = made("LIF", "cpu")
    labels, objective = torch.arange(len(inputs)) % 3, rc.AtSpike(0.8)
    outcome(network, inputs, lengths, objective, "graphs", labels)
    weight = network.cell.synapses[1].weight
    weight.view_as(weight).grad_fn.next_functions[0][0].metadata["step"] = 1
    outcome(network, inputs, lengths, objective, "graphs", labels)
    assert "step" not in weight.view_as(weight).grad_fn.next_functions[0][0].metadata


def test_blocks_end_where_rows_are_expected_to_answer():
    plan, remaining = graphs._Plan(), torch.full((8,), 40).numpy()
    assert [plan.steps(first, remaining) for first in (0, 1, 2, 4, 8, 16)] == [1, 1, 2, 4, 8, 16]
    assert plan.steps(16, torch.tensor([3, 1]).numpy()) == 2
    plan.expect(torch.tensor([6, 6, 6, 6, 30, 30, 30, 30]).numpy())
    assert [plan.steps(first, remaining) for first in (0, 4, 6)] == [16, 16, 16]
    plan.expect(torch.tensor([2, 2, 5, 5, 6, 30, 30, 30]).numpy())
    assert [plan.steps(first, remaining) for first in (0, 4, 6)] == [4, 16, 16]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_cell_that_waits_for_the_gpu_runs_without_graphs(monkeypatch):
    monkeypatch.setattr(capture, "WARMUP_RUNS", 1)

    class Waiting(rc.cells.LIF):
        def forward(self, x_t, state):
            assert x_t.sum().item() == x_t.sum().item()
            return super().forward(x_t, state)

    network, inputs, lengths = made("LIF", "cuda")
    network.cell.__class__ = Waiting
    labels, objective = torch.arange(len(inputs), device="cuda") % 3, rc.AtSpike(0.8)
    with pytest.warns(UserWarning, match="no CUDA graph could be captured"):
        for _ in range(4):
            results = [
                outcome(network, inputs.nan_to_num(), lengths, objective, engine, labels)
                for engine in ("stepwise", "graphs")
            ]
            for one, other in zip(*results, strict=True):
                torch.testing.assert_close(other, one)
    assert [blocks.failed for blocks in graphs._Blocks.all[network].values()] == [True]
    assert torch.randn(3, device="cuda").isfinite().all()
