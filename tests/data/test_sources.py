"""Sources of batches: rows in memory, of one shape or packed without padding; generated rows; data loaders."""

import gc
import weakref
from itertools import chain, islice
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)

import rankcode as rc
from rankcode.data.sources import (
    Arrays,
    Batch,
    Generated,
    Loader,
    Packed,
    Source,
    as_source,
    copy_on,
    seeded,
    split_of,
    steps_of,
)

LENGTHS = [3, 1, 7, 2, 5, 7, 1, 4, 6, 2]


def row(number):
    """The values of a row: 100 · number + 1, 100 · number + 2, …"""
    return [100.0 * number + step for step in range(1, LENGTHS[number] + 1)]


def packed(gap=0, **options):
    """The rows one after the other, with a second feature of the opposite sign; `gap` steps of no row between them."""
    values, offsets, at = [], [], 0
    for number, length in enumerate(LENGTHS):
        own = torch.tensor(row(number))
        values += [torch.stack([own, -own], 1), torch.full((gap, 2), torch.nan)]
        offsets.append(at)
        at += length + gap
    return Packed(torch.cat(values), torch.tensor(offsets), LENGTHS, torch.arange(10) % 3, **options)


def padded(**options):
    """The same rows, padded to one length."""
    inputs = torch.full((10, 7, 2), 5.0)
    for number, length in enumerate(LENGTHS):
        own = torch.tensor(row(number))
        inputs[number, :length] = torch.stack([own, -own], 1)
    return Arrays(inputs, torch.arange(10) % 3, torch.tensor(LENGTHS), **options)


def numbered():
    """Inputs [10, 3, 1], labels and lengths of rows that carry their number."""
    inputs = torch.arange(10.0)[:, None, None].expand(10, 3, 1).contiguous()
    return inputs, torch.arange(10) % 4, torch.arange(10) % 3 + 1


