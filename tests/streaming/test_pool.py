"""Streams of a pool join, answer and leave at any time; each gives the decision of offline inference."""

from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import live_networks as live
import rankcode as rc
from rankcode.streaming import pool as pool_module

quiet = settings(deadline=None, max_examples=20, derandomize=True)
every_cell = pytest.mark.parametrize("name", live.NETWORKS)


# Offline = stream = pool


@every_cell
@quiet
@given(data=st.data())
def test_decisions_are_those_of_offline_inference(name, data):
    network, rule = live.NETWORKS[name], data.draw(st.sampled_from(list(live.RULES.values())))
    lengths = data.draw(st.lists(st.integers(1, 14), min_size=1, max_size=6))
    rows = [live.inputs_for(network, length, data.draw(st.integers(0, 999))) for length in lengths]
    cuts = [data.draw(live.chunks(length)) for length in lengths]
    starts = [data.draw(st.integers(0, 5)) for _ in lengths]
    pool = rc.StreamPool(network, rule, capacity=len(rows))
    with patch.object(pool_module, "ROWS_AT_ONCE", data.draw(st.sampled_from((1, 2, 256)))):
        answers = live.pooled(pool, rows, cuts, starts)
    for row, found in zip(rows, answers, strict=True):
        live.assert_same(found, rc.decide(network, row[None], rule=rule))
        live.assert_same(found, live.streamed(rc.Stream(network, rule), [row]))


@quiet
@given(data=st.data())
def test_sounds_of_any_length_in_packets_of_any_size(data):
    network = live.sound_network()
    random = np.random.default_rng(data.draw(st.integers(0, 999)))
    lengths = data.draw(st.lists(st.integers(1, 1500), min_size=1, max_size=5))
    rows = [random.normal(size=length) * np.sin(np.arange(length) / 200) / 4 for length in lengths]
    cuts = [data.draw(live.chunks(length, largest=200)) for length in lengths]
    starts = [data.draw(st.integers(0, 5)) for _ in lengths]
    rule = data.draw(st.sampled_from([rc.Threshold(0.8), rc.Patience(rc.Threshold(0.6), 3), rc.Never()]))
    found = live.pooled(rc.StreamPool(network, rule, len(rows), sample_rate=4000), rows, cuts, starts)
    for answer, expected in zip(found, rc.predict(network, rows, rule), strict=True):
        live.assert_predicted(answer, expected)


def test_many_series_with_missing_values_through_few_slots():
    network, rule = live.series_network(2), rc.Threshold(0.7)
    random = np.random.default_rng(0)
    rows = [random.normal(size=(random.integers(1, 30), 2)) * 4 for _ in range(60)]
    for row in rows:
        row[:-1][random.random(row[:-1].shape) < 0.3] = np.nan
    expected = rc.predict(network, rows, rule)
    assert {answer.fired for answer in expected} == {True, False}
    pool, waiting, ids, found = rc.StreamPool(network, rule, capacity=7), list(range(60)), {}, {}
    while len(found) < len(rows):
        while waiting and len(pool) < 7:
            ids[pool.open()] = waiting.pop(0), 0
        for stream, (number, read) in list(ids.items()):
            if read < len(rows[number]):
                size = int(random.integers(0, 4))
                pool.push(stream, rows[number][read : read + size])
                ids[stream] = number, read + size
            else:
                pool.finish(stream)
        for stream, decision in pool.tick():
            found[ids.pop(stream)[0]] = decision
    for number, answer in enumerate(expected):
        live.assert_predicted(found[number], answer)


# Joining and leaving


def test_a_tick_without_data_answers_nothing():
    pool = rc.StreamPool(live.NETWORKS["LSTM"], capacity=3)
    assert pool.tick() == [] and len(pool) == 0
    pool.push(pool.open(), np.zeros((0, 3)))
    assert pool.tick() == [] and len(pool) == 1


def test_streams_that_have_answered_are_not_computed():
    network = live.NETWORKS["own cell"]
    pool, rows = rc.StreamPool(network, rc.FireAt(2), capacity=5), []
    ids = [pool.open() for _ in range(5)]
    hook = network.cell.register_forward_hook(lambda cell, arguments, output: rows.append(len(arguments[0])))
    for number, stream in enumerate(ids):
        pool.push(stream, np.zeros((1 + number, 3)))
    answered = [stream for stream, _ in pool.tick()]
    hook.remove()
    assert rows == [5, 4] and answered == ids[1:] and len(pool) == 1


