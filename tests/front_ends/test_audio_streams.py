"""Log-mel frames of sound as it arrives, against those of the whole recording."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rankcode.front_ends import Audio, LogMel, audio_streams

RATE, BANDS = 4000, 5  # a window of 100 samples every 40


def front_end(context):
    return Audio(tuple(np.linspace(-9, -3, BANDS)), tuple(np.linspace(1, 3, BANDS)), LogMel(RATE, BANDS), context)


def sound(length, seed=0):
    return np.random.default_rng(seed).normal(size=length) * 0.3 * np.sin(np.arange(length) / 50)


def steps_of(streams, row, samples, sizes):
    """All steps of one row whose samples come in chunks of these sizes, and the rest at once."""
    streams.reset(row)
    found = []
    for begin, end in itertools.pairwise([0, *itertools.accumulate(sizes), len(samples)]):
        streams.push(row, streams.check(row, samples[begin:end]))
        if waiting := int(streams.waiting()[row]):
            found.append(streams.take(np.array([row]), waiting)[0])
    streams.finish(row)
    if waiting := int(streams.waiting()[row]):
        found.append(streams.take(np.array([row]), waiting)[0])
    return torch.cat(found)


@settings(deadline=None, max_examples=200, derandomize=True)
@given(
    length=st.one_of(st.sampled_from([1, 39, 40, 41, 49, 50, 51, 99, 100, 101, 240, 241]), st.integers(1, 2000)),
    sizes=st.lists(st.one_of(st.integers(0, 5), st.integers(0, 400)), max_size=30),
    context=st.sampled_from([0, 1, 3, 10]),
    row=st.integers(0, 2),
)
@example(length=1, sizes=[], context=10, row=0)
def test_any_length_in_any_chunks_gives_the_inputs_of_the_whole(length, sizes, context, row):
    audio, samples = front_end(context), sound(length)
    expected = audio(audio.read(samples).values[None])[0][0]
    assert steps_of(audio.stream(3), row, samples, sizes).equal(expected)


def test_rows_side_by_side_do_not_touch_each_other():
    audio = front_end(2)
    streams, random = audio.stream(5), np.random.default_rng(0)
    rows = [sound(int(random.integers(1, 3000)), seed) for seed in range(5)]
    found, at = [[] for _ in rows], [0] * 5
    for row in range(5):
        streams.reset(row)
    while any(place <= len(samples) for place, samples in zip(at, rows, strict=True)):
        for row, samples in enumerate(rows):
            if at[row] > len(samples) or random.random() < 0.3:
                continue
            size = int(random.integers(1, 250))
            streams.push(row, streams.check(row, samples[at[row] : at[row] + size]))
            at[row] += size
            if at[row] > len(samples):
                streams.finish(row)
        waiting = streams.waiting()
        while (ready := np.flatnonzero(waiting > 0)).size:
            for row, step in zip(ready, streams.take(ready)[:, 0], strict=True):
                found[row].append(step)
            waiting[ready] -= 1
    for steps, samples in zip(found, rows, strict=True):
        assert torch.stack(steps).equal(audio(audio.read(samples).values[None])[0][0])


@pytest.mark.parametrize("context", [0, 4])
def test_a_step_is_complete_with_the_last_sample_it_depends_on(context):
    audio = front_end(context)
    streams = audio.stream(1)
    streams.reset(0)
    for number, sample in enumerate(sound(900)[:, None], 1):
        streams.push(0, streams.check(0, sample))
        complete = max(0, (number - 50) // 40 + 1 - 2 * context)  # frame f is complete after 40 · f + 50 samples
        assert streams.waiting()[0] == complete


def test_samples_of_16_bits_are_those_of_a_file():
    audio, samples = front_end(1), (20_000 * sound(700)).astype(np.int16)
    expected = audio(audio.read(samples / np.float32(32768)).values[None])[0][0]
    assert steps_of(audio.stream(1), 0, samples, [13, 200]).equal(expected)


def test_packets_of_both_kinds_wait_together_and_their_buffer_can_be_reused():
    audio, samples = front_end(1), (20_000 * sound(700)).astype(np.int16)
    expected = audio(audio.read(samples / np.float32(32768)).values[None])[0][0]
    streams, buffers = audio.stream(3), {np.int16: np.empty(70, np.int16), np.float32: np.empty(70, np.float32)}
    for row in (2, 0):
        streams.reset(row)
    for number, packet in enumerate(samples.reshape(10, 70)):
        for row in (2, 0):
            buffer = buffers[np.int16 if (number + row) % 4 < 2 else np.float32]
            buffer[:] = packet if buffer.dtype == np.int16 else packet / np.float32(32768)
            streams.push(row, streams.check(row, buffer))
            buffer[:] = 0
    for row in (2, 0):
        streams.finish(row)
    assert streams.waiting().tolist() == [len(expected), 0, len(expected)]
    for steps in streams.take(np.array([0, 2]), len(expected)):
        assert steps.equal(expected)


def test_a_stream_holds_less_than_a_window_and_the_context():
    audio = front_end(3)
    streams = audio.stream(1)
    streams.reset(0)
    for _ in range(300):
        streams.push(0, streams.check(0, sound(77)))
        if waiting := int(streams.waiting()[0]):
            streams.take(np.array([0]), waiting)
        assert streams._samples.lengths[0] < 100 and streams._frames.lengths[0] <= 6
    assert streams._samples._items.shape[1] <= 2 * (99 + 77) and streams._frames._items.shape[1] <= 2 * (6 + 2)


def test_frames_of_many_streams_are_computed_in_blocks(monkeypatch):
    audio, samples = front_end(1), sound(3000)
    expected = audio(audio.read(samples).values[None])[0][0]
    monkeypatch.setattr(audio_streams, "MAX_FRAMES", 7)
    assert steps_of(audio.stream(1), 0, samples, []).equal(expected)
