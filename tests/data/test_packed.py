"""Rows of different lengths without padding, and rows that are altered before they are trained on."""

from itertools import chain, islice

import numpy as np
import pytest
import torch

import rankcode as rc
from rankcode.data.sources import Arrays, Packed, Source, as_source

LENGTHS = [3, 1, 7, 2, 5, 7, 1, 4, 6, 2]


def packed(lengths=LENGTHS, gap=0, **options):
    """Row r holds 100·r + 1, 100·r + 2, … and its negative; between rows lie `gap` steps that are nobody's."""
    values, offsets, at = [], [], 0
    for row, length in enumerate(lengths):
        own = 100.0 * row + torch.arange(1, length + 1)
        values += [torch.stack([own, -own], 1), torch.full((gap, 2), torch.nan)]
        offsets.append(at)
        at += length + gap
    labels = [row % 3 for row in range(len(lengths))]
    return Packed(torch.cat(values), torch.tensor(offsets), torch.tensor(lengths), labels, **options)


def listed(batch):
    """The rows of a batch, each as long as it is."""
    rows = [row[:length] for row, length in zip(batch.inputs, batch.lengths.tolist(), strict=True)]
    assert all(row[:, 1].equal(-row[:, 0]) for row in rows)
    return [row[:, 0].tolist() for row in rows]


def row(number):
    return [100.0 * number + step for step in range(1, LENGTHS[number] + 1)]


def take(source, count, rows=4, seed=0, start=0):
    return list(islice(source.batches(rows, seed, "cpu", start), count))


def equal(one, other):
    return all((a is None and b is None) or a.equal(b) for a, b in zip(one, other, strict=True))


# Rows without padding


@pytest.mark.parametrize("gap", [0, 2])
@pytest.mark.parametrize("rows", [1, 3, 4, 10, 25])
def test_a_scan_gives_every_row_its_own_values_in_order(rows, gap):
    source = packed(gap=gap)
    assert isinstance(source, Source) and as_source(source) is source and source.size == 10
    batches = list(source.scan(rows, "cpu"))
    assert list(chain(*map(listed, batches))) == [row(number) for number in range(10)]
    assert torch.cat([batch.labels for batch in batches]).tolist() == [number % 3 for number in range(10)]
    assert torch.cat([batch.lengths for batch in batches]).tolist() == LENGTHS


def test_a_batch_is_as_long_as_its_longest_row():
    shapes = [batch.inputs.shape for batch in packed().scan(2, "cpu")]
    assert shapes == [(2, 3, 2), (2, 7, 2), (2, 7, 2), (2, 4, 2), (2, 6, 2)]


@pytest.mark.parametrize("rows", [1, 3, 4, 10, 25])
def test_an_epoch_holds_every_row_once_with_its_label(rows):
    source = packed()
    size = source.epoch(rows)
    assert size == len(range(0, 10, rows))
    orders = []
    for epoch in range(3):
        batches = take(source, size, rows, start=epoch * size)
        found = list(chain(*map(listed, batches)))
        numbers = [int(values[0] // 100) for values in found]
        assert found == [row(number) for number in numbers] and sorted(numbers) == list(range(10))
        assert torch.cat([batch.labels for batch in batches]).tolist() == [number % 3 for number in numbers]
        orders.append(numbers)
    assert orders[0] != orders[1] != orders[2]


@pytest.mark.parametrize("rows", [1, 3, 4, 10, 25])
def test_batches_from_a_number_on_are_those_reached_by_going_there(rows):
    source = packed()
    every = take(source, 12, rows, seed=3)
    for start in (0, 1, 2, 3, 5, 7, 11):
        again = take(packed(), 12 - start, rows, seed=3, start=start)
        assert all(equal(a, b) for a, b in zip(again, every[start:], strict=True))


def test_the_order_is_the_seeds():
    one, same, other = ([listed(batch) for batch in take(packed(), 6, seed=seed)] for seed in (1, 1, 2))
    assert one == same != other


def test_padded_steps_reach_no_result():
    """A batch of rows of all lengths gives what each row gives alone, and so does a batch padded with rubbish."""
    torch.manual_seed(0)
    network = rc.Network(rc.cells.LSTM(2, 6), 3).double()
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.8)
    source = packed(encode=lambda stored, lengths: ((stored / 500).sin().double(), lengths))
    rule = rc.Threshold(0.6)
    inputs, _, lengths = next(source.scan(10, "cpu"))
    together = rc.decide(network, inputs, lengths, rule)
    assert 0 < together.fired.sum() < 10 and len(together.steps.unique()) > 2
    alone = [rc.decide(network, *batch[::2], rule) for batch in source.scan(1, "cpu")]
    assert together.steps.tolist() == [int(each.steps) for each in alone]
    assert together.label.tolist() == [int(each.label) for each in alone]
    torch.testing.assert_close(together.probabilities, torch.cat([each.probabilities for each in alone]))
    rubbish = inputs.masked_fill((torch.arange(7) >= lengths[:, None])[..., None], torch.nan)
    for one, other in zip(together, rc.decide(network, rubbish, lengths, rule), strict=True):
        assert one.equal(other)
    assert rc.evaluate(network, source, rule, batch_size=3).mean_steps == together.steps.double().mean()


def test_images_can_be_packed_too():
    values = torch.arange(5 * 2 * 3).reshape(5, 2, 3)
    batch = next(Packed(values, [0, 4], [4, 1], [1, 0]).scan(2, "cpu"))
    assert batch.inputs[0].equal(values[:4]) and batch.inputs[1, :1].equal(values[4:])


def test_values_may_lie_in_a_file(tmp_path):
    values = np.arange(24, dtype=np.uint8).reshape(12, 2)
    values.tofile(tmp_path / "values")
    mapped = torch.from_file(str(tmp_path / "values"), shared=False, size=24, dtype=torch.uint8).view(12, 2)
    batch = next(Packed(mapped, [5, 0], [7, 5], [0, 1]).scan(2, "cpu"))
    assert batch.inputs[0].tolist() == values[5:].tolist() and batch.inputs[1, :5].tolist() == values[:5].tolist()
    assert batch.inputs.dtype == torch.uint8


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"labels": []}, "no rows"),
        ({"labels": [0, 1, 2]}, "offsets must have shape [3]"),
        ({"labels": [0.5, 1.0]}, "labels must be integers"),
        ({"lengths": [2]}, "lengths must have shape [2]"),
        ({"offsets": [0.0, 2.0]}, "offsets must be integers"),
    ],
)
def test_columns_that_do_not_go_together(change, says):
    columns = {"offsets": [0, 2], "lengths": [2, 1], "labels": [0, 1]} | change
    with pytest.raises(ValueError) as error:
        Packed(torch.zeros(3, 1), **columns)
    assert says in str(error.value) and "\n" not in str(error.value)


