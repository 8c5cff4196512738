import pytest
import torch

from rankcode.data.sources import seeded
from rankcode.tasks import TASKS, TwoSequence

ROWS = 20_000
TASK = TwoSequence()


@pytest.fixture(scope="module")
def drawn():
    return TASK.draw_with_std(ROWS, seeded("cpu", 2022))


def test_shape_and_names():
    assert TASKS["two-sequence"] is TwoSequence
    assert (TASK.steps, TASK.input_shape, TASK.num_classes, TASK.label_names) == (40, (1,), 2, ("negative", "positive"))
    assert TASK.train.size is None and TASK.validation.size == 2_000 and TASK.test.size == 100_000


def test_sequences_have_the_mean_and_noise_they_should(drawn):
    batch, sigma = drawn
    assert batch.inputs.shape == (ROWS, 40, 1) and batch.inputs.dtype == torch.float32
    assert abs(batch.labels.double().mean().item() - 0.5) < 4 * 0.5 / ROWS**0.5
    standard = (batch.inputs[..., 0].double() - 0.05 * (2 * batch.labels - 1)[:, None]) / sigma[:, None]
    values = standard.numel()
    assert abs(standard.mean().item()) < 4 / values**0.5
    assert abs(standard.var().item() - 1) < 4 * (2 / values) ** 0.5
    assert sigma.min() >= 0.05 and sigma.max() <= 0.25
    quarters = torch.histc(sigma, 4, 0.05, 0.25) / ROWS
    assert (quarters - 0.25).abs().max().item() < 4 * (0.25 * 0.75 / ROWS) ** 0.5


def test_posterior_does_not_depend_on_how_rows_are_chunked(drawn, monkeypatch):
    inputs = drawn[0].inputs[:100]
    whole = TASK.posterior(inputs)
    monkeypatch.setattr("rankcode.tasks.two_sequence.CHUNK", 7)
    assert torch.equal(TASK.posterior(inputs), whole)


def test_constant_threshold_curve_against_the_posterior(drawn):
    batch = drawn[0]
    inputs, labels = batch.inputs[:2_000], batch.labels[:2_000]
    thresholds = (0.5, 0.8, 0.95, 0.9999)
    curve = TASK.constant_threshold_curve(inputs, labels, thresholds)
    posterior = TASK.posterior(inputs)
    for number, threshold in enumerate(thresholds):
        fires = posterior.amax(-1) >= threshold
        fires[:, -1] = True
        step = fires.int().argmax(1)
        answer = posterior[torch.arange(2_000), step].argmax(-1)
        assert curve.accuracy[number].item() == (answer == labels).double().mean().item()
        assert curve.steps[number].item() == pytest.approx((step + 1).double().mean().item(), abs=1e-9)
    assert curve.steps[0].item() == 1
    assert TASK.constant_threshold_curve(inputs, labels, [1.0]).steps.tolist() == [40]  # nothing is ever certain


def test_limits_of_constant_thresholds(drawn):
    curve = TASK.constant_threshold_curve(*drawn[0][:2], (0.95, 0.98, 1.0))
    for number, (accuracy, steps) in enumerate([(0.9488, 14.93), (0.9629, 19.60), (0.9690, 40.0)]):
        error = (accuracy * (1 - accuracy) / ROWS) ** 0.5
        assert abs(curve.accuracy[number].item() - accuracy) < 4 * error
        assert abs(curve.steps[number].item() - steps) < 4 * 13 / ROWS**0.5  # 13: more than the steps' deviation


def test_wrong_settings_and_inputs_are_named():
    inputs, labels = torch.zeros(3, 40, 1), torch.zeros(3, dtype=torch.int64)
    with pytest.raises(ValueError, match="low and high"):
        TwoSequence(low=0.3)
    with pytest.raises(ValueError, match="mean"):
        TwoSequence(mean=0)
    with pytest.raises(ValueError, match=r"\[rows, 40, 1\]"):
        TASK.posterior(torch.zeros(3, 39, 1))
    with pytest.raises(ValueError, match="labels"):
        TASK.constant_threshold_curve(inputs, labels[:2], [0.9])
    with pytest.raises(ValueError, match="thresholds"):
        TASK.constant_threshold_curve(inputs, labels, [0.2])
    with pytest.raises(ValueError, match="costs"):
        TASK.optimal_stopping_curve(inputs, labels, [0.0])
