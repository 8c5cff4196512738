"""Training runs of a fully spiking network on temporal MNIST (the paper's appendix on SNNs; the network of Wu et al.
2018).

From the paper: two convolutions of 32 channels and 3 × 3 kernels with padding, 128 dense neurons, threshold 0.5, decay
0.2, surrogate width 0.5, batches of 400, Adam with learning rate 0.001, cross-entropy of the output membranes at the
first output spike or at the last step. The paper does not give pooling, epochs or β: here spikes are averaged over
2 × 2 neurons between the convolutions, training takes 30 epochs, and β is 0.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rankcode import cells
from rankcode.experiments.reproduction import TRAINING, Reproduction, Setting
from rankcode.experiments.trainings import mnist as mnist_trainings
from rankcode.network import Network
from rankcode.objectives import AtEnd, AtSpike, Objective

THETA = 0.5


def network(place: Reproduction) -> Network:
    channels, height, width = mnist_trainings.task(place).input_shape
    maps, dense, image = place.pick(4, 8, 32), place.pick(16, 64, 128), (height, width)
    settings: dict[str, Any] = {"threshold": THETA, "decay": 0.2, "surrogate_width": 0.5}
    return Network(
        cells.Stack(
            cells.ConvLIF(channels, maps, image, **settings),
            cells.ConvLIF(maps, maps, image, pool_size=2, **settings),
            cells.LIF(maps * (height // 2) * (width // 2), dense, **settings),
            cells.LIF(dense, 10, emits="membranes", **settings),
        ),
        outputs=10,
    )


def settings(place: Reproduction) -> dict[str, Setting]:
    """The runs by name."""
    training = replace(
        TRAINING,
        epochs=place.pick(2, 0.25, 30),
        batch_size=place.pick(64, 100, 400),
        learning_rate=place.pick(0.01, 0.003, 0.001),
        validate_every=place.pick(6, 20, None),
        first_spike_threshold=THETA,
        finish_with="last",
    )
    objectives: dict[str, Objective] = {"rank-coded": AtSpike(THETA), "conventional": AtEnd()}
    digits = mnist_trainings.task(place)
    return {
        name: Setting(f"mnist-spiking-{name}", digits, lambda: network(place), objective, training)
        for name, objective in objectives.items()
    }
