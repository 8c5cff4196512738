"""The engines on a GPU give what they give on the CPU."""

import pytest
import torch

import rankcode as rc

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


@pytest.mark.parametrize("engine", ["reference", "stepwise", "whole"])
@pytest.mark.parametrize("objective", [rc.AtSpike(0.8, beta=0.1), rc.UntilSpike(0.8), rc.AtEnd(), rc.EveryStep()])
def test_a_gpu_gives_what_the_cpu_gives(engine, objective):
    torch.manual_seed(0)
    network = rc.Network(rc.cells.LSTM(3, 8), outputs=4).double()
    with torch.no_grad():
        network.readout.weight *= 10
    inputs, labels, lengths = torch.randn(12, 9, 3).double(), torch.randint(4, (12,)), torch.randint(1, 10, (12,))
    results = []
    for device in ("cpu", "cuda"):
        network.to(device).zero_grad()
        batch = (part.to(device) for part in (inputs, labels, lengths))
        loss, decision = objective(network, *batch, engine=engine)
        loss.backward()
        results.append((loss.detach().cpu(), decision, [p.grad.cpu().clone() for p in network.parameters()]))
    (loss, decision, gradients), (gpu_loss, gpu_decision, gpu_gradients) = results
    assert torch.equal(decision.steps, gpu_decision.steps.cpu()) and torch.equal(
        decision.label, gpu_decision.label.cpu()
    )
    torch.testing.assert_close(gpu_loss, loss, rtol=1e-10, atol=0)
    for gradient, gpu_gradient in zip(gradients, gpu_gradients, strict=True):
        torch.testing.assert_close(gpu_gradient, gradient, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("objective", [rc.AtSpike(0.8, beta=0.1), rc.UntilSpike(0.8), rc.AtEnd(), rc.EveryStep()])
def test_triton_gives_what_the_reference_gives(objective, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch.manual_seed(0)
    network = rc.Network(rc.cells.LSTM(3, 8), outputs=4)
    with torch.no_grad():
        network.readout.weight *= 10
    inputs, labels, lengths = torch.randn(20, 40, 3), torch.randint(4, (20,)), torch.randint(1, 41, (20,))
    results = []
    for device, engine in (("cpu", "reference"), ("cuda", "triton")):
        network.to(device).zero_grad()
        batch = (part.to(device) for part in (inputs, labels, lengths))
        loss, decision = objective(network, *batch, engine=engine)
        loss.backward()
        results.append(
            (loss.detach().cpu(), decision.steps.cpu(), [p.grad.cpu().clone() for p in network.parameters()])
        )
    (loss, steps, gradients), (gpu_loss, gpu_steps, gpu_gradients) = results
    assert torch.equal(steps, gpu_steps)
    torch.testing.assert_close(gpu_loss, loss, rtol=1e-5, atol=0)
    for gradient, gpu_gradient in zip(gradients, gpu_gradients, strict=True):
        torch.testing.assert_close(gpu_gradient, gradient, rtol=1e-3, atol=1e-6)
