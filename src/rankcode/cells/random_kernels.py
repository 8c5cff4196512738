"""Random convolution kernels, pooled while the sequence is read: features that need no training.

The kernels are those of MiniRocket (Dempster et al. 2021): 9 taps, three of them 2 and six −1, at dilations 1, 2, 4, ….
Half of them read the inputs and half the differences between one step and the next, as in MultiRocket (Tan et al.
2022). Each is causal, and its values are pooled over the steps read so far: the share of steps at which it was above
each of its biases, and its largest and smallest value. So the features after step t describe the first t steps, and
every step costs the same.

Inputs should be on a common scale, as `Standardise` gives them. They are rounded to multiples of 2⁻¹⁰ and clipped to
±64, so every sum is exact in float32: kernels have exactly the same values a step at a time or many steps at once, on
any device and in any order of summation.
"""

from __future__ import annotations

import math
from itertools import combinations
from typing import NamedTuple

import torch
from torch import Tensor, nn

from rankcode.state import map_state

TAPS = 9
PLACES = tuple(combinations(range(TAPS), 3))  # of the three taps of 2: one kernel for each
RESOLUTION, LARGEST = 2.0**10, 64.0
MAX_CHANNELS = 9  # of one kernel: sums over 9 channels and 9 taps stay below 2¹³, 23 bits at this resolution
MAX_COUNTS, MAX_VALUES = 2**18, 2**19  # computed at once: they stay in the processor's cache
GPU_FACTOR = 2**7  # a GPU computes this many times as much at once, to be kept busy
MAX_DRAWN = 2**18  # inputs of the kernels whose biases are drawn at once
MAX_DILATIONS = 11  # the longest kernels span 8,192 steps, which bounds the memory of a stream
MIN_PREFIX = 4  # steps, or a tenth of the longest row: biases are drawn from at least these
ABOVE_BIAS = 1e-4  # less than 1 / RESOLUTION: a value equal to the bias does not count as above it
GOLDEN_RATIO = (1 + 5**0.5) / 2


class RandomKernelsState(NamedTuple):
    past: Tensor  # [rows, 8 · largest dilation, 2, channels], the last inputs and differences
    last: Tensor  # [rows, channels], the last input
    step: Tensor  # [rows] int64, steps read
    counts: Tensor  # [rows, biases, kernels], at how many steps a kernel was above a bias
    maximum: Tensor  # [rows, kernels on inputs]
    minimum: Tensor  # [rows, kernels on inputs]


