import pytest
import torch
from torch import nn

import rankcode as rc
from rankcode import cells

LENGTHS = torch.tensor([6, 3, 1, 5, 6, 2])


class Clock(nn.Module):
    """A user's cell whose state is a nested tuple with whole numbers and with nothing in it."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(7, 4)

    def initial_state(self, rows):
        return (self.mix.weight.new_zeros(rows, 4), None), torch.zeros(rows, dtype=torch.long)

    def forward(self, x_t, state):
        (hidden, _), time = state
        hidden = self.mix(torch.cat([x_t, hidden], 1)).tanh()
        return hidden, ((hidden, None), time + 1)


def network_and_inputs(cell=None, outputs=3):
    torch.manual_seed(4)
    network = rc.Network(cell or cells.LSTM(3, 4, num_layers=2), outputs)
    inputs = torch.randn(6, 6, 3)
    rc.decide(network, inputs)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if "bias" not in name:
                parameter.normal_(std=3.0 if "readout" in name else 1.0)
    return network, inputs


def padded(steps=6):
    return torch.arange(steps) >= LENGTHS[:, None]


@pytest.mark.parametrize("engine", ["reference", "stepwise", "whole", "graphs"])
def test_a_trace_holds_what_was_decided_at_the_spike(engine):
    network, inputs = network_and_inputs()
    decision = rc.decide(network, inputs, LENGTHS, rc.Threshold(0.7), engine=engine)
    assert decision.fired.any() and not decision.fired.all() and decision.steps.lt(LENGTHS).any()
    trace = rc.trace(network, inputs, LENGTHS)
    rows, at = torch.arange(6), decision.steps - 1
    assert torch.allclose(trace.probabilities[rows, at], decision.probabilities, atol=1e-6)
    assert trace.activations[rows, at].argmax(1).equal(decision.label)
    crossed = trace.activations.amax(2) >= 0.7
    assert crossed.any(1).equal(decision.fired)
    first = torch.where(crossed.any(1), crossed.int().argmax(1) + 1, LENGTHS)
    assert first.equal(decision.steps)


def test_states_are_those_after_each_step_past_the_spike_too():
    network, inputs = network_and_inputs()
    trace = rc.trace(network, inputs)
    assert isinstance(trace.states, cells.LSTMState)
    theirs = nn.LSTM(3, 4, num_layers=2, batch_first=True)
    theirs.load_state_dict(network.cell.state_dict())
    hidden, _ = theirs(inputs)
    assert torch.allclose(trace.states.hidden[:, :, 1], hidden, atol=1e-6)
    assert torch.allclose(trace.probabilities, network.readout(hidden).softmax(2), atol=1e-6)
    for step in range(1, 7):
        _, (h, c) = theirs(inputs[:, :step])
        assert torch.allclose(trace.states.hidden[:, step - 1], h.transpose(0, 1), atol=1e-6)
        assert torch.allclose(trace.states.cell[:, step - 1], c.transpose(0, 1), atol=1e-6)


def test_padded_steps_hold_nan_and_nothing_else_does():
    network, inputs = network_and_inputs()
    inputs[padded()] = torch.nan
    trace = rc.trace(network, inputs, LENGTHS)
    for part in (trace.activations, trace.probabilities, *trace.states):
        empty = part.flatten(2).isnan()
        assert empty.all(2).equal(padded()) and empty.any(2).equal(padded())
    unpadded = rc.trace(network, torch.where(padded()[..., None], 0.0, inputs))
    kept = ~padded()
    assert torch.allclose(trace.activations[kept], unpadded.activations[kept], atol=1e-6)


def test_a_trace_is_as_long_as_its_inputs():
    network, inputs = network_and_inputs()
    trace = rc.trace(network, inputs, torch.tensor([2, 3, 1, 2, 3, 3]))
    assert trace.activations.shape == (6, 6, 3)
    assert trace.states.hidden.shape == (6, 6, 2, 4)
    assert trace.activations[:, 3:].isnan().all()


def test_membranes_are_traced_themselves():
    network = rc.Network(cells.LIF(3, 4, emits="membranes"), 4)
    trace = rc.trace(network, torch.randn(5, 6, 3))
    assert trace.activations.equal(trace.states.membrane)
    assert torch.allclose(trace.probabilities, trace.activations.softmax(2))


@pytest.mark.parametrize("lengths", [None, LENGTHS])
def test_a_users_state_is_traced_whole_numbers_too(lengths):
    network, inputs = network_and_inputs(Clock())
    trace = rc.trace(network, inputs, lengths)
    (hidden, nothing), time = trace.states
    assert hidden.shape == (6, 6, 4) and nothing is None
    counted = torch.arange(1, 7).expand(6, 6)
    kept = torch.ones(6, 6, dtype=torch.bool) if lengths is None else ~padded()
    assert time[kept].equal(counted[kept].to(time.dtype))


def test_a_trace_of_one_step_and_one_row():
    network, inputs = network_and_inputs()
    trace = rc.trace(network, inputs[:1, :1])
    assert trace.activations.shape == (1, 1, 3) and trace.states.cell.shape == (1, 1, 2, 4)
    assert torch.allclose(trace.activations, rc.trace(network, inputs).activations[:1, :1], atol=1e-6)


@pytest.mark.parametrize("call", [rc.decide, rc.trace])
@pytest.mark.parametrize("training", [True, False])
def test_inference_runs_in_evaluation_mode_and_restores_every_mode(call, training):
    network, inputs = network_and_inputs()
    network.readout = nn.Sequential(nn.Dropout(0.5), network.readout, nn.BatchNorm1d(3))
    network.train(training)
    network.readout[2].train(not training)  # as in a part that is kept frozen
    modes = [module.training for module in network.modules()]
    seen = []
    network.readout[2].register_forward_hook(lambda module, args, output: seen.append(module.training))
    first = call(network, inputs)
    assert not any(seen) and seen
    assert [module.training for module in network.modules()] == modes
    assert all(a.equal(b) for a, b in zip(call(network, inputs)[:2], first[:2], strict=True))
    with pytest.raises(ValueError, match="NaN"):
        call(network, torch.full_like(inputs, torch.nan))
    assert [module.training for module in network.modules()] == modes


def test_no_gradients():
    network, inputs = network_and_inputs()
    assert not any(part.requires_grad for part in rc.decide(network, inputs))
    trace = rc.trace(network, inputs)
    assert not any(part.requires_grad for part in (trace.activations, trace.probabilities, *trace.states))
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("junk", [100.0, torch.nan, torch.inf])
@pytest.mark.parametrize("engine", ["reference", "stepwise", "whole", "graphs"])
def test_inputs_past_the_answer_change_nothing(engine, junk):
    network, inputs = network_and_inputs()
    decision = rc.decide(network, inputs, LENGTHS, rc.Threshold(0.7), engine=engine)
    past = torch.arange(6) >= decision.steps[:, None]
    assert (past & ~padded()).any()
    changed = torch.where(past[..., None], junk, inputs)
    same = rc.decide(network, changed, LENGTHS, rc.Threshold(0.7), engine=engine)
    assert all(a.equal(b) for a, b in zip(same, decision, strict=True))


def test_the_rule_is_a_threshold_of_095_where_none_is_given():
    network, inputs = network_and_inputs()
    expected = rc.decide(network, inputs, rule=rc.Threshold(0.95))
    assert all(a.equal(b) for a, b in zip(rc.decide(network, inputs), expected, strict=True))


def test_a_decision_is_one_type():
    network, inputs = network_and_inputs()
    for rule in (rc.Threshold(0.7), rc.Never(), rc.FireAt(2)):
        decision = rc.decide(network, inputs, LENGTHS, rule)
        assert isinstance(decision, rc.Decision)
        assert [part.dtype for part in decision] == [torch.int64, torch.int64, torch.bool, torch.float32]
        assert [tuple(part.shape) for part in decision] == [(6,), (6,), (6,), (6, 3)]
        assert decision.steps.ge(1).all() and decision.steps.le(LENGTHS).all()
