"""The model for a set of series: which network is taken, and what it is compared with."""

import pytest
import torch

from rankcode.stopping import Wish
from rankcode.training import series_model
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
    assert small.model == "kernels" and large.model in ("kernels", "recurrent")
    assert large.tuning.worth >= fit_series(steps_up(60), ("flat", "up"), Wish(), "recurrent").tuning.worth
    for found in (small, large):
        assert found.tuning.expected.accuracy == 1.0 and 4.5 < found.tuning.expected.mean_steps < 9


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
@pytest.mark.parametrize("model", ["kernels", "recurrent"])
def test_a_model_fitted_on_a_gpu_is_on_the_cpu_afterwards(model, few_updates):
    found = fit_series(steps_up(60), ("flat", "up"), Wish(), model, device="cuda")
    assert not any(part.is_cuda for part in found.network.state_dict().values())
    assert found.tuning.expected.accuracy == 1.0 and 4.5 < found.tuning.expected.mean_steps < 9
    if model == "kernels":
        same = fit_series(steps_up(60), ("flat", "up"), Wish(), model, device="cpu")
        torch.testing.assert_close(found.held_out.probabilities, same.held_out.probabilities, rtol=0, atol=1e-6)
        assert found.tuning.expected == same.tuning.expected
