import gc
import weakref
from itertools import chain, islice
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

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


def numbered(size=10, lengths=True):
    """Rows that carry their number: inputs [size, 3, 1], labels, lengths."""
    inputs = torch.arange(size, dtype=torch.float32)[:, None, None].expand(size, 3, 1).contiguous()
    return inputs, torch.arange(size) % 4, torch.arange(size) % 3 + 1 if lengths else None


def numbers(batch):
    return batch.inputs[:, 0, 0].long().tolist()


def equal(one, other):
    return all((a is None and b is None) or a.equal(b) for a, b in zip(one, other, strict=True))


def take(source, count, rows=4, seed=0, start=0):
    return list(islice(source.batches(rows, seed, "cpu", start), count))


def drawn(rows, generator):
    inputs = torch.randn(rows, 5, 2, generator=generator, device=generator.device)
    return Batch(inputs, (inputs.sum((1, 2)) > 0).long())


# Rows in memory


@pytest.mark.parametrize("rows", [1, 3, 4, 10, 25])
def test_batches_from_a_number_on_are_those_reached_by_going_there(rows):
    source = Arrays(*numbered())
    every = take(source, 12, rows)
    for start in (0, 1, 2, 3, 5, 7, 11):
        assert all(equal(a, b) for a, b in zip(take(source, 12 - start, rows, start=start), every[start:], strict=True))


@pytest.mark.parametrize("rows", [1, 3, 5, 10, 25])
def test_an_epoch_holds_every_row_once_in_a_new_order(rows):
    source = Arrays(*numbered())
    size = source.epoch(rows)
    assert size == len(range(0, 10, rows))
    batches = take(source, 3 * size, rows)
    orders = [list(chain(*map(numbers, batches[k * size : (k + 1) * size]))) for k in range(3)]
    assert all(sorted(order) == list(range(10)) for order in orders)
    assert orders[0] != orders[1] != orders[2]


def test_the_parts_of_a_row_stay_together():
    for batch in take(Arrays(*numbered()), 6):
        for number, label, length in zip(numbers(batch), batch.labels.tolist(), batch.lengths.tolist(), strict=True):
            assert (label, length) == (number % 4, number % 3 + 1)


def test_the_order_is_the_seeds():
    source = Arrays(*numbered())
    assert [numbers(batch) for batch in take(source, 6, seed=1)] == [
        numbers(batch) for batch in take(source, 6, seed=1)
    ]
    assert [numbers(batch) for batch in take(source, 6, seed=1)] != [
        numbers(batch) for batch in take(source, 6, seed=2)
    ]
    torch.manual_seed(0)
    before = take(source, 3)
    torch.manual_seed(1)
    assert all(equal(a, b) for a, b in zip(take(source, 3), before, strict=True)), "the global seed had a say"


@pytest.mark.parametrize("rows", [1, 3, 10, 25])
def test_a_scan_gives_every_row_once_in_order(rows):
    batches = list(Arrays(*numbered(lengths=False)).scan(rows, "cpu"))
    assert list(chain(*map(numbers, batches))) == list(range(10))
    assert all(len(batch.labels) <= rows and batch.lengths is None for batch in batches)


def test_inputs_are_encoded_when_they_are_taken():
    inputs, labels, _ = numbered()
    source = Arrays(inputs[:, 0], labels, encode=lambda stored, lengths: (stored[:, None].expand(-1, 3, -1), lengths))
    assert [batch.inputs.shape for batch in source.scan(4, "cpu")] == [(4, 3, 1), (4, 3, 1), (2, 3, 1)]
    assert numbers(next(source.scan(10, "cpu"))) == list(range(10))


def test_numpy_and_small_integers():
    inputs, labels, lengths = (part.numpy() for part in numbered())
    batch = next(Arrays(inputs, labels.astype(np.uint8), lengths.astype(np.int32)).scan(10, "cpu"))
    assert batch.labels.dtype == batch.lengths.dtype == torch.int64
    assert batch.labels.tolist() == labels.tolist() and batch.lengths.tolist() == lengths.tolist()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((torch.zeros(0, 3, 1), torch.zeros(0)), "no rows"),
        ((torch.zeros(3, 3, 1), torch.zeros(2, dtype=torch.long)), "labels"),
        ((torch.zeros(3, 3, 1), torch.zeros(3, 2, dtype=torch.long)), "labels"),
        ((torch.zeros(3, 3, 1), torch.tensor([0, 1, 2]), torch.tensor([1, 2])), "lengths"),
        ((torch.zeros(3, 3, 1), torch.tensor([0.5, 1.0, 0.0])), "labels"),
        ((torch.zeros(3, 3, 1), torch.tensor([0, 1, 2]), torch.tensor([1.5, 2.0, 3.0])), "lengths"),
    ],
)
def test_arrays_that_do_not_go_together(arguments, says):
    with pytest.raises(ValueError, match=says) as error:
        Arrays(*arguments)
    assert "\n" not in str(error.value)


# Rows that are made


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


def test_an_endless_source_cannot_be_scanned():
    with pytest.raises(ValueError, match=r"endless.*size"):
        next(Generated(drawn).scan(4, "cpu"))


def test_a_generator_for_each_tuple_of_numbers():
    tuples = [(0, 1), (1, 0), (1, 1), (0, 2), (0, 1, 1), (2**40, 3)]
    values = [torch.rand(1, generator=seeded("cpu", *each)).item() for each in tuples]
    assert len(set(values)) == len(tuples)
    assert torch.rand(1, generator=seeded("cpu", 0, 1)).item() == values[0]


# Loaders


def test_a_data_loader_keeps_its_own_batches():
    inputs, labels, lengths = numbered()
    loader = DataLoader(TensorDataset(inputs, labels, lengths), batch_size=4)
    source = as_source(loader)
    assert isinstance(source, Loader) and source.epoch(999) == 3
    assert [numbers(batch) for batch in source.scan(999, "cpu")] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    batches = take(source, 7, rows=999)
    assert [len(batch.labels) for batch in batches] == [4, 4, 2, 4, 4, 2, 4]
    assert batches[0].lengths.equal(lengths[:4])
    assert as_source(DataLoader(TensorDataset(inputs, labels), batch_size=4)).epoch(1) == 3
    assert next(as_source(DataLoader(TensorDataset(inputs, labels))).scan(1, "cpu")).lengths is None


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
    copy = weakref.ref(copy_on(values, meta))
    del values, one, other
    gc.collect()
    assert copy() is None, "the copy outlives the tensor"


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
    locked = values.copy()
    locked.flags.writeable = False
    for same in (
        values.astype(">f8"),
        np.asfortranarray(values),
        values[::-1][::-1],
        locked,
        np.ma.masked_array(values),
    ):
        assert Arrays(same, labels.astype(">i8")).inputs.tolist() == values.tolist()
    assert Arrays(values[::-1], labels).inputs.tolist() == values[::-1].tolist()
    for wrong in (values * 1j, torch.zeros(6, 4, 2, dtype=torch.complex64)):
        with pytest.raises(ValueError, match="complex"):
            Arrays(wrong, labels)
        with pytest.raises(ValueError, match="complex"):
            next(Loader([(wrong, labels)]).scan(2, "cpu"))
    with pytest.raises(ValueError, match="labels must be integers"):
        Arrays(values, np.ma.masked_array(labels, mask=labels == 1))