def numbers(batch):
    """The numbers of the rows in a batch, whose values, labels and lengths must be their own."""
    found = [int(first // 100) for first in batch.inputs[:, 0, 0].tolist()]
    rows = [values[:length] for values, length in zip(batch.inputs, batch.lengths.tolist(), strict=True)]
    assert [values[:, 0].tolist() for values in rows] == [row(number) for number in found]
    assert all(values[:, 1].equal(-values[:, 0]) for values in rows)
    assert batch.labels.tolist() == [number % 3 for number in found]
    return found


def equal(one, other):
    return all((a is None and b is None) or a.equal(b) for a, b in zip(one, other, strict=True))


def take(source, count, rows=4, seed=0, start=0):
    return list(islice(source.batches(rows, seed, "cpu", start), count))


def drawn(rows, generator):
    inputs = torch.randn(rows, 5, 2, generator=generator, device=generator.device)
    return Batch(inputs, (inputs.sum((1, 2)) > 0).long())


def noisy(stored, lengths, generator):
    return stored + torch.rand(stored.shape, generator=generator)


both = pytest.mark.parametrize("make", [packed, padded])
sizes = pytest.mark.parametrize("rows", [1, 3, 10, 25])

# Rows in memory


@both
@sizes
def test_a_scan_gives_every_row_once_in_order(make, rows):
    batches = list(make().scan(rows, "cpu"))
    assert list(chain(*map(numbers, batches))) == list(range(10))
    assert all(len(batch.labels) <= rows for batch in batches)


@both
@sizes
def test_an_epoch_holds_every_row_once_in_a_new_order(make, rows):
    source = make()
    size = source.epoch(rows)
    assert size == len(range(0, 10, rows))
    batches = take(source, 3 * size, rows)
    orders = [list(chain(*map(numbers, batches[k * size : (k + 1) * size]))) for k in range(3)]
    assert all(sorted(order) == list(range(10)) for order in orders)
    assert orders[0] != orders[1] != orders[2]


@both
@sizes
def test_a_batch_depends_on_seed_and_number_alone(make, rows):
    every = take(make(augment=noisy), 12, rows, seed=3)
    torch.manual_seed(99)
    state = torch.get_rng_state()
    for start in (0, 1, 2, 3, 5, 11):
        again = take(make(augment=noisy), 12 - start, rows, seed=3, start=start)
        assert all(equal(a, b) for a, b in zip(again, every[start:], strict=True))
    assert not any(equal(a, b) for a, b in zip(take(make(augment=noisy), 12, rows, seed=4), every, strict=True))
    assert torch.get_rng_state().equal(state)


def test_numpy_and_small_integers():
    inputs, labels, lengths = (part.numpy() for part in numbered())
    batch = next(Arrays(inputs, labels.astype(np.uint8), lengths.astype(np.int32)).scan(10, "cpu"))
    assert batch.labels.dtype == batch.lengths.dtype == torch.int64
    assert batch.labels.tolist() == labels.tolist() and batch.lengths.tolist() == lengths.tolist()
    assert next(Arrays(inputs, labels).scan(10, "cpu")).lengths is None


ZEROS, THREE = torch.zeros(3, 3, 1), [0, 1, 2]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Arrays(ZEROS[:0], torch.zeros(0)), "no rows"),
        (lambda: Arrays(ZEROS, [0, 1]), r"labels must have shape \[3\]"),
        (lambda: Arrays(ZEROS, torch.zeros(3, 2).long()), r"labels must have shape \[3\]"),
        (lambda: Arrays(ZEROS, THREE, [1, 2]), r"lengths must have shape \[3\]"),
        (lambda: Arrays(ZEROS, [0.5, 1.0, 0.0]), "labels must be integers"),
        (lambda: Arrays(ZEROS, THREE, [1.5, 2.0, 3.0]), "lengths must be integers"),
        (lambda: Packed(ZEROS, [], [], []), "no rows"),
        (lambda: Packed(ZEROS, [0, 2], [2, 1], THREE), r"offsets must have shape \[3\]"),
        (lambda: Packed(ZEROS, [0, 2], [2], [0, 1]), r"lengths must have shape \[2\]"),
        (lambda: Packed(ZEROS, [0.0, 2.0], [2, 1], [0, 1]), "offsets must be integers"),
    ],
)
def test_columns_that_do_not_go_together(make, says):
    with pytest.raises(ValueError, match=says) as error:
        make()
    assert "\n" not in str(error.value)


# Rows without padding


def test_steps_between_rows_are_of_no_row():
    assert list(chain(*map(numbers, packed(gap=2).scan(4, "cpu")))) == list(range(10))


def test_a_batch_is_as_long_as_its_longest_row():
    shapes = [batch.inputs.shape for batch in packed().scan(2, "cpu")]
    assert shapes == [(2, 3, 2), (2, 7, 2), (2, 7, 2), (2, 4, 2), (2, 6, 2)]


def test_padded_steps_reach_no_result():
    """A batch of rows of all lengths gives what each row gives alone, and so does a batch padded with NaN."""
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
    with_nan = inputs.masked_fill((torch.arange(7) >= lengths[:, None])[..., None], torch.nan)
    for one, other in zip(together, rc.decide(network, with_nan, lengths, rule), strict=True):
        assert one.equal(other)
    assert rc.evaluate(network, source, rule, batch_size=3).mean_steps == together.steps.double().mean()


# Augmentation


@both
def test_only_training_rows_are_augmented(make):
    plain, augmented = make(), make(augment=noisy)
    for one, other in zip(plain.scan(4, "cpu"), augmented.scan(4, "cpu"), strict=True):
        assert equal(one, other)
    for one, other in zip(take(plain, 6), take(augmented, 6), strict=True):
        assert one.labels.equal(other.labels) and one.lengths.equal(other.lengths)
        difference = other.inputs - one.inputs
        assert (difference >= 0).all() and (difference < 1.01).all() and len(difference.unique()) > 4


