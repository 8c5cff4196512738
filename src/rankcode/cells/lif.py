"""Leaky integrate-and-fire neurons and their surrogate gradient (Wu et al. 2018; the paper's appendix E).

    u_t = decay · u_{t−1} · (1 − o_{t−1}) + synapses(x_t),    o_t = [u_t > threshold]

The derivative of the step is taken as a rectangle of half-width `width` and area 1 about the threshold.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn


class LIFState(NamedTuple):
    membrane: Tensor  # [rows, units…], before reset
    spike: Tensor  # [rows, units…], 0 or 1; a neuron that spiked starts its next step from 0


class _Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx, membrane: Tensor, threshold: float, width: float) -> Tensor:
        ctx.save_for_backward(membrane)
        ctx.threshold, ctx.width = threshold, width
        return (membrane > threshold).to(membrane.dtype)

    @staticmethod
    def backward(ctx, *grads: Tensor):
        (grad,), (membrane,) = grads, ctx.saved_tensors
        near = (membrane - ctx.threshold).abs() < ctx.width
        return grad * near.to(grad.dtype) / (2 * ctx.width), None, None


class _LIF(nn.Module):
    """The neuron; a subclass says what its synapses are."""

    synapses: nn.Module
    features: tuple[int, ...]

    def __init__(self, threshold: float, decay: float, width: float, emits: Literal["spikes", "membranes"]):
        super().__init__()
        if emits not in ("spikes", "membranes"):
            raise ValueError(f"emits must be 'spikes' or 'membranes', not {emits!r}")
        if not 0 <= decay <= 1:
            raise ValueError(f"decay, what a membrane keeps from step to step, must be within 0…1, not {decay}")
        self.threshold, self.decay, self.width, self.emits = threshold, decay, width, emits

    def settings(self) -> dict:
        return {"threshold": self.threshold, "decay": self.decay, "width": self.width, "emits": self.emits}

    def initial_state(self, rows: int) -> LIFState:
        zeros = next(self.parameters()).new_zeros(rows, *self.features)
        return LIFState(zeros, zeros)

    def forward(self, x_t: Tensor, state: LIFState) -> tuple[Tensor, LIFState]:
        current = self.synapses(x_t).to(state.membrane.dtype)
        membrane = self.decay * state.membrane * (1 - state.spike) + current
        spike = _Spike.apply(membrane, self.threshold, self.width)
        return (spike if self.emits == "spikes" else membrane), LIFState(membrane, spike)


class LIF(_LIF):
    """Fully connected neurons. As the output layer: `emits="membranes"`, and `readout=nn.Identity()`."""

    def __init__(
        self,
        inputs: int,
        units: int,
        threshold: float = 0.5,
        decay: float = 0.2,
        width: float = 0.5,
        emits: Literal["spikes", "membranes"] = "spikes",
    ):
        super().__init__(threshold, decay, width, emits)
        self.inputs, self.units, self.features = inputs, units, (units,)
        self.synapses = nn.Sequential(nn.Flatten(), nn.Linear(inputs, units))

    def settings(self) -> dict:
        return {"inputs": self.inputs, "units": self.units, **super().settings()}


class ConvLIF(_LIF):
    """Convolutional neurons on images [rows, inputs, height, width]; `pool` averages their input first."""

    def __init__(
        self,
        inputs: int,
        units: int,
        image: tuple[int, int],
        kernel: int = 3,
        pool: int = 1,
        threshold: float = 0.5,
        decay: float = 0.2,
        width: float = 0.5,
        emits: Literal["spikes", "membranes"] = "spikes",
    ):
        super().__init__(threshold, decay, width, emits)
        if kernel < 1 or kernel % 2 == 0:
            raise ValueError(f"the kernel must be odd so that maps keep their size, not {kernel}")
        self.inputs, self.units, self.image, self.kernel, self.pool = inputs, units, tuple(image), kernel, pool
        self.features = (units, image[0] // pool, image[1] // pool)
        convolution = nn.Conv2d(inputs, units, kernel, padding=kernel // 2)
        self.synapses = convolution if pool == 1 else nn.Sequential(nn.AvgPool2d(pool), convolution)

    def settings(self) -> dict:
        shape = {"inputs": self.inputs, "units": self.units, "image": self.image, "kernel": self.kernel}
        return {**shape, "pool": self.pool, **super().settings()}
