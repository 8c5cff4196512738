import pytest
import torch

from latency_steps import expected_step
from rankcode.front_ends import LatencyCode, latency_code


@pytest.mark.parametrize(("levels", "steps"), [(16, 10), (255, 10), (255, 7), (16, 1), (1, 4)])
def test_every_value_spikes_once_at_its_step(levels, steps):
    values = torch.arange(levels + 1)
    coded = latency_code(values[None].to(torch.uint8), levels, steps)
    assert coded.shape == (1, steps, levels + 1) and coded.dtype == torch.float32
    assert torch.equal(coded.sum(1), torch.ones(1, levels + 1))
    assert (coded[0].argmax(0) + 1).tolist() == [expected_step(value, levels, steps) for value in values.tolist()]


def test_images_that_cannot_be_coded_are_named():
    with pytest.raises(ValueError, match="integers"):
        latency_code(torch.rand(2, 4), levels=16, steps=10)
    for value in (17, -1):
        with pytest.raises(ValueError, match="0…16"):
            latency_code(torch.tensor([[value]]), levels=16, steps=10)


# The front end


@pytest.mark.parametrize("stored", [(3, 12), (3, 4, 3), (3, 1, 4, 3), (3, 12, 1)])
@pytest.mark.parametrize("shape", [(12,), (1, 4, 3)])
def test_images_are_given_the_shape_of_a_step(shape, stored):
    torch.manual_seed(0)
    images = torch.randint(256, stored, dtype=torch.uint8)
    front_end = LatencyCode(255, 7, shape)
    inputs, lengths = front_end(images, None)
    assert front_end.output_shape == shape and inputs.shape == (3, 7, *shape)
    assert lengths is None  # all are equally long, in steps
    fires = inputs.flatten(2).argmax(1) + 1
    assert fires.tolist() == [[expected_step(v, 255, 7) for v in image] for image in images.flatten(1).tolist()]


@pytest.mark.parametrize("shape", [(2, 8, 8), (2, 785), (5, 28), (28, 28)])
def test_images_of_another_size_are_named(shape):
    with pytest.raises(ValueError) as error:
        LatencyCode(255, 10, (1, 28, 28))(torch.zeros(shape, dtype=torch.uint8))
    assert "28" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("settings", [(0, 10, (8,)), (16, 0, (8,)), (16, 10, ()), (16, 10, (8, 0))])
def test_a_latency_code_of_nothing(settings):
    with pytest.raises(ValueError, match="must be positive"):
        LatencyCode(*settings)
