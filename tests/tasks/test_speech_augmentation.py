"""Altered frames: what each alteration does by itself, and that nothing enters a row that is not its own."""

import math

import pytest
import torch

from rankcode.front_ends.audio import LOWEST, UNIT, power_of
from rankcode.tasks.speech_augmentation import SpeechAugmentation

MEAN = tuple(-6.0 + 0.1 * band for band in range(20))
NOTHING = {"shift": 0, "gain": 0.0, "band_gain": 0.0, "noise_share": 0.0, "noise_volume": 0.0, "band_mask": 0}
NOTHING |= {"time_mask": 0}


def only(noise=None, **strengths):
    """An augmentation that does this and nothing else."""
    return SpeechAugmentation(MEAN, noise, **NOTHING | strengths)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def stored(rows=8, frames=101, seed=0):
    """Frames of bytes, none of which stands for a mean."""
    return torch.randint(120, 200, (rows, frames, 20), dtype=torch.uint8, generator=seeded(seed))


def numbered(rows=200, frames=60):
    """Frames that carry their number."""
    return torch.arange(100, 100 + frames, dtype=torch.uint8)[None, :, None].expand(rows, frames, 20).contiguous()


def numbers(values):
    """The numbers of altered frames [rows, frames]; every band must have the same."""
    found = ((values - LOWEST) / UNIT).round().long() - 100
    assert found.eq(found[..., :1]).all()
    return found[..., 0]


NOISE = stored(1, 500, seed=9)[0]


# All together


def test_the_generator_decides():
    augmentation, frames = SpeechAugmentation(MEAN, NOISE), stored()
    torch.manual_seed(0)
    first = augmentation(frames, None, seeded(1))
    torch.manual_seed(1)
    assert augmentation(frames, None, seeded(1)).equal(first), "it depends on the global seed"
    assert not augmentation(frames, None, seeded(2)).equal(first)


def test_rows_are_altered_each_in_its_own_way():
    frames = stored(1).expand(30, -1, -1)
    altered = SpeechAugmentation(MEAN, NOISE)(frames, None, seeded())
    assert altered.shape == frames.shape and altered.is_floating_point()
    assert all(not altered[k].equal(altered[j]) for k in range(30) for j in range(k))


@pytest.mark.parametrize("noise", [None, NOISE])
def test_without_strength_it_does_nothing(noise):
    frames = torch.randint(256, (8, 101, 20), dtype=torch.uint8, generator=seeded())
    assert only(noise)(frames, None, seeded()).equal(power_of(frames))
    assert only(noise)(frames, torch.full((8,), 101), seeded()).equal(power_of(frames))
    lengths = torch.tensor([1, 2, 30, 50, 77, 99, 100, 101])
    altered = only(noise)(frames, lengths, seeded())
    inside = torch.arange(101) < lengths[:, None]
    assert altered[inside].equal(power_of(frames)[inside])


@pytest.mark.parametrize("frames", [1, 2, 21, 101])
@pytest.mark.parametrize("value", [0, 128, 255])
def test_values_are_finite_and_not_below_silence(frames, value):
    constant = torch.full((50, frames, 20), value, dtype=torch.uint8)
    for noise in (None, torch.zeros(300, 20, dtype=torch.uint8), torch.full((300, 20), 255, dtype=torch.uint8)):
        altered = SpeechAugmentation(MEAN, noise)(constant, torch.randint(1, frames + 1, (50,)), seeded())
        assert altered.shape == constant.shape and altered.isfinite().all()
        assert altered.min() >= power_of(torch.zeros(1, dtype=torch.uint8))


@pytest.mark.parametrize("strengths", [{"shift": 10}, {"shift": 100}, {}], ids=["shift", "far", "all"])
def test_frames_beyond_the_end_of_a_row_never_enter_it(strengths):
    lengths = torch.arange(1, 61).repeat(5)
    inside = torch.arange(60) < lengths[:, None]
    frames, silent = stored(300, 60), stored(300, 60)
    frames[~inside], silent[~inside] = 255, 0
    augmentation = only(**strengths) if strengths else SpeechAugmentation(MEAN, NOISE)
    one, other = (augmentation(each, lengths, seeded())[inside] for each in (frames, silent))
    assert one.equal(other)
    if strengths:
        assert one.max() < power_of(torch.tensor([255], dtype=torch.uint8)) - 1


# Each by itself


