"""Altered digits are still digits: as dark as before, and the same for the same random numbers."""

import torch

from rankcode.tasks.digit_augmentation import DigitAugmentation


def strokes(rows=64):
    """Images of bytes with a slanted bar in the middle, its edges grey as those of ink are."""
    images = torch.zeros(rows, 28, 28, dtype=torch.uint8)
    for line in range(6, 22):
        left = 8 + line // 3
        images[:, line, left : left + 6] = torch.tensor([60, 220, 255, 255, 220, 60], dtype=torch.uint8)
    return images


def altered(images, seed=0, **settings):
    return DigitAugmentation(**settings)(images, None, torch.Generator().manual_seed(seed))


def test_without_changes_nothing_changes():
    images = torch.randint(0, 2, (5, 28, 28)).mul(255).to(torch.uint8)
    assert torch.equal(altered(images, turn=0, scale=0, slant=0, shift=0, contrast=1), images)


def test_rows_are_altered_each_in_its_own_way_and_again_the_same_way():
    images = strokes()
    first, again, other = altered(images), altered(images), altered(images, seed=1)
    assert first.dtype == torch.uint8 and first.shape == images.shape
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert all(not torch.equal(first[0], row) for row in first[1:])


def test_there_is_as_much_ink_as_before_and_as_dark():
    images = strokes()
    ink, before = altered(images).float(), images.float()
    assert abs(ink.mean() / before.mean() - 1) < 0.1
    assert abs((ink > 200).float().mean() / (before > 200).float().mean() - 1) < 0.15
    plain = altered(images, contrast=1).float()
    assert (plain > 200).float().mean() < (ink > 200).float().mean()


def test_a_shift_moves_the_ink_by_at_most_so_many_pixels():
    images = strokes()
    moved = altered(images, turn=0, scale=0, slant=0, shift=3, contrast=1).float()
    place = torch.arange(28.0)

    def centre(batch):
        return torch.stack([(batch.sum(axis) @ place) / batch.sum((1, 2)) for axis in (1, 2)], 1)

    away = centre(moved) - centre(images.float())
    assert away.abs().max() < 3.01 and away.abs().max() > 2 and away.min() < -1 < 1 < away.max()
