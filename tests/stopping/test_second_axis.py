"""A second axis is found in the features of a cell, and a rule that reads it answers better than one that does not."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from rankcode import Network, decide, evaluate, load, save
from rankcode.stopping import Wish, second_axis, tune_on
from rankcode.stopping.second_axis import traces_with_axis
from rankcode.tasks import TwoSequence

TASK = TwoSequence(steps=20, mean=0.1, low=0.03, high=0.6)  # the noise differs much from row to row


class Evidence(nn.Module):
    """The log-odds of the 2-sequence problem, if the noise were as measured so far, and the noise, among other
    features."""

    output_shape = (4,)

    def __init__(self):
        super().__init__()
        self.mix = nn.Parameter(torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), requires_grad=False)

    def initial_state(self, batch_size):
        return torch.zeros(batch_size, 3)

    def forward(self, x_t, state):
        state = state + torch.cat([torch.ones_like(x_t), x_t, x_t**2], 1)
        count, total, squares = state.unbind(1)
        variance = (squares + 4 * 0.02) / (count + 4)
        features = torch.stack([2 * TASK.mean * total / variance, variance.log(), count.log()], 1)
        return torch.cat([features[:, :1], features @ self.mix[1:].T], 1), state


def network():
    made = Network(Evidence(), outputs=1)
    with torch.no_grad():
        made.readout.weight.copy_(torch.tensor([[1.0, 0.0, 0.0, 0.0]]))
        made.readout.bias.zero_()
    return made


def rows(count, seed):
    return TASK.draw(count, torch.Generator().manual_seed(seed))[:2]


def test_it_beats_the_confidence_alone_on_new_rows(tmp_path):
    price, made, new = 0.01, network(), rows(20_000, 1)
    traces = traces_with_axis(made, rows(5_000, 0))
    both = tune_on(traces, Wish(cost_per_step=price), "optimal")
    assert both.rule.reads_features and "features" in both.reason
    alone = tune_on(replace(traces, axis=None), Wish(cost_per_step=price), "optimal")
    assert not alone.rule.reads_features
    cost = {}
    for name, tuning in {"both": both, "alone": alone}.items():
        report = evaluate(made, new, tuning.rule)
        cost[name] = 1 - report.accuracy + price * report.mean_steps
        assert report.accuracy == pytest.approx(tuning.expected.accuracy, abs=0.01)  # what was promised
        assert report.mean_steps == pytest.approx(tuning.expected.mean_steps, abs=0.3)
    assert cost["both"] < cost["alone"] - 0.004
    made.rule = both.rule
    save(made, tmp_path / "made.safetensors")
    again = load(tmp_path / "made.safetensors", network=network())
    assert again.rule == both.rule
    assert torch.equal(decide(again, new[0][:500]).steps, decide(made, new[0][:500], rule=both.rule).steps)


def test_values_are_those_of_the_weights_and_lengths_may_differ(monkeypatch):
    monkeypatch.setattr(second_axis, "MIN_ROWS", 300)
    inputs, labels = rows(600, 0)
    lengths = torch.randint(1, 21, (600,), generator=torch.Generator().manual_seed(0))
    inputs[torch.arange(20) >= lengths[:, None]] = torch.nan
    made, data = network(), (inputs, labels, lengths)
    traces = traces_with_axis(made, data)
    assert traces.axis.isfinite().all() and traces.axis.shape == (600, 20)
    monkeypatch.setattr(second_axis, "MAX_VALUES", 256 * 20 * 4)  # the rows of two batches are kept, the others not
    some = traces_with_axis(made, data)
    state, features = made.initial_state(600), []
    for step in range(20):
        now, state = made.cell(inputs[:, step].nan_to_num(), state)
        features.append(now)
    weights = some.axis_weights[torch.arange(20) * 8 // 20]
    expected = (torch.stack(features, 1).double() * weights[:, :4]).sum(2) + weights[:, 4]
    before_end = torch.arange(1, 21) <= lengths[:, None]
    torch.testing.assert_close(some.axis[512:][before_end[512:]], expected[512:][before_end[512:]])
    left_out, known = (part[:512][before_end[:512]] for part in (some.axis, expected))
    assert 0.9 < torch.corrcoef(torch.stack([left_out, known]))[0, 1] < 0.9999  # by a regression on other rows


@pytest.mark.parametrize("steps", [2, 3, 9])
def test_few_steps_and_features_that_are_always_zero(steps, monkeypatch):
    monkeypatch.setattr(second_axis, "MIN_ROWS", 300)
    made, (inputs, labels) = network(), rows(400, 0)
    made.cell.mix[2:] = 0.0
    traces = traces_with_axis(made, (inputs[:, :steps], labels))
    assert traces.axis.isfinite().all() and traces.axis[:, 0].std() > 0.1
    rule = tune_on(traces, Wish(alpha=0.1), "optimal").rule
    assert rule.axis is None or len(rule.axis) == max(1, steps // 2)


def test_there_is_none_with_few_rows_many_features_or_rows_in_another_order(monkeypatch):
    made, data = network(), rows(400, 0)
    assert traces_with_axis(made, data).axis is None
    monkeypatch.setattr(second_axis, "MIN_ROWS", 300)
    assert traces_with_axis(made, data).axis is not None
    shuffled = torch.utils.data.DataLoader(list(zip(*data, strict=True)), 100, shuffle=True)
    assert traces_with_axis(made, shuffled).axis is None
    monkeypatch.setattr(second_axis, "MAX_FEATURES", 3)
    assert traces_with_axis(made, data).axis is None
