"""What temporal digits and temporal MNIST have in common: every pixel spikes once, the darkest first."""

import pytest
import torch

from latency_steps import expected_step
from rankcode.front_ends import LatencyCode
from rankcode.tasks import TASKS, TemporalDigits, TemporalMNIST


@pytest.mark.parametrize("steps", [10, 4])
@pytest.mark.parametrize(
    ("task", "levels", "shape"),
    [(TemporalDigits, 16, (1, 8, 8)), (TemporalMNIST, 255, (1, 28, 28))],
    ids=["digits", "MNIST"],
)
def test_every_pixel_spikes_once_at_its_exact_step(task, levels, shape, steps):
    pixels = shape[1] * shape[2]
    image = torch.arange(pixels) % (levels + 1)
    for flat in (False, True):
        made = task(steps=steps, flat=flat)
        assert made.input_shape == ((pixels,) if flat else shape)
        assert made.front_end == LatencyCode(levels, steps, made.input_shape)
        inputs, lengths = made.front_end(image[None])
        assert inputs.shape == (1, steps, *made.input_shape) and lengths is None
        assert (inputs.sum(1) == 1).all() and ((inputs == 0) | (inputs == 1)).all()
        spikes = inputs.flatten(2).argmax(1)[0] + 1
        assert spikes.tolist() == [expected_step(value, levels, steps) for value in image.tolist()]


def test_names_and_settings():
    for task in (TemporalDigits, TemporalMNIST):
        assert TASKS[task.name] is task and task.label_names == tuple("0123456789") and task.num_classes == 10
        with pytest.raises(ValueError, match="steps must be at least 1, not 0"):
            task(steps=0)
