"""The cell for images that appear over time sees what has appeared, and nothing else."""

import pytest
import torch
from step_by_step import step_by_step

import rankcode as rc
from rankcode.cells import Glimpses
from rankcode.front_ends.latency_code import latency_code
from rankcode.saving.description import describe


def test_at_the_last_step_it_has_seen_the_whole_image():
    images = torch.randint(0, 256, (3, 8, 8), dtype=torch.uint8)
    inputs = latency_code(images, 255, 10)[:, :, None]
    cell = Glimpses((8, 8), 10, channels=8, hidden_size=5).eval()
    _, state = step_by_step(cell, inputs)
    intensity = (10 * images.int() + 254).div(255, rounding_mode="floor").clamp(min=1) / 10  # ⌈10 v⌉ tenths
    assert torch.allclose(state.image[:, 0], intensity.float(), atol=1e-6)
    assert torch.allclose(state.time, torch.ones(3, 1, 1, 1))


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"image_size": (1, 8, 8)}, "a height and a width"),
        ({"image_size": (3, 8)}, "at least 4"),
        ({"channels": 0}, "multiple of 8"),
        ({"channels": 12}, "multiple of 8"),
        ({"num_steps": 0}, "at least 1"),
        ({"num_steps": 2.5}, "num_steps and hidden_size"),
        ({"hidden_size": 0}, "at least 1"),
        ({"dropout": 1.5}, "dropout"),
    ],
)
def test_settings_that_make_no_sense(settings, message):
    with pytest.raises(ValueError, match=message):
        Glimpses(**{"image_size": (8, 8), "num_steps": 10, "channels": 8, **settings})


def test_images_of_another_size_are_named():
    network = rc.Network(Glimpses((8, 8), 10, channels=8), 3)
    for shape in ((4, 10, 64), (4, 10, 8, 8), (4, 10, 3, 8, 8), (4, 10, 1, 9, 9), (4, 10, 1, 1, 1)):
        with pytest.raises(ValueError, match=r"the network reads \[1, 8, 8\]"):
            rc.decide(network, torch.zeros(shape))


def test_saved_and_loaded_it_is_the_same_and_ready_for_use(tmp_path):
    network = rc.Network(Glimpses((8, 8), 10, channels=8), 3)
    rc.save(network, tmp_path / "network.safetensors")
    loaded = rc.load(tmp_path / "network.safetensors")
    assert not loaded.training and describe(loaded) == describe(network)
    inputs = torch.rand(5, 10, 1, 8, 8)
    assert torch.equal(rc.decide(loaded, inputs).probabilities, rc.decide(network, inputs).probabilities)


def test_many_steps_at_once_are_those_one_by_one():
    cell = Glimpses((8, 8), 10, channels=8, hidden_size=5).eval()
    inputs = torch.rand(3, 10, 1, 8, 8)
    alone = together = cell.initial_state(3)
    for begin, end in ((0, 1), (1, 4), (4, 10)):
        for step in range(begin, end):
            expected, alone = cell(inputs[:, step], alone)
        found, together = cell.forward_block(inputs[:, begin:end], together)
        assert torch.allclose(found, expected, atol=1e-6)
        assert all(torch.allclose(*parts, atol=1e-6) for parts in zip(together, alone, strict=True))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_block_is_read_in_the_precision_of_the_network(dtype):
    torch.manual_seed(0)
    cell = Glimpses((8, 8), 7, channels=8, hidden_size=5).to(dtype).eval()
    inputs, state = torch.rand(3, 4, 1, 8, 8, dtype=dtype), cell.initial_state(3)
    features, after = cell.forward_block(inputs, state)
    for x_t in inputs.unbind(1):
        expected, state = cell(x_t, state)
    assert features.dtype == after.image.dtype == dtype
    if dtype == torch.float64:
        torch.testing.assert_close(features, expected, rtol=1e-12, atol=1e-12)
