"""Leaky integrate-and-fire neurons and their surrogate gradient (Wu et al. 2018; the paper's appendix E).

    u_t = decay · u_{t−1} · (1 − o_{t−1}) + synapses(x_t),    o_t = [u_t > threshold]

The surrogate of the step's derivative is a rectangle of half-width `surrogate_width` and area 1 around the threshold.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn


class LIFState(NamedTuple):
    membrane: Tensor  # [rows, hidden_size…], before reset
    spike: Tensor  # [rows, hidden_size…], 0 or 1; a neuron that spiked is reset to 0 before its next step


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
    """The neurons; subclasses define their synapses."""

    synapses: nn.Module
    output_shape: tuple[int, ...]

    def __init__(self, threshold: float, decay: float, surrogate_width: float, emits: Literal["spikes", "membranes"]):
        super().__init__()
        if emits not in ("spikes", "membranes"):
            raise ValueError(f"emits must be 'spikes' or 'membranes', not {emits!r}")
        if not 0 <= decay <= 1:
            raise ValueError(
                f"decay, the share of a membrane that is kept at each step, must be within 0…1, not {decay}"
            )
        self.threshold, self.decay, self.surrogate_width, self.emits = threshold, decay, surrogate_width, emits

    def initial_state(self, batch_size: int) -> LIFState:
        zeros = next(self.parameters()).new_zeros(batch_size, *self.output_shape)
        return LIFState(zeros, zeros)

    def forward(self, x_t: Tensor, state: LIFState) -> tuple[Tensor, LIFState]:
        current = self.synapses(x_t).to(state.membrane.dtype)
        membrane = self.decay * state.membrane * (1 - state.spike) + current
        spike = _Spike.apply(membrane, self.threshold, self.surrogate_width)
        return (spike if self.emits == "spikes" else membrane), LIFState(membrane, spike)


class LIF(_LIF):
    """Fully connected neurons. As the output layer: `emits="membranes"`, and `readout=nn.Identity()`."""

    flattens_inputs = True

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        threshold: float = 0.5,
        decay: float = 0.2,
        surrogate_width: float = 0.5,
        emits: Literal["spikes", "membranes"] = "spikes",
    ):
        super().__init__(threshold, decay, surrogate_width, emits)
        self.input_size, self.hidden_size = input_size, hidden_size
        self.input_shape, self.output_shape = (input_size,), (hidden_size,)
        self.synapses = nn.Sequential(nn.Flatten(), nn.Linear(input_size, hidden_size))


class ConvLIF(_LIF):
    """Convolutional neurons on images [rows, in_channels, height, width]; `pool_size` averages their input first."""

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        image_size: tuple[int, int],
        kernel_size: int = 3,
        pool_size: int = 1,
        threshold: float = 0.5,
        decay: float = 0.2,
        surrogate_width: float = 0.5,
        emits: Literal["spikes", "membranes"] = "spikes",
    ):
        super().__init__(threshold, decay, surrogate_width, emits)
        if kernel_size < 1 or kernel_size % 2 == 0:
            raise ValueError(f"kernel_size must be odd so that maps keep their size, not {kernel_size}")
        self.in_channels, self.hidden_channels = in_channels, hidden_channels
        self.image_size, self.kernel_size, self.pool_size = tuple(image_size), kernel_size, pool_size
        self.input_shape = (in_channels, *self.image_size)
        self.output_shape = (hidden_channels, image_size[0] // pool_size, image_size[1] // pool_size)
        convolution = nn.Conv2d(in_channels, hidden_channels, kernel_size, padding=kernel_size // 2)
        self.synapses = convolution if pool_size == 1 else nn.Sequential(nn.AvgPool2d(pool_size), convolution)