def test_every_batch_is_augmented_differently():
    drawn = []

    def spy(stored, lengths, generator):
        drawn.append(torch.rand(3, generator=generator).tolist())
        return stored

    take(packed(augment=spy), 9, seed=0)
    take(packed(augment=spy), 9, seed=1)
    assert len({tuple(each) for each in drawn}) == 18


def test_rows_are_augmented_as_they_are_stored_and_then_encoded():
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


# Rows that are generated


def test_a_generated_batch_depends_on_seed_and_number_alone():
    source = Generated(drawn)
    every = take(source, 6, rows=8, seed=3)
    torch.manual_seed(99)
    for start in (0, 2, 5):
        again = take(Generated(drawn), 6 - start, rows=8, seed=3, start=start)
        assert all(equal(a, b) for a, b in zip(again, every[start:], strict=True))
    different = [batch.inputs for batch in every] + [take(source, 1, rows=8, seed=4)[0].inputs]
    assert all(not a.equal(b) for k, a in enumerate(different) for b in different[:k])
    assert source.epoch(8) is None
    with pytest.raises(ValueError, match=r"endless.*size"):
        next(source.scan(4, "cpu"))


def test_a_generated_scan_does_not_depend_on_the_batch_size(monkeypatch):
    monkeypatch.setattr(Generated, "CHUNK", 7)
    source = Generated(drawn, size=24, seed=5)
    whole = torch.cat([batch.inputs for batch in source.scan(24, "cpu")])
    assert len(whole) == 24 and len(whole.unique()) == whole.numel()
    for rows in (1, 5, 7, 100):
        assert torch.cat([batch.inputs for batch in source.scan(rows, "cpu")]).equal(whole)
    shorter = Generated(drawn, size=14, seed=5)
    assert torch.cat([batch.inputs for batch in shorter.scan(5, "cpu")]).equal(whole[:14])
    other = Generated(drawn, size=24, seed=6)
    assert not torch.cat([batch.inputs for batch in other.scan(24, "cpu")]).equal(whole)


def test_what_is_scanned_is_never_trained_on():
    source = Generated(drawn, size=40, seed=0)
    scanned = set(torch.cat([batch.inputs for batch in source.scan(8, "cpu")])[:, 0, 0].tolist())
    for seed in (0, 1):
        trained = torch.cat([batch.inputs for batch in take(source, 20, rows=8, seed=seed)])
        assert scanned.isdisjoint(trained[:, 0, 0].tolist())


def test_a_generator_for_each_tuple_of_numbers():
    tuples = [(0, 1), (1, 0), (1, 1), (0, 2), (0, 1, 1), (2**40, 3)]
    values = [torch.rand(1, generator=seeded("cpu", *each)).item() for each in tuples]
    assert len(set(values)) == len(tuples)
    assert torch.rand(1, generator=seeded("cpu", 0, 1)).item() == values[0]


# Loaders