@pytest.mark.parametrize("frames", [60, 40])
def test_a_shift_moves_all_frames_of_a_row_by_up_to_ten(frames):
    """The frames that a shift leaves empty are mirrored at the beginning and at the end of the row."""
    moved = numbers(only(shift=10)(numbered(), torch.full((200,), frames), seeded()))[:, :frames]
    shifts = moved[:, 20] - 20
    assert set(shifts.tolist()) == set(range(-10, 11))
    for row, shift in zip(moved, shifts.tolist(), strict=True):
        expected = [abs(number + shift) for number in range(frames)]
        assert row.tolist() == [number if number < frames else 2 * (frames - 1) - number for number in expected]


def test_loudness_changes_by_one_number_a_row():
    frames = stored(500)
    change = only(gain=2.0)(frames, None, seeded()) - power_of(frames)
    by_row = change.mean((1, 2))
    torch.testing.assert_close(change, by_row[:, None, None].expand_as(change), rtol=0, atol=1e-5)
    assert by_row.min() < -1.9 and by_row.max() > 1.9 and by_row.abs().max() <= 2
    assert abs(by_row.mean()) < 0.2


def test_colour_changes_by_one_number_a_band():
    frames = stored(500)
    change = only(band_gain=0.5)(frames, None, seeded()) - power_of(frames)
    by_band = change.mean(1)
    torch.testing.assert_close(change, by_band[:, None].expand_as(change), rtol=0, atol=1e-5)
    assert by_band.std().item() == pytest.approx(0.5, rel=0.05) and abs(by_band.mean()) < 0.05


def test_noise_is_a_stretch_of_the_recording_at_some_volume():
    noise = torch.arange(50, 250, dtype=torch.uint8)[:, None].expand(200, 20)
    silence = torch.zeros(400, 30, 20, dtype=torch.uint8)
    noisy = only(noise, noise_share=1.0, noise_volume=0.2)(silence, None, seeded()).double()
    added = (noisy.exp() - math.exp(LOWEST)).clamp(min=1e-300).log()  # powers add
    loud = added[:, 0, 0] > LOWEST + 3
    assert loud.sum() > 100
    rise = added[loud].diff(dim=1)
    torch.testing.assert_close(rise, torch.full_like(rise, UNIT), rtol=0, atol=1e-3)
    volume = (added[loud].amax((1, 2)) - power_of(noise[-1:, :1]).item()) / 2
    assert volume.max() <= math.log(0.2), "louder than 0.2 of how it was recorded"
    assert len(volume.unique()) == len(volume)


def test_noise_is_added_to_a_share_of_the_rows():
    frames = stored(2000, 5)
    noisy = only(NOISE, noise_share=0.8, noise_volume=1.0)(frames, None, seeded())
    share = (~noisy.isclose(power_of(frames)).all((1, 2))).double().mean().item()
    assert share == pytest.approx(0.8, abs=0.03)


def test_without_noise_or_with_too_little_none_is_added():
    frames = stored(20, 30)
    for noise in (None, NOISE[:10]):
        assert only(noise, noise_share=1.0, noise_volume=0.2)(frames, None, seeded()).equal(power_of(frames))


def test_masked_bands_are_the_mean():
    frames = stored(300, 30)
    altered = only(band_mask=4)(frames, None, seeded())
    changed = altered != power_of(frames)
    assert altered.eq(torch.tensor(MEAN))[changed].all()
    assert changed.eq(changed[:, :1]).all(), "a band is masked all along or not at all"
    bands = changed[:, 0]
    assert set(bands.sum(1).tolist()) == {0, 1, 2, 3, 4} and bands.any(0).all()
    assert bands.int().diff(dim=1).clamp(min=0).sum(1).add(bands[:, 0]).max() == 1, "in one stretch"


def test_masked_frames_are_the_mean():
    frames = stored(2000, 101)
    altered = only(time_mask=12)(frames, None, seeded())
    changed = altered != power_of(frames)
    assert altered.eq(torch.tensor(MEAN))[changed].all()
    assert changed.eq(changed[..., :1]).all(), "a frame is masked in all bands or in none"
    masked = changed[..., 0]
    assert set(masked.sum(1).tolist()) == set(range(25)) and masked.any(0).all()
    assert masked.int().diff(dim=1).clamp(min=0).sum(1).add(masked[:, 0]).max() == 2, "in two stretches"
