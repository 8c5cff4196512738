"""Real recordings, live: what the network of the reproduction answers, and when, is what it answers to whole files."""

import numpy as np
import pytest

import rankcode as rc
from live_networks import assert_predicted, pooled, streamed
from real_recordings import recordings, speech_network

PACKET = 320  # samples: 20 ms


@pytest.fixture(scope="module")
def network():
    return speech_network()


def assert_live_as_whole(network, sounds, rule):
    """Returns the answers to whole recordings, which are those of streams and of a pool."""
    expected = rc.predict(network, [samples / np.float32(32768) for samples in sounds], rule)
    pool = rc.StreamPool(network, rule, capacity=len(sounds), sample_rate=16_000)
    cuts = [[slice(at, at + PACKET) for at in range(0, len(samples), PACKET)] for samples in sounds]
    together = pooled(pool, sounds, cuts)
    stream = rc.Stream(network, rule, sample_rate=16_000)
    for samples, answer, found in zip(sounds, expected, together, strict=True):
        assert_predicted(found, answer)
        assert_predicted(streamed(stream, np.array_split(samples, 1 + len(samples) // PACKET)), answer)
        stream.reset()
    return expected


@pytest.mark.parametrize("rule", [None, rc.Patience(rc.Threshold(0.9), 5), rc.Never()], ids=str)
def test_recordings_in_packets_of_20_milliseconds(network, rule):
    sounds = list(recordings(("yes", "left", "bird", "_background_noise_"), 10))
    answers = assert_live_as_whole(network, sounds, rule)
    assert rule == rc.Never() or (len({answer.steps for answer in answers}) > 5 and any(a.fired for a in answers))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_5000_recordings(network):
    sounds = list(recordings((), 170))
    assert len(sounds) > 5000
    for begin in range(0, len(sounds), 500):
        assert_live_as_whole(network, sounds[begin : begin + 500], None)


def test_a_listener_finds_keywords_in_noise():
    """One word after the other, with pauses and soft noise."""
    words = ("yes", "seven", "stop", "bird", "left")
    (noise,) = recordings(("_background_noise_",), 1)
    track = 0.05 * np.resize(noise, 16_000 * 14).astype(np.float32)
    begins = {word: 1 + 2.5 * number for number, word in enumerate(words)}
    for word, clip in zip(words, recordings(words, 1), strict=True):
        track[round(16_000 * begins[word]) :][: len(clip)] += clip
    listener = rc.Listener(rc.load("speech-commands"), sample_rate=16_000)
    packets = np.array_split(track.astype(np.int16), len(track) // PACKET)
    found = [each for packet in packets for each in listener.push(packet)]
    assert [each.label for each in found] == [word for word in words if word not in ("seven", "bird")]
    assert all(0.2 < each.seconds - begins[each.label] < 1.3 for each in found)