@pytest.mark.parametrize("workers", [0, 1])
def test_rows_of_a_data_loader_that_differ_in_length_have_to_be_padded(workers):
    rows: list = [(torch.randn(steps, 2), 0) for steps in (3, 4, 4)]
    with pytest.raises(ValueError, match="differ in length: pad them in a collate_fn that returns"):
        list(as_source(DataLoader(rows, batch_size=3, num_workers=workers)).scan(3, "cpu"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="single rows: give it a batch_size"):
        list(as_source(DataLoader(rows, batch_size=None, num_workers=workers)).scan(3, "cpu"))  # type: ignore[arg-type]


def test_a_data_loader_keeps_its_own_batches():
    inputs, labels, lengths = numbered()
    loader = DataLoader(TensorDataset(inputs, labels, lengths), batch_size=4)
    source = as_source(loader)
    assert isinstance(source, Loader) and source.epoch(999) == 3
    assert [batch.inputs[:, 0, 0].tolist() for batch in source.scan(999, "cpu")] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    batches = take(source, 7, rows=999)
    assert [len(batch.labels) for batch in batches] == [4, 4, 2, 4, 4, 2, 4]
    assert batches[0].lengths.equal(lengths[:4])
    assert as_source(DataLoader(TensorDataset(inputs, labels), batch_size=4)).epoch(1) == 3
    assert next(as_source(DataLoader(TensorDataset(inputs, labels))).scan(1, "cpu")).lengths is None


class Rowwise(TensorDataset):
    """Anything but a TensorDataset itself is read row by row, as the loader does it."""


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shuffle": True},
        {"shuffle": True, "drop_last": True},
        {"shuffle": True, "generator": 5},
        {"sampler": WeightedRandomSampler([1.0, 2.0] * 5, 7)},
        {"sampler": SubsetRandomSampler([8, 1, 3, 5, 9])},
        {"batch_sampler": [[3, 3], [0], [9, 1, 4]]},
        {"batch_sampler": BatchSampler(RandomSampler(range(10)), 3, drop_last=False)},
    ],
)
def test_batches_taken_from_tensors_at_once_are_those_that_the_loader_makes(options):
    batch_size = {} if "batch_sampler" in options else {"batch_size": 4}
    batches = []
    for dataset in (TensorDataset, Rowwise):
        torch.manual_seed(0)
        own = {"generator": torch.Generator().manual_seed(5)} if "generator" in options else {}
        source = as_source(DataLoader(dataset(*numbered()), **batch_size, **options | own))
        assert (source.rows is not None) == (dataset is TensorDataset)
        batches.append(take(source, 7) + list(source.scan(1, "cpu")))
    assert len(batches[0]) == len(batches[1]) > 7
    for one, other in zip(*batches, strict=True):
        assert all(part.equal(expected) for part, expected in zip(one, other, strict=True))


def test_loaders_that_do_more_than_put_rows_together_are_left_to_it():
    tensors = numbered()
    doubled = DataLoader(
        TensorDataset(*tensors), 4, collate_fn=lambda rows: [2 * part for part in default_collate(rows)]
    )
    assert next(as_source(doubled).scan(1, "cpu")).inputs.equal(2 * tensors[0][:4])
    unbatched = DataLoader(TensorDataset(*(part[None] for part in tensors)), batch_size=None)
    assert next(as_source(unbatched).scan(1, "cpu")).inputs.equal(tensors[0])
    with pytest.raises(ValueError, match="a batch must be"):
        next(as_source(DataLoader(TensorDataset(tensors[0]), 4)).scan(1, "cpu"))
    with pytest.raises(ValueError, match="no batch"):
        take(as_source(DataLoader(TensorDataset(*(part[:0] for part in tensors)), 4)), 1)


def test_any_iterable_of_batches():
    inputs, labels, lengths = numbered()
    pairs = [(inputs[:4].numpy(), labels[:4].tolist()), (inputs[4:], labels[4:], None), (inputs, labels, lengths)]
    assert [len(batch.labels) for batch in as_source(pairs).scan(1, "cpu")] == [4, 6, 10]

    class Endless:
        def __iter__(self):
            yield inputs, labels

    assert as_source(Endless()).epoch(3) is None


def test_a_loader_that_runs_dry():
    with pytest.raises(ValueError, match="no batch"):
        take(as_source([]), 1)
    inputs, labels, _ = numbered()
    once = as_source(iter([(inputs, labels)]))
    with pytest.raises(ValueError, match="no batch"):
        take(once, 2)


@pytest.mark.parametrize("batch", [{"inputs": 1, "labels": 2}, (torch.zeros(2, 3, 1),), (torch.zeros(2),) * 4, 3])
def test_a_loader_of_something_else(batch):
    with pytest.raises(ValueError, match="inputs, labels") as error:
        list(as_source([batch, batch, batch, batch]).scan(1, "cpu"))
    assert "\n" not in str(error.value)