class RandomKernels(nn.Module):
    """84 kernels on the inputs and 84 on their differences at each of `num_dilations` dilations, each with `num_biases`
    biases. `draw` chooses the channels and biases from training data. The features are the square roots of the shares
    of steps above each bias, then the maximum and minimum of each kernel on the inputs."""

    biases: Tensor
    reads: Tensor
    difference_scale: Tensor

    def __init__(self, input_size: int, num_dilations: int, num_biases: int):
        super().__init__()
        if min(input_size, num_dilations, num_biases) < 1:
            given = f"{input_size}, {num_dilations}, {num_biases}"
            raise ValueError(f"input_size, num_dilations and num_biases must be at least 1, not {given}")
        self.input_size, self.num_dilations, self.num_biases = input_size, num_dilations, num_biases
        self.num_kernels = 2 * num_dilations * len(PLACES)
        self.input_shape, self.output_shape = (input_size,), (self.num_kernels * (num_biases + 1),)
        self.register_buffer("biases", torch.zeros(num_biases, self.num_kernels))
        reads = (torch.arange(input_size) < MAX_CHANNELS).expand(self.num_kernels, input_size)
        self.register_buffer("reads", reads.clone())  # bool [kernels, channels]
        self.register_buffer("difference_scale", torch.ones(input_size))
        self._prepared: tuple | None = None

    @classmethod
    def for_length(cls, input_size: int, steps: int, num_counts: int) -> RandomKernels:
        """A cell whose longest kernel just fits into `steps` steps, with about `num_counts` counts."""
        num_dilations = min(MAX_DILATIONS, 1 + int(math.log2(max(1, (steps - 1) // (TAPS - 1)))))
        return cls(input_size, num_dilations, max(1, round(num_counts / (2 * num_dilations * len(PLACES)))))

    @property
    def group_sizes(self) -> tuple[int, ...]:
        """How many features are counts on inputs, counts on differences, and extremes."""
        half = self.num_kernels // 2 * self.num_biases
        return half, half, self.num_kernels

    @property
    def reach(self) -> int:
        """How many steps back the longest kernel reads."""
        return (TAPS - 1) * 2 ** (self.num_dilations - 1)

    def initial_state(self, batch_size: int) -> RandomKernelsState:
        like = self.biases
        return RandomKernelsState(
            like.new_zeros(batch_size, self.reach, 2, self.input_size),
            like.new_zeros(batch_size, self.input_size),
            torch.zeros(batch_size, dtype=torch.long, device=like.device),
            like.new_zeros(batch_size, self.num_biases, self.num_kernels),
            like.new_full((batch_size, self.num_kernels // 2), -math.inf),
            like.new_full((batch_size, self.num_kernels // 2), math.inf),
        )

    def forward(self, x_t: Tensor, state: RandomKernelsState) -> tuple[Tensor, RandomKernelsState]:
        return self.forward_block(x_t[:, None], state)

    @torch.no_grad()
    def forward_block(self, inputs: Tensor, state: RandomKernelsState) -> tuple[Tensor, RandomKernelsState]:
        """Several steps [rows, steps, channels] at once: the features after the last of them, and the state."""
        size = max(1, _scaled(MAX_COUNTS, inputs) // self.biases.numel())
        if torch.compiler.is_exporting() or len(inputs) <= size:  # an exported graph takes any number of rows
            state = self._read(inputs, state)
        else:
            parts = [slice(begin, begin + size) for begin in range(0, len(inputs), size)]
            states = [self._read(inputs[part], map_state(lambda whole, at=part: whole[at], state)) for part in parts]
            state = map_state(lambda *each: torch.cat(each), *states)
        return self._features(state), state

    def _read(self, inputs: Tensor, state: RandomKernelsState) -> RandomKernelsState:
        length, on_inputs = inputs.shape[1], slice(self.num_kernels // 2)
        known = torch.cat([state.past, self._signals(inputs, state)], 1)
        counts, maximum, minimum = state.counts.clone(), state.maximum, state.minimum
        above = torch.empty_like(counts)
        first_steps = self._kernels[1]
        exporting = torch.compiler.is_exporting()
        size = length if exporting else max(1, _scaled(MAX_VALUES, inputs) // (len(inputs) * self.num_kernels))
        for begin in range(0, length, size):
            end = min(begin + size, length)
            values = self._values(known[:, begin : self.reach + end])
            steps = state.step[:, None] + torch.arange(begin, end, device=inputs.device)
            lowest = values[:, :, on_inputs]
            if exporting or not bool((steps >= self.reach).all()):
                waiting = steps[:, :, None] < first_steps
                lowest = lowest.masked_fill(waiting[:, :, on_inputs], math.inf)
                values = values.masked_fill_(waiting, -math.inf)
            maximum = maximum.maximum(values[:, :, on_inputs].amax(1))
            minimum = minimum.minimum(lowest.amin(1))
            for now in values.unbind(1):
                counts += torch.gt(now[:, None], self.biases, out=above)
        last = inputs[:, -1].to(counts.dtype)
        return RandomKernelsState(known[:, length:].clone(), last, state.step + length, counts, maximum, minimum)

    def _signals(self, inputs: Tensor, state: RandomKernelsState) -> Tensor:
        """Inputs and scaled differences, rounded, [rows, steps, 2, channels]; the first difference of a row is 0."""
        inputs = inputs.to(state.last.dtype)
        before = torch.where(state.step[:, None] == 0, inputs[:, 0], state.last)
        differences = torch.diff(inputs, dim=1, prepend=before[:, None]) / self.difference_scale
        return rounded(torch.stack([inputs, differences], 2))

    def _values(self, known: Tensor) -> Tensor:
        """The value of every kernel after each step but the first `reach`, [rows, steps, kernels]."""
        rows, steps = known.shape[0], known.shape[1] - self.reach
        weights, _, taps = self._kernels
        places = taps + torch.arange(steps, device=known.device)[:, None]  # [dilations, steps, taps]
        found = known[:, places.flatten()].view(rows, self.num_dilations, steps, TAPS, 2, self.input_size)
        found = found.permute(4, 1, 0, 2, 3, 5).reshape(2 * self.num_dilations, rows * steps, TAPS * self.input_size)
        return torch.bmm(found, weights).transpose(0, 1).reshape(rows, steps, self.num_kernels)

    @property
    def _kernels(self) -> tuple[Tensor, Tensor, Tensor]:
        """Derived from the settings and `reads`: the weights of the kernels [2 · dilations, taps · channels, 84], the
        first step that each kernel counts [kernels], from 0, and where its taps are [dilations, 1, taps]. Every second
        kernel waits until all of its taps have an input."""
        if torch.compiler.is_exporting() and self._prepared is not None:  # traced tensors have no address
            return self._prepared[1]
        device = self.biases.device
        key = (self.reads.data_ptr(), self.reads._version, device, self.biases.dtype)
        if self._prepared is None or self._prepared[0] != key:
            kernels = torch.full((len(PLACES), TAPS), -1.0).scatter_(1, torch.tensor(PLACES), 2.0).to(self.biases)
            reads = self.reads.view(2 * self.num_dilations, len(PLACES), 1, self.input_size)
            weights = (kernels[:, :, None] * reads).flatten(2).mT.contiguous()
            number, place = torch.arange(self.num_dilations)[:, None], torch.arange(len(PLACES))
            first_steps = ((number + place) % 2 * (TAPS - 1) * 2**number).flatten().repeat(2)
            taps = self.reach + (torch.arange(TAPS) - TAPS + 1) * 2 ** number[:, :, None]
            self._prepared = (key, (weights, first_steps.to(device), taps.to(device)))
        return self._prepared[1]

    def _features(self, state: RandomKernelsState) -> Tensor:
        steps = (state.step[:, None] - self._kernels[1]).clamp(min=1)
        counts = (state.counts / steps[:, None]).sqrt()
        extremes = torch.cat([state.maximum, state.minimum], 1)
        extremes = extremes.where(extremes.isfinite(), 0.0)
        return torch.cat([*(part.flatten(1) for part in counts.chunk(2, 2)), extremes], 1)

    @torch.no_grad()
    def draw(self, inputs: Tensor, lengths: Tensor, weights: Tensor, generator: torch.Generator) -> None:
        """Choose the channels and biases of the kernels from training rows [rows, steps, channels] with these weights.

        The biases of a kernel are quantiles of its values on the first steps of one row. A row of weight 2 counts as
        two rows, and the order of the rows does not matter.
        """
        real = torch.arange(inputs.shape[1], device=inputs.device) < lengths[:, None]
        inputs = inputs.where(real[:, :, None], 0.0)
        differences = inputs.diff(dim=1) * real[:, 1:, None]
        square = (differences.double().square().sum(1) * weights[:, None]).sum(0)
        scale = (square / (weights * (lengths - 1)).sum().clamp(min=1)).sqrt()
        self.difference_scale.copy_(scale.where(scale > 1e-6, 1.0))

        def uniform(*shape: int) -> Tensor:
            return torch.rand(shape, generator=generator, dtype=torch.float64)

        size = (uniform(self.num_kernels) * math.log2(min(self.input_size, MAX_CHANNELS) + 1)).exp2().long()
        self.reads.copy_(uniform(self.num_kernels, self.input_size).argsort(1).argsort(1) < size[:, None])
        # Rows in an order that depends on their values alone.
        projection = uniform(inputs.shape[1] * inputs.shape[2]).to(inputs.device)
        order = (inputs.double().flatten(1) @ projection).cpu().argsort()
        lengths, weights = lengths.cpu(), weights.cpu()
        shares = weights.double()[order].cumsum(0)
        rows = order[torch.searchsorted(shares, uniform(self.num_kernels) * shares[-1]).clamp(max=len(order) - 1)]
        shortest = lengths[rows].clamp(max=max(MIN_PREFIX, round(0.1 * int(lengths.max()))))
        prefixes = shortest + (uniform(self.num_kernels) * (lengths[rows] - shortest + 1)).long()
        levels = (torch.arange(1, self.biases.numel() + 1) * GOLDEN_RATIO % 1).view(self.num_kernels, -1)

        step = torch.arange(inputs.shape[1], device=inputs.device)
        at_once = max(1, _scaled(MAX_DRAWN, inputs) // (inputs.shape[1] * self.input_size))
        for part in torch.arange(self.num_kernels).split(at_once):
            state = self.initial_state(len(part))
            known = torch.cat([state.past, self._signals(inputs[rows[part]], state)], 1)
            values = self._own_values(known, part)
            real = step < prefixes[part, None].to(step.device)
            counts = real & (step >= self._kernels[1][part, None])
            counts |= real & ~counts.any(1, keepdim=True)
            values = values.masked_fill(~counts, math.inf).sort(1).values
            place = levels[part].to(values) * (counts.sum(1, keepdim=True) - 1)
            low, high = (values.gather(1, each.long()) for each in (place.floor(), place.ceil()))
            self.biases[:, part] = (low + (high - low) * place.frac()).T + ABOVE_BIAS

    def _own_values(self, known: Tensor, kernels: Tensor) -> Tensor:
        """The values [kernels, steps] of some kernels, each on a row of its own."""
        weights, _, taps = self._kernels
        kind, place = kernels // len(PLACES), kernels % len(PLACES)
        places = (
            taps[kind % self.num_dilations] + torch.arange(known.shape[1] - self.reach, device=taps.device)[:, None]
        )
        row = torch.arange(len(kernels), device=taps.device)[:, None, None]
        signal = (kind // self.num_dilations).to(taps.device)[:, None, None]
        found = known[row, places, signal]  # [kernels, steps, taps, channels]
        return torch.einsum("ksi,ki->ks", found.flatten(2), weights[kind, :, place])


def _scaled(limit: int, inputs: Tensor) -> int:
    return limit * GPU_FACTOR if inputs.is_cuda else limit


def rounded(values: Tensor) -> Tensor:
    return (values * RESOLUTION).round_().div_(RESOLUTION).clamp_(-LARGEST, LARGEST)