def test_steps_up_to_a_checkpoint_are_read_at_once(monkeypatch):
    """Its network can fire after steps 1, 3, 4 and 9."""
    network, read = live.NETWORKS["RandomKernels"], []
    inputs = live.inputs_for(network, 25, seed=0)
    forward_block = network.cell.forward_block
    monkeypatch.setattr(network.cell, "forward_block", lambda x, s: read.append(x.shape[:2]) or forward_block(x, s))
    monkeypatch.setattr(pool_module, "MAX_BLOCK_STEPS", 8)
    pool = rc.StreamPool(network, rc.Never(), capacity=3)
    ids = [pool.open(), pool.open()]
    for x_t in inputs:
        for stream in ids:
            pool.push(stream, x_t)
        assert pool.tick() == []
    assert read == [(2, 1), (2, 2), (2, 1), (2, 5), (2, 8), (2, 8)]
    pool.finish(ids[1])
    ((_, found),) = pool.tick()
    assert len(read) == 6, "there was nothing left to read"
    live.assert_same(found, rc.decide(network, inputs[None], rule=rc.Never()))


def test_a_slot_starts_afresh():
    """What a stream left in its slot, in every state and buffer, does not reach the next one."""
    for name in ("LSTM", "LIF", "RandomKernels", "Parallel"):
        network = live.NETWORKS[name]
        rule = rc.Patience(rc.Threshold(0.6), 3)
        pool = rc.StreamPool(network, rule, capacity=1)
        for seed in range(4):
            inputs, stream = live.inputs_for(network, 9, seed), pool.open()
            pool.push(stream, inputs)
            if seed % 2:
                pool.close(stream)
                continue
            if answers := pool.tick():
                live.assert_same(answers[0][1], rc.decide(network, inputs[None], rule=rule))
            else:
                pool.finish(stream)
                live.assert_same(pool.tick()[0][1], rc.decide(network, inputs[None], rule=rule))


def test_ids_are_not_used_again_and_a_full_pool_says_so():
    pool = rc.StreamPool(live.NETWORKS["LSTM"], capacity=2)
    first, second = pool.open(), pool.open()
    with pytest.raises(RuntimeError, match="all 2 streams of the pool are open: close some, or raise capacity"):
        pool.open()
    pool.close(first)
    third = pool.open()
    assert len({first, second, third}) == 3 and len(pool) == 2


def test_calls_for_a_stream_that_is_not_open():
    pool = rc.StreamPool(live.NETWORKS["LSTM"], rc.FireAt(1), capacity=2)
    stream = pool.open()
    pool.push(stream, np.zeros(3))
    assert [number for number, _ in pool.tick()] == [stream]
    for call in (lambda: pool.push(stream, np.zeros(3)), lambda: pool.finish(stream)):
        with pytest.raises(RuntimeError, match=f"stream {stream} has answered or was closed"):
            call()
    pool.close(stream)  # nothing is left to close
    for call in (lambda: pool.push(99, np.zeros(3)), lambda: pool.finish(99), lambda: pool.close(99)):
        with pytest.raises(ValueError, match="never had a stream 99"):
            call()
    ended = pool.open()
    with pytest.raises(RuntimeError, match="has read nothing"):
        pool.finish(ended)


def test_pushing_after_the_end():
    pool = rc.StreamPool(live.NETWORKS["LSTM"], rc.Never(), capacity=2)
    stream = pool.open()
    pool.push(stream, np.zeros((2, 3)))
    pool.finish(stream)
    pool.finish(stream)  # says nothing new
    with pytest.raises(RuntimeError, match=f"stream {stream} is finished"):
        pool.push(stream, np.zeros(3))
    ((answered, decision),) = pool.tick()
    assert answered == stream and decision.steps.item() == 2 and not decision.fired.item()


# Bad data and bounds


