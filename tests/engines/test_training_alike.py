"""Training with a fused engine goes where training with the reference goes."""

import pytest
import torch

import rankcode as rc


def trained(engine, updates, rows, units, double):
    torch.manual_seed(0)
    task = rc.tasks.TwoSequence(steps=12, mean=0.3, validation_rows=200, test_rows=500)
    network = rc.Network(rc.cells.LSTM(1, units), outputs=1)
    network = network.double() if double else network
    training = rc.Training(
        examples=updates * rows,
        batch_size=rows,
        learning_rate=0.02,
        validate_every=updates,
        engine=engine,
        device="cpu",
        progress=False,
    )
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        rc.fit(network, task, rc.AtSpike(0.9), training)
    finally:
        torch.backends.cudnn.allow_tf32 = before
    return network, rc.evaluate(network, task, rc.Threshold(0.9), engine="stepwise")


def test_the_cpu_engine_ends_at_the_accuracy_of_the_reference():
    (one, expected), (other, got) = (trained(engine, 40, 24, 12, double=True) for engine in ("reference", "cpu"))
    assert expected.accuracy == got.accuracy > 0.8 and expected.mean_steps == got.mean_steps < 11
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)


@pytest.mark.skipif(torch.cuda.is_available(), reason="here Triton would compile, not interpret")
def test_the_triton_engine_makes_the_updates_of_the_reference():
    (one, _), (other, _) = (trained(engine, 4, 17, 6, double=False) for engine in ("reference", "triton"))
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
