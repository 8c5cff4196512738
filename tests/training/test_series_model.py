"""The model for a set of series: which network is taken, and what it is compared with."""

import pytest
import torch

from rankcode import Network, evaluate, tune
from rankcode.stopping import Wish
from rankcode.stopping.traces import traces_of
from rankcode.training import plan, series_model
from rankcode.training.series_model import LabelledSeries, fit_series, merged, weighted_standardise


def steps_up(rows=40, steps=12, seed=0):
    """Class 1 steps up after the fourth step."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(rows) % 2
    values = 0.2 * torch.randn(rows, steps, 1, generator=generator)
    values[:, 4:] += labels[:, None, None]
    return LabelledSeries(values + 5, torch.full((rows,), steps), labels)


def test_many_rows_let_validation_choose(monkeypatch, few_updates):
    monkeypatch.setattr(series_model, "MANY_ROWS", 40)
    small = fit_series(steps_up(38), ("flat", "up"), Wish())
    large = fit_series(steps_up(60), ("flat", "up"), Wish())
    assert small.model == "kernels" and large.model in ("kernels", "recurrent", "ensemble")
    assert large.tuning.worth >= fit_series(steps_up(60), ("flat", "up"), Wish(), "recurrent").tuning.worth
    for found in (small, large):
        assert found.tuning.expected.accuracy == 1.0 and 4.5 < found.tuning.expected.mean_steps < 9


def two_clues(rows, seed):
    """Four classes: whether waves are short or long, which kernels see, and the level, which they hardly see."""
    generator = torch.Generator().manual_seed(seed)
    labels, steps = torch.arange(rows) % 4, torch.arange(20)
    values = 0.5 * torch.randn(rows, 20, 1, generator=generator) + 0.2 * (2 * (labels // 2) - 1)[:, None, None]
    phase = 6 * torch.rand(rows, 1, generator=generator)
    values[:, :, 0] += torch.sin(steps * (1.2 + 0.8 * (labels % 2))[:, None] + phase)
    return LabelledSeries(values, torch.full((rows,), 20), labels)


def costs_of(network, rows, alpha):
    """Of a network, and of the networks of which it is the ensemble, each with its best rule on these rows."""
    data = network.front_end(rows.values)[0].float(), rows.labels, rows.lengths
    parts = zip(network.cell.cells, network.readout.readouts, strict=True)
    members = [Network(cell, network.outputs, readout, "softmax") for cell, readout in parts]
    return [-tune(each, data, alpha=alpha).worth for each in (network, *members)]


@pytest.fixture(scope="module")
def ensemble():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(series_model, "MANY_ROWS", 200)
        patch.setattr(plan, "MIN_UPDATES", 60)
        patch.setattr(plan, "DEFAULT_EPOCHS", 1)
        return fit_series(two_clues(240, seed=0), ("a", "b", "c", "d"), Wish(), validation=two_clues(600, seed=1))


def test_an_ensemble_is_taken_where_it_wins(ensemble):
    assert ensemble.model == "ensemble"
    assert max(ensemble.compared, key=lambda name: ensemble.compared[name].worth) == "ensemble"
    assert set(ensemble.compared) == {"kernels", "recurrent", "ensemble"}
    cost, of_kernels, of_gru = costs_of(ensemble.network, two_clues(1000, seed=2), alpha=0.2)
    assert cost < of_kernels - 0.01 and cost < of_gru - 0.01


def test_the_traces_of_an_ensemble_are_those_of_its_network(ensemble):
    rows = two_clues(600, seed=1)
    inputs = ensemble.network.front_end(rows.values)[0].float()
    expected = traces_of(ensemble.network, (inputs, rows.labels, rows.lengths))
    assert ensemble.held_out.steps == expected.steps == ensemble.network.checkpoints
    torch.testing.assert_close(ensemble.held_out.probabilities, expected.probabilities, rtol=0, atol=1e-5)
    report = evaluate(ensemble.network, (inputs, rows.labels, rows.lengths))
    assert report.accuracy == pytest.approx(ensemble.tuning.expected.accuracy, abs=0.03)


@pytest.mark.parametrize("model", ["recurrent", "ensemble"])
def test_rows_that_are_there_twice_train_a_recurrent_network_too(model, few_updates):
    once = steps_up(60)
    twice = LabelledSeries(*(torch.cat([part, part[:6]]) for part in once))
    found = fit_series(twice, ("flat", "up"), Wish(), model)
    assert found.model == model and found.tuning.expected.accuracy > 0.9


def test_weights_of_rows_need_kernels(monkeypatch):
    monkeypatch.setattr(series_model, "MANY_ROWS", 40)
    weights = torch.ones(60).double()
    weights[0] = 2
    assert fit_series(steps_up(60), ("flat", "up"), Wish(), weights=weights).model == "kernels"
    for model in ("recurrent", "ensemble"):
        with pytest.raises(ValueError, match="need model='kernels'"):
            fit_series(steps_up(60), ("flat", "up"), Wish(), model, weights)


def test_a_wish_that_one_model_cannot_meet_goes_to_another(monkeypatch, few_updates):
    """One update teaches a recurrent network nothing of waves."""
    monkeypatch.setattr(series_model, "MANY_ROWS", 40)
    monkeypatch.setattr(plan, "MIN_UPDATES", 1)
    series = two_clues(100, seed=0)
    series = series.rows(series.labels < 2)
    with pytest.raises(ValueError, match="cannot be reached"):
        fit_series(series, ("long", "short"), Wish(accuracy=0.9), "recurrent")
    found = fit_series(series, ("long", "short"), Wish(accuracy=0.9))
    assert found.model != "recurrent" and found.tuning.expected.accuracy >= 0.9


def test_rows_of_unequal_length_in_an_ensemble(few_updates):
    series = steps_up(60)
    series = series._replace(lengths=torch.where(torch.arange(60) % 3 == 0, 7, 12))
    found = fit_series(series, ("flat", "up"), Wish(), "ensemble")
    assert found.tuning.expected.accuracy == 1.0


def test_equal_rows_become_one_of_their_weight():
    series = steps_up(6)
    index = torch.tensor([0, 1, 1, 2, 3, 4, 5, 1])
    found, weights = merged(series.rows(index), torch.ones(8).double())
    assert len(found.labels) == 6 and sorted(weights.tolist()) == [1, 1, 1, 1, 1, 3]
    again, shuffled = merged(series.rows(index.flip(0)), torch.ones(8).double())
    assert torch.equal(again.values, found.values) and torch.equal(weights, shuffled)


def test_the_scale_is_that_of_all_real_steps():
    series = steps_up(8)._replace(lengths=torch.tensor([12, 3, 5, 1, 12, 12, 2, 7]))
    weights = torch.tensor([1.0, 2.0, 1.0, 1.0, 1.0, 1.0, 3.0, 1.0]).double()
    steps = [series.values[row, : series.lengths[row], 0] for row in range(8) for _ in range(int(weights[row]))]
    front_end = weighted_standardise(series, weights)
    torch.testing.assert_close(torch.tensor(front_end.mean[0]), torch.cat(steps).mean())
    torch.testing.assert_close(torch.tensor(front_end.std[0]), torch.cat(steps).std(correction=0))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("model", ["kernels", "recurrent", "ensemble"])
def test_a_model_fitted_on_a_gpu_is_on_the_cpu_afterwards(model, few_updates):
    found = fit_series(steps_up(60), ("flat", "up"), Wish(), model, device="cuda")
    assert not any(part.is_cuda for part in found.network.state_dict().values())
    assert found.tuning.expected.accuracy == 1.0 and 4.5 < found.tuning.expected.mean_steps < 9
    if model == "kernels":
        same = fit_series(steps_up(60), ("flat", "up"), Wish(), model, device="cpu")
        torch.testing.assert_close(found.held_out.probabilities, same.held_out.probabilities, rtol=0, atol=1e-6)
        assert found.tuning.expected == same.tuning.expected


@pytest.mark.parametrize("model", ["recurrent", "ensemble"])
def test_too_few_rows_to_set_aside(model):
    series = LabelledSeries(torch.randn(6, 20, 1).double(), torch.full((6,), 20), torch.arange(6) % 2)
    with pytest.raises(ValueError, match=r"at least 4 held-out rows, not 2: use kernels"):
        fit_series(series, ("a", "b"), Wish(), model)
