"""Temperatures undo what spoiled probabilities."""

from dataclasses import replace

import torch

from rankcode.stopping.calibration import calibrate, fit_temperatures, reliability, reliability_by_calibration
from rankcode.stopping.traces import Traces


def test_a_known_temperature_is_found_step_by_step():
    torch.manual_seed(0)
    logits = 2 * torch.randn(6000, 12, 3, dtype=torch.float64)
    true = torch.distributions.Categorical(logits=logits[:, 0])
    labels = true.sample()
    logits = logits[:, :1].expand(-1, 12, -1)
    spoiled = torch.where(torch.arange(12)[:, None] < 6, logits * 2.5, logits / 2.0)  # too sure, then not sure enough
    found = fit_temperatures(spoiled.softmax(-1), labels, torch.ones(6000, dtype=torch.float64))
    torch.testing.assert_close(found[:4], torch.full((4,), 2.5, dtype=torch.float64), rtol=0.12, atol=0)
    torch.testing.assert_close(found[8:], torch.full((4,), 0.5, dtype=torch.float64), rtol=0.12, atol=0)


def test_reliability_of_calibrated_and_of_overconfident_answers():
    torch.manual_seed(0)
    logits = 2 * torch.randn(20000, 4)
    labels = torch.distributions.Categorical(logits=logits).sample()
    good, bad = reliability(logits.softmax(1), labels), reliability((3 * logits).softmax(1), labels)
    assert good.error < 0.01 < 0.1 < bad.error
    assert abs(float(good.share.sum()) - 1) < 1e-9
    assert (bad.confidence >= bad.accuracy - 0.02).all()


def test_calibration_mends_probabilities_of_rows_it_was_not_fitted_to():
    torch.manual_seed(0)
    logits = 2 * torch.randn(20000, 1, 3, dtype=torch.float64)
    labels = torch.distributions.Categorical(logits=logits[:, 0]).sample()
    lengths = torch.randint(2, 7, (20000,))
    spoiled = (3 * logits).softmax(-1).expand(-1, 3, -1)
    weights = torch.ones(20000, dtype=torch.float64)
    traces = Traces(spoiled, spoiled, (2, 4, 6), lengths, labels, weights)
    found = reliability_by_calibration(traces)
    assert found["after calibration"].error < 0.015 < 0.1 < found["before calibration"].error
    # An ended row counts up to its end: 1 output for 2 steps, 2 for 3 and 4, 3 for 5 and 6.
    outputs = torch.repeat_interleave(torch.arange(20000), lengths.add(1) // 2)
    expected = reliability(spoiled[outputs, 0], labels[outputs])
    assert abs(found["before calibration"].error - expected.error) < 1e-9


def test_with_a_second_axis_the_chance_to_be_wrong_depends_on_it():
    """Rows at one end of the axis are surer than they should be, and at the other less sure."""
    torch.manual_seed(0)
    margin, axis = 2 * torch.randn(20000, 6).double(), torch.randn(20000, 6).double()
    labels = (torch.rand(20000).double() < margin[:, 0].sigmoid()).long()
    margin[:] = margin[:, :1]
    shown = torch.stack([torch.zeros_like(margin), margin * (1 + 0.3 * axis)], 2).softmax(2)
    traces = Traces(shown, shown, tuple(range(1, 7)), torch.full((20000,), 6), labels, torch.ones(20000).double())
    wrong = (shown.argmax(2) != labels[:, None]).double()
    for given, alike in ((None, False), (axis, True)):
        errors = calibrate(replace(traces, axis=given), temperatures=False).errors
        for part in (axis < -1, axis > 1):
            assert (abs(float(errors[part].mean() - wrong[part].mean())) < 0.01) == alike
