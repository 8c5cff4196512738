"""A small network whose rows fire at different steps, every objective, and a rule of a user's own."""

import torch

import rankcode as rc

LENGTHS = torch.tensor([7, 7, 4, 1, 6, 7, 3, 5, 7, 2])
LABELS = torch.arange(10) % 3
OBJECTIVES = {
    "AtSpike": rc.AtSpike(threshold=0.6, beta=0.2),
    "UntilSpike": rc.UntilSpike(threshold=0.6, beta=0.2),
    "AtEnd": rc.AtEnd(beta=0.2),
    "EveryStep": rc.EveryStep(),
}


class Later(rc.Threshold):
    """A user's threshold that does not hold before the fourth step."""

    def __call__(self, activations, probabilities, step, state):
        fired, state = super().__call__(activations, probabilities, step, state)
        return fired & (torch.as_tensor(step) >= 4), state


def firing_network(cell=None):
    """A network some of whose rows fire, at several steps, at θ = 0.6, and its inputs."""
    torch.manual_seed(1)
    network = rc.Network(cell or rc.cells.LSTM(3, 4), 3).double()
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.normal_(std=0.0 if "bias" in name else 2.0 if "readout" in name else 1.0)
    return network, torch.randn(10, 7, 3, dtype=torch.float64)


def loss_and_gradients(objective, network, inputs, engine):
    """Gradients of the parameters that have one."""
    network.zero_grad(set_to_none=True)
    loss, decision = objective(network, inputs, LABELS, LENGTHS, engine=engine)
    loss.backward()
    return loss.detach(), decision, [part.grad for part in network.parameters() if part.grad is not None]


def assert_mixed(decision):
    """Some rows fire before their end, at several steps, and some never do."""
    assert len(set(decision.steps[decision.fired].tolist())) >= 3
    assert (decision.fired & (decision.steps < LENGTHS)).sum() >= 3
    assert (~decision.fired).any()
