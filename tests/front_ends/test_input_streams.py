"""Queues of live rows, and rows of numbers."""

from collections import deque

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankcode.front_ends import NumberStreams
from rankcode.front_ends.input_streams import Queues


@settings(deadline=None, max_examples=100, derandomize=True)
@given(data=st.data())
def test_queues_are_queues(data):
    rows, shape = 3, data.draw(st.sampled_from([(), (2,), (2, 3)]))
    queues, expected, number = Queues(rows, shape, torch.float64), [deque() for _ in range(rows)], 0

    def new(count):
        nonlocal number
        items = number + np.arange(count * int(np.prod(shape)), dtype=float).reshape(count, *shape)
        number += 1000
        return items

    for action in data.draw(st.lists(st.sampled_from(["append", "each", "take", "clear"]), max_size=25)):
        if action == "each":
            some = np.flatnonzero(data.draw(st.lists(st.booleans(), min_size=rows, max_size=rows)))
            counts = np.array([data.draw(st.integers(0, 4)) for _ in some], np.int64)
            items = new(int(counts.sum()))
            queues.append_each(some, counts, torch.from_numpy(items))
            for row, part in zip(some, np.split(items, counts.cumsum()[:-1]), strict=False):
                expected[row].extend(part)
            continue
        row = data.draw(st.integers(0, rows - 1))
        if action == "append":
            items = new(data.draw(st.integers(0, 6)))
            queues.append(row, items)
            expected[row].extend(items)
        elif action == "clear":
            queues.clear(row)
            expected[row].clear()
        elif expected[row]:
            count = data.draw(st.integers(1, len(expected[row])))
            found = queues.windows(np.array([row]), 0, count)[0].numpy()
            queues.drop(np.array([row]), count)
            assert np.array_equal(found, np.stack([expected[row].popleft() for _ in range(count)]))
    assert queues.lengths.tolist() == [len(each) for each in expected]
    for row, each in enumerate(expected):
        if each:
            assert np.array_equal(queues.windows(np.array([row]), 0, len(each))[0].numpy(), np.stack(list(each)))


def read(streams, *pushed):
    """What a row of these pushes holds."""
    streams.reset(0)
    for raw in pushed:
        streams.push(0, streams.check(0, raw))
    return streams.take(np.array([0]), int(streams.waiting()[0]))[0].tolist()


@pytest.mark.parametrize("raw", [[[1, 2]], [1, 2], np.array([1, 2], np.uint8), torch.tensor([[1.0, 2.0]])])
def test_a_step_and_a_chunk_of_one_step(raw):
    assert read(NumberStreams(1, (2,)), raw) == [[1, 2]]


@pytest.mark.parametrize("raw", [5, [5], [[5]], np.float32(5)])
def test_one_value_for_each_step(raw):
    assert read(NumberStreams(1, (1,)), raw, [6, 7], []) == [[5], [6], [7]]


def test_steps_in_another_layout():
    image = np.arange(6.0).reshape(2, 3)
    assert read(NumberStreams(1, (6,), any_layout=True), image, image[None], image.flatten()) == 3 * [[*range(6)]]
    with pytest.raises(ValueError, match=r"a step has shape \[6\] .* not \[2, 3\]"):
        NumberStreams(1, (6,)).check(0, image)


def test_missing_values_repeat_the_last_one_of_their_channel():
    streams = NumberStreams(1, (2,), lambda steps: steps.nan_to_num(-1), missing=True)
    nan = np.nan
    found = read(streams, [[nan, 5.0]], [[nan, nan], [2.0, nan]], [nan, 7.0])
    assert found == [[-1, 5], [-1, 5], [2, 5], [2, 7]]
    assert read(streams, [nan, nan]) == [[-1, -1]], "nothing is left of the row before"
