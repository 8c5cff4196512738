import math

import pytest
import torch

from rankcode.front_ends import Standardise

NAN = math.nan


def rows(*values):
    """[rows, steps, 1] from lists of numbers."""
    return torch.tensor(values)[..., None]


def test_mean_and_deviation_are_of_all_steps_of_all_rows_for_each_channel():
    one, other = torch.tensor([[1.0, 10.0], [3.0, 10.0]]), torch.tensor([[8.0, 40.0]])
    found = Standardise.of([one, other])
    assert found.mean == pytest.approx((4, 20))
    assert found.std == pytest.approx((math.sqrt((9 + 1 + 16) / 3), math.sqrt(200)))
    assert found.output_shape == (2,)


def test_missing_values_do_not_count():
    values = torch.tensor([[1.0, NAN], [NAN, NAN], [3.0, 5.0]])
    found = Standardise.of([values])
    assert found.mean == (2, 5)
    assert found.std == (1, 1)  # of the second channel one value is there, and it never changes


@pytest.mark.parametrize("value", [0.0, 0.1, -7.3, 1e8])
def test_a_channel_that_never_changes_keeps_its_scale(value):
    constant = [torch.full((steps, 1), value, dtype=torch.float64) for steps in (1000, 7)]
    found = Standardise.of(constant)
    assert found.std == (1,)
    inputs, _ = found(torch.tensor([[[value], [value + 3]]]))
    assert inputs.flatten().tolist() == pytest.approx([0, 3], abs=1e-6 * (1 + abs(value)))


def test_a_channel_that_is_never_there_is_zero():
    values = torch.full((4, 1), NAN)
    found = Standardise.of([values])
    assert (found.mean, found.std) == ((0,), (1,))
    assert found(values[None])[0].tolist() == [[[0]] * 4]


def test_a_missing_value_repeats_the_last_one_and_at_the_beginning_is_the_mean():
    inputs, _ = Standardise((10.0,), (2.0,))(rows([NAN, NAN, 12.0, NAN, NAN, 6.0, NAN], [NAN] * 7, [8.0] + [NAN] * 6))
    assert inputs[..., 0].tolist() == [[0, 0, 1, 1, 1, -2, -2], [0] * 7, [-1] * 7]
    stored = torch.tensor([[[1.0, NAN], [NAN, 5.0], [NAN, NAN], [4.0, NAN]]])  # each channel by itself
    assert Standardise((0.0, 5.0), (1.0, 2.0))(stored)[0].tolist() == [[[1, 0], [1, 0], [1, 0], [4, 0]]]


def test_nothing_looks_ahead():
    torch.manual_seed(0)
    stored = torch.randn(20, 12, 3)
    stored[torch.rand(20, 12, 3) < 0.4] = NAN
    front_end = Standardise.of(list(stored))
    whole, _ = front_end(stored)
    assert whole.isfinite().all()
    for steps in range(1, 13):
        assert front_end(stored[:, :steps])[0].equal(whole[:, :steps])


def test_lengths_go_through_and_padding_does_no_harm():
    front_end, lengths = Standardise((3.0,), (2.0,)), torch.tensor([2, 3])
    inputs, given = front_end(rows([5.0, NAN, math.inf], [1.0, 3.0, 5.0]), lengths)
    assert given is lengths
    assert inputs[0, :2].tolist() == [[1], [1]] and inputs[1].tolist() == [[-1], [0], [1]]
    assert front_end(rows([5.0]))[1] is None


@pytest.mark.parametrize(
    ("given", "gives"),
    [
        (torch.int16, torch.float32),
        (torch.float16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_what_is_stored_may_be_any_number(given, gives):
    inputs, _ = Standardise((1.0,), (4.0,))(rows([3, 1, 0]).to(given))
    assert inputs.dtype == gives and inputs.flatten().tolist() == [0.5, 0, -0.25]


@pytest.mark.parametrize("shape", [(4, 5), (4, 5, 3), (4, 5, 2, 1), (2,)])
def test_series_of_another_shape_are_named(shape):
    with pytest.raises(ValueError) as error:
        Standardise((0.0, 0.0), (1.0, 1.0))(torch.zeros(shape))
    if len(shape) == 3:
        assert str(error.value) == "the series have 3 values a step, and the network reads 2"
    else:
        assert str(error.value) == f"series must have shape [rows, steps, 2], not {list(shape)}"


def test_the_number_of_threads_does_not_matter():
    threads = torch.get_num_threads()
    found = set()
    try:
        for count in (1, 2, 3, 4):
            torch.set_num_threads(count)
            found |= {Standardise.of([torch.randn(180_000, 1, generator=torch.Generator().manual_seed(7))])}
    finally:
        torch.set_num_threads(threads)
    assert len(found) == 1


@pytest.mark.parametrize("std", [math.nan, 0.0, -1.0, math.inf])
def test_a_scale_that_gives_no_numbers_is_refused(std):
    with pytest.raises(ValueError, match="mean must be finite and std finite and positive"):
        Standardise((0.0, 0.0), (1.0, std))


@pytest.mark.parametrize(("mean", "std"), [((0.0,), (1.0, 1.0)), ((0.0, 0.0), (1.0,)), ((), ())])
def test_a_mean_and_a_deviation_for_each_channel(mean, std):
    with pytest.raises(ValueError, match="one entry for each channel"):
        Standardise(mean, std)


@pytest.mark.parametrize("parts", [1, 2, 7])
def test_blocks_of_steps_have_the_scale_of_the_whole(parts):
    torch.manual_seed(0)
    values = 1e3 + torch.randn(700, 3)
    values[torch.rand(700, 3) < 0.3] = NAN
    values[:200, 1] = NAN
    whole, found = Standardise.of([values]), Standardise.of(values.chunk(parts))
    assert found.mean == pytest.approx(whole.mean, rel=1e-13) and found.std == pytest.approx(whole.std, rel=1e-10)
    assert whole.mean == pytest.approx(values.double().nanmean(0).tolist(), rel=1e-12)
