"""Random kernels: the features of a prefix are those of the definition, however it is read."""

import itertools
import math

import numpy as np
import pytest
import torch
from step_by_step import step_by_step

from rankcode.cells import RandomKernels


def drawn(channels=1, steps=40, rows=6, num_counts=400, seed=0):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rows, steps, channels, generator=generator)
    lengths = torch.randint((steps + 1) // 2, steps + 1, (rows,), generator=generator)
    cell = RandomKernels.for_length(channels, steps, num_counts)
    cell.draw(inputs, lengths, torch.ones(rows), generator)
    return cell, inputs, lengths


def features_by_definition(cell, prefix):
    """Kernel by kernel and step by step, as the docstring has it, in float64."""
    x = np.clip(np.round(prefix.numpy() * 1024) / 1024, -64, 64).astype(np.float64)
    raw = np.diff(prefix.numpy(), axis=0, prepend=prefix.numpy()[:1]) / cell.difference_scale.numpy()
    signals = [x, np.clip(np.round(raw * 1024) / 1024, -64, 64).astype(np.float64)]
    counts, extremes = [], []
    kernel = 0
    for signal in signals:
        for number in range(cell.num_dilations):
            for place, places in enumerate(itertools.combinations(range(9), 3)):
                weights = np.where(np.isin(np.arange(9), places), 2.0, -1.0)
                own = signal[:, cell.reads[kernel].numpy()].sum(1)
                values = []
                for t in range(len(own)):
                    if (number + place) % 2 and t < 8 * 2**number:
                        continue
                    taps = [own[t - 2**number * (8 - j)] if t >= 2**number * (8 - j) else 0.0 for j in range(9)]
                    values.append(float(weights @ taps))
                biases = cell.biases[:, kernel].numpy()
                counts.append([math.sqrt(np.mean([v > b for v in values])) if values else 0.0 for b in biases])
                extremes.append((max(values, default=0.0), min(values, default=0.0)))
                kernel += 1
    half = kernel // 2
    counts = np.array(counts)  # [kernels, biases]
    extremes = np.array(extremes)[:half]
    return np.concatenate([counts[:half].T.ravel(), counts[half:].T.ravel(), extremes.T.ravel()])


@pytest.mark.parametrize(("channels", "steps"), [(1, 40), (3, 20), (11, 12), (1, 1), (2, 5)])
def test_features_are_those_of_the_definition(channels, steps):
    cell, inputs, _ = drawn(channels, steps)
    features, _ = step_by_step(cell, inputs[:1])
    for t in (0, steps // 2, steps - 1):
        expected = features_by_definition(cell, inputs[0, : t + 1])
        np.testing.assert_allclose(features[0, t].numpy(), expected, atol=1e-6)


@pytest.mark.parametrize("sizes", [[40], [1, 39], [7, 13, 20], [39, 1]])
def test_blocks_give_exactly_what_single_steps_give(sizes):
    cell, inputs, _ = drawn(channels=2, rows=50)  # more rows than are read at once
    features, state = step_by_step(cell, inputs)
    block_state = cell.initial_state(50)
    for part in inputs.split(sizes, 1):
        block_features, block_state = cell.forward_block(part, block_state)
    assert torch.equal(block_features, features[:, -1])
    assert all(torch.equal(one, other) for one, other in zip(block_state, state, strict=True))


def test_rows_may_be_at_different_steps():
    cell, inputs, _ = drawn(rows=2)
    _, ahead = cell.forward_block(inputs[:1, :17], cell.initial_state(1))
    together = type(ahead)(*(torch.cat(parts) for parts in zip(ahead, cell.initial_state(1), strict=True)))
    features, _ = cell(torch.stack([inputs[0, 17], inputs[1, 0]]), together)
    assert torch.equal(features[:1], cell.forward_block(inputs[:1, :18], cell.initial_state(1))[0])
    assert torch.equal(features[1:], cell(inputs[1:, 0], cell.initial_state(1))[0])


def test_a_weight_of_two_is_two_rows_and_order_does_not_matter():
    cell, inputs, lengths = drawn()
    weights = torch.tensor([1.0, 2.0, 1.0, 3.0, 1.0, 1.0])
    cell.draw(inputs, lengths, weights, torch.Generator().manual_seed(5))
    again = RandomKernels(1, cell.num_dilations, cell.num_biases)
    index = torch.tensor([5, 3, 1, 3, 0, 2, 3, 4, 1])
    again.draw(inputs[index], lengths[index], torch.ones(9), torch.Generator().manual_seed(5))
    assert torch.equal(again.reads, cell.reads)
    torch.testing.assert_close(again.biases, cell.biases)


def test_the_longest_kernel_fits_and_constant_inputs_are_no_trouble():
    reach = [RandomKernels.for_length(1, steps, 600).reach for steps in (1, 9, 17, 32, 33, 500)]
    assert reach == [8, 8, 16, 16, 32, 256]
    cell = RandomKernels.for_length(2, 30, 300)
    inputs = torch.zeros(3, 30, 2)
    cell.draw(inputs, torch.tensor([30, 30, 2]), torch.ones(3), torch.Generator())
    features, _ = cell.forward_block(inputs, cell.initial_state(3))
    assert features.isfinite().all()


def test_wrong_sizes_are_refused():
    with pytest.raises(ValueError, match="at least 1, not 0, 1, 1"):
        RandomKernels(0, 1, 1)