# Rows that are altered


def noisy(stored, lengths, generator):
    return stored + torch.rand(stored.shape, generator=generator)


def numbered(**options):
    inputs = torch.arange(10, dtype=torch.float32)[:, None, None].expand(10, 7, 2).contiguous()
    return Arrays(inputs, torch.arange(10) % 3, torch.tensor(LENGTHS), **options)


@pytest.mark.parametrize("make", [packed, numbered])
def test_only_what_is_trained_on_is_altered(make):
    plain, altered = make(), make(augment=noisy)
    for one, other in zip(plain.scan(4, "cpu"), altered.scan(4, "cpu"), strict=True):
        assert equal(one, other)
    for one, other in zip(take(plain, 6), take(altered, 6), strict=True):
        assert one.labels.equal(other.labels) and one.lengths.equal(other.lengths)
        difference = other.inputs - one.inputs
        assert (difference >= 0).all() and (difference < 1.01).all() and len(difference.unique()) > 4


@pytest.mark.parametrize("make", [packed, numbered])
def test_how_a_batch_is_altered_depends_on_seed_and_number_alone(make):
    every = take(make(augment=noisy), 9, seed=5)
    torch.manual_seed(99)
    for start in (0, 1, 2, 3, 4, 7):
        again = take(make(augment=noisy), 9 - start, seed=5, start=start)
        assert all(equal(a, b) for a, b in zip(again, every[start:], strict=True))
    assert not any(equal(a, b) for a, b in zip(take(make(augment=noisy), 9, seed=6), every, strict=True))


def test_every_batch_is_altered_in_its_own_way():
    drawn = []

    def spy(stored, lengths, generator):
        drawn.append(torch.rand(3, generator=generator).tolist())
        return stored

    take(packed(augment=spy), 9, seed=0)
    take(packed(augment=spy), 9, seed=1)
    assert len({tuple(each) for each in drawn}) == 18


def test_the_global_seed_has_no_say_and_is_left_alone():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    take(packed(augment=noisy), 3)
    assert torch.rand(3).equal(expected)


def test_rows_are_altered_as_they_are_stored_and_then_encoded():
    def double(stored, lengths, generator):
        assert stored.dtype == torch.float32 and lengths.tolist() == [LENGTHS[int(r[0, 0] // 100)] for r in stored]
        return 2 * stored

    def add_one(stored, lengths):
        return stored + 1, lengths - 0

    source = packed(encode=add_one, augment=double)
    for batch in take(source, 3):
        for values, length in zip(batch.inputs[..., 0], batch.lengths, strict=True):
            number = int(values[0] // 200)
            assert values[:length].tolist() == [2 * value + 1 for value in row(number)]
    assert next(source.scan(1, "cpu")).inputs[0, :, 0].tolist() == [value + 1 for value in row(0)]
