"""How the conventional network for digits of the web page is trained.

`RANKCODE_DATA=data python -m rankcode.experiments.conventional_digits OUT.safetensors`, about a quarter of an hour on
one core. The cell and the augmentation are those of the rank-coded network (`mnist-own` in trainings/mnist.py), with
fewer epochs. The loss is that of the last step alone, when the digit is complete.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn

from rankcode.cells import Glimpses
from rankcode.network import Network
from rankcode.objectives import AtEnd
from rankcode.rules import Never
from rankcode.saving.model_file import save
from rankcode.tasks import TemporalMNIST
from rankcode.training.config import Training
from rankcode.training.loop import fit

TRAINING = Training(
    epochs=10,
    batch_size=256,
    optimizer="adamw",
    learning_rate=0.002,
    weight_decay=0.01,
    ema_decay=0.999,
    select="accuracy",
    precision="bfloat16",
)


class LastStep(nn.Module):
    """A readout of the last step, so that no features of earlier steps are computed."""

    checkpoints = (10,)

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.linear = linear

    def forward(self, features: Tensor, step: int | Tensor) -> Tensor:
        return self.linear(features)


def main(path: str) -> None:
    torch.manual_seed(TRAINING.seed)
    cell = Glimpses((28, 28), 10)
    linear = nn.Linear(cell.hidden_size, 10)
    network = Network(cell, 10, LastStep(linear))
    fit(network, TemporalMNIST(augment=True), AtEnd(), TRAINING)
    trained = Network(cell, 10, linear)
    trained.front_end, trained.label_names, trained.rule = network.front_end, network.label_names, Never()
    save(trained, path)


if __name__ == "__main__":
    main(*sys.argv[1:])
