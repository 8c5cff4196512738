"""Endless input: the same detections however it is cut, in bounded memory, and by the policy that is documented."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rankcode as rc
from live_networks import CELLS, NETWORKS, chunks, inputs_for, sound_network
from rankcode.streaming.live_inputs import MAX_AT_ONCE

QUICK = {"threshold": 0.6, "patience": 2, "copies": 3, "stagger": 4, "warm_up": 2, "refractory": 3}
NAMES = ("yes", "no", "unknown")


SOUND = {**QUICK, "threshold": 0.4}


def noise(samples, seed=0):
    """Sound that changes every 50 ms."""
    generator = np.random.default_rng(seed)
    loudness = 10 ** generator.uniform(-3, 0, samples // 200 + 1).repeat(200)[:samples]
    return (loudness * generator.uniform(-1, 1, samples)).astype(np.float32)


def by_hand(network, inputs, threshold, patience, copies, stagger, warm_up, refractory):
    """The policy, from whole sequences: each copy of the network by itself."""
    keywords = [label for label, name in enumerate(network.label_names) if name not in ("unknown", "silence")]
    sums, counts = torch.zeros(len(inputs), network.num_classes, dtype=torch.float64), torch.zeros(len(inputs), 1)
    for begin in range(0, len(inputs), stagger):
        part = rc.trace(network, inputs[None, begin : begin + copies * stagger]).activations[0, warm_up:]
        sums[begin + warm_up : begin + warm_up + len(part)] += part
        counts[begin + warm_up : begin + warm_up + len(part)] += 1
    found, lasted, label, last, reported = [], 0, None, -refractory, None
    for step, means in enumerate(sums / counts, start=1):
        values = means[keywords]
        if network.activation != "membrane":
            values = torch.where(values == means.max(), values / (values + means[2]), 0)
        same, label = int(values.argmax()) == label, int(values.argmax())
        lasted = 0 if not values.max() >= threshold else lasted + 1 if same else 1
        reported = reported if lasted >= patience else None
        if lasted >= patience and label != reported and step - last >= refractory:
            found.append((network.label_names[keywords[label]], step))
            last, reported = step, label
    return found


@pytest.mark.parametrize("name", [name for name in CELLS if name not in ("RandomKernels", "Parallel")])
def test_the_policy(name):
    network = CELLS[name]()
    network.label_names = NAMES
    settings = {**QUICK, "threshold": 0.45 if network.activation == "softmax" else 0.3}
    inputs = inputs_for(network, 200, seed=1)
    found = rc.Listener(network, **settings).push(inputs)
    assert [(each.label, each.steps) for each in found] == by_hand(network, inputs, **settings)
    assert len(found) > 2 and "unknown" not in {each.label for each in found}
    assert all(each.seconds is None and 0 < each.probability <= 1 for each in found)


@settings(max_examples=20, deadline=None)
@given(cuts=chunks(120, largest=30), cell=st.sampled_from(["LSTM", "Stack", "ConvLSTM", "own cell"]))
def test_detections_do_not_depend_on_chunks(cuts, cell):
    network = NETWORKS[cell]
    inputs = inputs_for(network, 120, seed=2)
    whole = rc.Listener(network, **QUICK).push(inputs)
    cut = rc.Listener(network, **QUICK)
    assert [each for piece in cuts for each in cut.push(inputs[piece])] == whole
    assert cut.steps == 120 and len(whole) > 0


@settings(max_examples=10, deadline=None)
@given(cuts=st.lists(st.integers(0, 8000), max_size=12).map(sorted), as_bytes=st.booleans())
def test_detections_in_sound_do_not_depend_on_chunks(cuts, as_bytes):
    network = sound_network()
    sound = (32767 * noise(8000)).astype(np.int16)
    sound = sound if as_bytes else sound / np.float32(32768)
    whole = rc.Listener(network, **SOUND, sample_rate=4000).push(sound)
    cut = rc.Listener(network, **SOUND)
    assert [each for piece in np.split(sound, cuts) for each in cut.push(piece)] == whole
    assert len(whole) > 2
    for each in whole:  # step s needs 10 ms · (s − 1 + 2 · context) + 12.5 ms
        assert each.seconds == pytest.approx((each.steps - 1 + 6) / 100 + 0.0125)


def test_a_bad_chunk_changes_nothing():
    network, sound = sound_network(), noise(8000)
    expected = rc.Listener(network, **SOUND).push(sound)
    listener = rc.Listener(network, **SOUND)
    found = listener.push(sound[:3000])
    for bad in (np.array([0.1, np.nan]), np.full(100, 3000.0), np.zeros((4, 2)), "sound"):
        with pytest.raises(ValueError):
            listener.push(bad)
    assert listener.push(np.zeros(0, np.float32)) == []
    assert found + listener.push(sound[3000:]) == expected
    listener.reset()
    assert listener.steps == 0 and listener.push(sound) == expected


def test_memory_is_bounded():
    def held(listener):
        streams = listener._inputs.streams
        states = torch.utils._pytree.tree_leaves((listener._state, listener._rule_state))
        state = sum(part.numel() for part in states if part is not None)
        return state, streams._samples._items.numel(), streams._frames._items.numel()

    listener, sound = rc.Listener(sound_network(), **SOUND), noise(4000)
    for _ in range(3):
        listener.push(sound)
    before = held(listener)
    for _ in range(10):
        listener.push(sound)
    assert held(listener) == before
    listener.push(np.tile(sound, 40))  # of any length: it is read in parts
    assert held(listener)[0] == before[0] and held(listener)[1] < 2.5 * MAX_AT_ONCE


@pytest.mark.parametrize("refractory", [1, 10, 30])
def test_a_second_detection_comes_after_the_refractory_time(refractory):
    settings = {**QUICK, "threshold": 0.45, "refractory": refractory}
    found = rc.Listener(NETWORKS["LSTM"], **settings).push(inputs_for(NETWORKS["LSTM"], 600, seed=3))
    gaps = np.diff([each.steps for each in found])
    assert len(gaps) > 2 and refractory <= gaps.min() < refractory + 10


def test_a_keyword_that_stays_is_reported_once():
    network = NETWORKS["LSTM"]
    always = {**QUICK, "threshold": 0.001, "warm_up": 0, "patience": 1, "keywords": ["1"]}
    found = rc.Listener(network, **always).push(inputs_for(network, 100, seed=0))
    assert [(each.label, each.steps) for each in found] == [("1", 1)]


def test_only_keywords_that_are_asked_for_fire():
    network = CELLS["LSTM"]()
    network.label_names = NAMES
    inputs = inputs_for(network, 400, seed=4)
    for keywords in (None, ["no"], ["unknown", "yes"]):
        found = rc.Listener(network, **{**QUICK, "threshold": 0.45}, keywords=keywords).push(inputs)
        assert {each.label for each in found} == set(keywords or ("yes", "no"))
    with pytest.raises(ValueError, match="no class 'maybe', only yes, no, unknown"):
        rc.Listener(network, keywords=["maybe"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"copies": 0}, "at least 1"),
        ({"refractory": 0}, "at least 1"),
        ({"warm_up": 150}, "warm_up in 0"),
        ({"threshold": 1.5}, "outside"),
        ({"patience": 0}, "at least 1"),
        ({"sample_rate": 8000}, "reads sound at 4,000 Hz, not at 8,000 Hz: resample it first"),
        ({"keywords": []}, "no class may fire"),
    ],
)
def test_settings_that_cannot_be(settings, message):
    with pytest.raises(ValueError, match=message):
        rc.Listener(sound_network(), **settings)
    with pytest.raises(ValueError, match="fire at every step"):
        rc.Listener(NETWORKS["RandomKernels"])