@pytest.mark.parametrize("make", [lambda: live.NETWORKS["LSTM"], live.sound_network], ids=["inputs", "sound"])
def test_bad_data_is_refused_alone(make):
    network = make()
    sound = network.front_end is not None
    rows = [np.sin(np.arange(900) / k) if sound else live.inputs_for(network, 10, k).numpy() for k in (7, 8)]
    pool = rc.StreamPool(network, rc.Never(), capacity=2)
    ids = [pool.open(), pool.open()]
    for stream, row in zip(ids, rows, strict=True):
        pool.push(stream, row[:5])
    for bad in (np.full_like(rows[0], np.nan), np.zeros((4, 4, 4)), np.array(["a"])):
        with pytest.raises(ValueError) as error:
            pool.push(ids[0], bad)
        assert "\n" not in str(error.value)
    pool.tick()
    for stream, row in zip(ids, rows, strict=True):
        pool.push(stream, row[5:])
        pool.finish(stream)
    found = dict(pool.tick())
    for stream, row in zip(ids, rows, strict=True):
        live.assert_same(found[stream], live.streamed(rc.Stream(network, rc.Never()), [row]), probabilities=1e-6)


def test_what_waits_for_a_tick_is_bounded(monkeypatch):
    pool = rc.StreamPool(live.NETWORKS["LSTM"], rc.Never(), capacity=1, max_buffered=5)
    stream = pool.open()
    pool.push(stream, np.zeros((3, 3)))
    with pytest.raises(RuntimeError, match="would buffer 6 samples or steps, and max_buffered is 5: call tick"):
        pool.push(stream, np.zeros((3, 3)))
    pool.tick()
    pool.push(stream, np.zeros((5, 3)))
    monkeypatch.setattr(pool_module, "MAX_BUFFERED_VALUES", 1000)
    sound = rc.StreamPool(live.sound_network(), rc.Never(), capacity=2)
    stream = sound.open()
    for _ in range(20):
        sound.push(stream, np.zeros(800))
        sound.tick()
    sound.push(stream, np.zeros(1000))
    with pytest.raises(RuntimeError, match="would buffer 1,001 samples"):
        sound.push(stream, np.zeros(1))
    queues = sound._inputs.streams
    assert queues._samples._items.shape[1] < 3000 and queues._frames._items.shape[1] < 200


@pytest.mark.parametrize("settings", [{"capacity": 0}, {"max_buffered": 0}])
def test_a_pool_of_nothing(settings):
    with pytest.raises(ValueError, match="capacity and max_buffered must be at least 1"):
        rc.StreamPool(live.NETWORKS["LSTM"], **settings)


class Remembers(nn.Module):
    """A cell whose state is everything it has read."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def initial_state(self, batch_size):
        return self.weight.new_zeros(batch_size, 1, 3)

    def forward(self, x_t, state):
        state = torch.cat([state, x_t[:, None]], 1)
        return state.mean(1) * self.weight, state


def test_a_state_that_grows_is_refused_by_a_pool_and_read_by_a_stream():
    network = live.network_of(Remembers())
    pool = rc.StreamPool(network, rc.Never(), capacity=1)
    pool.push(pool.open(), np.zeros(3))
    with pytest.raises(ValueError, match=r"from \[1, 3\] to \[2, 3\]: a pool cannot hold it; use Stream"):
        pool.tick()
    inputs = live.inputs_for(network, 4, seed=0)
    found = live.streamed(rc.Stream(network, rc.Never()), [inputs])
    live.assert_same(found, rc.decide(network, inputs[None], rule=rc.Never()))


class Coarse(nn.Module):
    """A cell that begins with a state of lower precision than it goes on with."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def initial_state(self, batch_size):
        return torch.zeros(batch_size, 3)

    def forward(self, x_t, state):
        state = 0.9 * state + x_t * self.weight
        return state, state


def test_a_state_that_changes_its_precision():
    network = live.network_of(Coarse())
    inputs, pool = live.inputs_for(network, 6, seed=0), rc.StreamPool(network, rc.Never(), capacity=2)
    stream = pool.open()
    pool.push(stream, inputs)
    pool.finish(stream)
    live.assert_same(pool.tick()[0][1], rc.decide(network, inputs[None], rule=rc.Never()), probabilities=1e-14)