# What counts as data


def test_sources():
    inputs, labels, lengths = numbered()
    for source in (Arrays(inputs, labels), Generated(drawn), Loader([])):
        assert isinstance(source, Source) and as_source(source) is source
    for data in ((inputs, labels), [inputs.numpy(), labels.numpy()], (inputs, labels, lengths), Batch(inputs, labels)):
        assert isinstance(as_source(data), Arrays)


@pytest.mark.parametrize("data", [3, None, object(), rc.Threshold()])
def test_what_is_not_data(data):
    with pytest.raises(ValueError, match="cannot read data") as error:
        as_source(data)
    assert type(data).__name__ in str(error.value) and "\n" not in str(error.value)


def test_the_splits_of_a_task():
    class Task(NamedTuple):
        name: str
        train: object
        test: object
        validation: object = None

    inputs, labels, _ = numbered()
    task = Task("mine", (inputs, labels), Arrays(inputs[:3], labels[:3]))
    assert split_of(task, "train").size == 10
    assert split_of(task, "test") is task.test
    for split in ("validation", "holdout"):
        with pytest.raises(ValueError, match=f"mine has no {split} split"):
            split_of(task, split)
    assert split_of((inputs, labels), "anything").size == 10


# Copies on a device


def test_rows_that_share_a_tensor_share_its_copy():
    values = torch.arange(20.0)[:, None]
    meta = torch.device("meta")
    one, other = (Packed(values, [at], [10], [0]) for at in (0, 10))
    assert copy_on(one.values, meta) is copy_on(other.values, meta)
    assert copy_on(values.clone(), meta) is not copy_on(values, meta)
    assert copy_on(values, torch.device("cpu")) is values
    before = copy_on(values, meta)
    values[3] = 0
    assert copy_on(values, meta) is not before, "the copy is older than the tensor"
    with torch.inference_mode():
        values = values.clone()
    assert copy_on(values, meta) is copy_on(values, meta)
    copy, original = weakref.ref(copy_on(values, meta)), weakref.ref(values)
    del values, one, other
    gc.collect()
    assert copy() is None and original() is None, "the copy outlives the tensor"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
def test_a_store_is_on_the_gpu_once_for_all_splits():
    values = torch.zeros(50_000_000, 1)
    splits = [Packed(values, [0, 10 * k], [5, 7], [0, 1]) for k in range(3)]
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for split in splits:
        next(split.scan(2, "cuda"))
    assert torch.cuda.memory_allocated() - before < 1.1 * values.nbytes


def test_the_steps_of_some_rows_in_blocks_of_any_size():
    random = np.random.default_rng(0)
    lengths = torch.from_numpy(random.integers(1, 9, 50))
    values = torch.arange(int(lengths.sum()))[:, None]
    rows = values.split(lengths.tolist())
    for index in (np.arange(50), np.array([0, 3, 4, 49]), np.array([], dtype=int)):
        expected = torch.cat([values[:0], *(rows[k] for k in index)])
        for at_once in (1, 3, 7, 64, 1000):
            assert torch.cat(list(steps_of(values, lengths, index, at_once))).equal(expected)


@pytest.mark.filterwarnings("error")
def test_arrays_as_users_have_them():
    values, labels = np.random.default_rng(0).normal(size=(6, 4, 2)), np.arange(6) % 2
    assert Arrays(values[::-1].astype(">f8"), labels.astype(">i8")).inputs.tolist() == values[::-1].tolist()
    for read in (Arrays, lambda *batch: next(Loader([batch]).scan(2, "cpu"))):
        with pytest.raises(ValueError, match="complex"):
            read(values * 1j, labels)
    with pytest.raises(ValueError, match="labels must be integers"):
        Arrays(values, np.ma.masked_array(labels, mask=labels == 1))
