"""A stream gives the decision of offline inference, whatever the cell, the rule, the length and the chunks."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rankcode as rc
from live_networks import (
    NETWORKS,
    RULES,
    Leaky,
    assert_predicted,
    assert_same,
    chunks,
    image_network,
    inputs_for,
    network_of,
    series_network,
    sound_network,
    streamed,
)
from rankcode.streaming import live_inputs

quiet = settings(deadline=None, max_examples=30, derandomize=True)
every_cell = pytest.mark.parametrize("name", NETWORKS)


# Offline = stream


@every_cell
@quiet
@given(data=st.data())
def test_the_decision_is_that_of_offline_inference(name, data):
    network, rule = NETWORKS[name], data.draw(st.sampled_from(list(RULES.values())))
    inputs = inputs_for(network, data.draw(st.integers(1, 14)), data.draw(st.integers(0, 999)))
    expected = rc.decide(network, inputs[None], rule=rule)
    stream = rc.Stream(network, rule)
    for cut in (data.draw(chunks(len(inputs))), data.draw(chunks(len(inputs)))):
        assert_same(streamed(stream, [inputs[part] for part in cut]), expected)
        assert stream.steps == expected.steps.item()
        stream.reset()
    reference = rc.decide(network, inputs[None], rule=rule, engine="reference")
    assert_same(streamed(stream, inputs), reference, probabilities=0)  # step by step: the same to the last bit


@every_cell
def test_the_rules_of_these_tests_fire_early_late_and_never(name):
    """Otherwise equal decisions would mean little."""
    network = NETWORKS[name]
    found = [rc.decide(network, inputs_for(network, 14, 0, rows=40), rule=rule) for rule in RULES.values()]
    steps = torch.cat([decision.steps[decision.fired] for decision in found])
    assert len(steps.unique()) >= 4 and not all(decision.fired.all() for decision in found)
    assert len(torch.cat([decision.label for decision in found]).unique()) >= 2


@every_cell
def test_the_probabilities_after_every_step_are_those_of_a_trace(name):
    network = NETWORKS[name]
    inputs = inputs_for(network, 9, seed=3)
    expected = rc.trace(network, inputs[None]).probabilities[0]
    stream = rc.Stream(network, rc.Never())
    assert stream.probabilities is None
    for step, x_t in enumerate(inputs):
        assert stream.push(x_t) is None and stream.steps == step + 1
        torch.testing.assert_close(stream.probabilities[0], expected[step], rtol=0, atol=1e-9)


def test_one_sigmoid_output():
    torch.manual_seed(1)
    network = rc.Network(rc.cells.GRU(2, 3), 1).double()
    inputs = 4 * torch.randn(8, 12, 2, dtype=torch.float64)
    expected = rc.decide(network, inputs, rule=rc.Threshold(0.6))
    assert expected.fired.any() and not expected.fired.all()
    for row, decision in zip(inputs, zip(*expected, strict=True), strict=True):
        assert_same(streamed(rc.Stream(network, rc.Threshold(0.6)), [row]), rc.Decision(*(p[None] for p in decision)))


def test_float32_and_the_networks_own_rule():
    network = network_of(rc.cells.LSTM(3, 5)).float()
    network.rule = rc.Threshold(0.9)
    inputs = inputs_for(network, 20, seed=5).float()
    assert_same(streamed(rc.Stream(network), inputs), rc.decide(network, inputs[None], engine="reference"), 0)
    assert rc.Stream(network_of(rc.cells.GRU(3, 2))).rule == rc.Threshold(0.95)


def test_a_network_in_training_mode_is_evaluated_and_stays_in_training_mode():
    network = network_of(rc.cells.Glimpses((4, 5), 8, channels=8, dropout=0.9)).train()
    inputs = inputs_for(network, 8, seed=0)
    expected = rc.decide(network, inputs[None], rule=rc.Never())
    assert_same(streamed(rc.Stream(network, rc.Never()), [inputs]), expected)
    assert all(module.training for module in network.modules())


def test_what_comes_after_the_decision_is_not_read():
    network = NETWORKS["own cell"]
    inputs = inputs_for(network, 6, seed=0)
    read = []
    hook = network.cell.register_forward_hook(lambda *_: read.append(1))
    decision = rc.Stream(network, rc.FireAt(4)).push(inputs)
    hook.remove()
    assert decision.steps.item() == 4 and decision.fired.item() and len(read) == 4


def test_a_long_chunk_is_read_in_parts(monkeypatch):
    network = NETWORKS["LSTM"]
    inputs = inputs_for(network, 50, seed=0)
    monkeypatch.setattr(live_inputs, "MAX_AT_ONCE", 20)
    stream = rc.Stream(network, rc.Never())
    sizes, take = [], stream._inputs.take
    monkeypatch.setattr(stream._inputs, "take", lambda rows, steps: sizes.append(steps) or take(rows, steps))
    assert_same(streamed(stream, [inputs]), rc.decide(network, inputs[None], rule=rc.Never()))
    assert max(sizes) == 6


# Raw data


@quiet
@given(data=st.data())
def test_series_with_missing_values_of_any_precision(data):
    channels, steps = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 12))
    network, kind = series_network(channels), data.draw(st.sampled_from(["float32", "float64", "int16"]))
    random = np.random.default_rng(data.draw(st.integers(0, 999)))
    values = (5 * random.normal(size=(steps, channels))).astype(kind)
    if kind != "int16":
        values[random.random(values.shape) < 0.3] = np.nan
        values[-1] = 1  # a row of missing values alone is refused offline
    rule = data.draw(st.sampled_from([rc.Threshold(0.7), rc.Never()]))
    (expected,) = rc.predict(network, [values], rule)
    given = values[:, 0] if channels == 1 and data.draw(st.booleans()) else values
    found = streamed(rc.Stream(network, rule), [given[part] for part in data.draw(chunks(steps))])
    assert_predicted(found, expected)


@pytest.mark.parametrize("shape", [(1, 4, 3), (12,)])
@pytest.mark.parametrize("whole", [True, False])
def test_images_as_they_appear_and_whole(shape, whole):
    network, rule = image_network(shape, steps=6), rc.Threshold(0.6)
    images = np.random.default_rng(0).integers(0, 17, size=(20, 4, 3))
    expected = rc.predict(network, list(images), rule)
    assert {answer.fired for answer in expected} == {True, False}
    for image, answer in zip(images, expected, strict=True):
        inputs = network.front_end(torch.from_numpy(image)[None])[0][0]
        found = streamed(rc.Stream(network, rule), [image] if whole else inputs.bool())
        assert_predicted(found, answer)


@quiet
@given(data=st.data())
def test_sound_of_any_length_in_chunks_of_any_size(data):
    network = sound_network(context=data.draw(st.sampled_from([0, 1, 3])))
    length = data.draw(st.one_of(st.integers(1, 300), st.integers(1, 3000)))
    samples = np.random.default_rng(data.draw(st.integers(0, 999))).normal(size=length)
    samples = (3000 * samples * np.sin(np.arange(length) / 300)).clip(-32768, 32767).astype(np.int16)
    rule = data.draw(st.sampled_from([rc.Threshold(0.8), rc.Patience(rc.Threshold(0.6), 3), rc.Never()]))
    (expected,) = rc.predict(network, [samples / np.float32(32768)], rule)
    given = samples if data.draw(st.booleans()) else samples / 32768
    cut = data.draw(chunks(length, largest=data.draw(st.sampled_from([1000, 170, 41]))))
    found = streamed(rc.Stream(network, rule, sample_rate=4000), [given[part] for part in cut])
    assert_predicted(found, expected)


@pytest.mark.parametrize("step", [1, 2, 7])
@pytest.mark.parametrize("context", [0, 3])
def test_a_decision_comes_with_the_sample_that_completes_its_step(step, context):
    network = sound_network(context)
    needed = round(4 * network.front_end.heard(torch.tensor([step]), torch.tensor([10_000])).item())
    stream = rc.Stream(network, rc.FireAt(step))
    assert stream.push(np.zeros(needed - 1)) is None
    decision = stream.push(np.zeros(1))
    assert decision is not None and decision.steps.item() == step


def test_the_rule_can_fire_at_steps_that_the_end_completes():
    network = sound_network(context=0)
    samples = np.zeros(400)  # 11 frames, of which the end completes two
    (expected,) = rc.predict(network, [samples], rc.FireAt(11))
    stream = rc.Stream(network, rc.FireAt(11))
    assert stream.push(samples) is None and stream.steps == 9
    assert expected.fired and stream.finish().fired.item() and stream.steps == 11


# What is refused


def refused(error, message, call, *arguments):
    with pytest.raises(error, match=message) as caught:
        call(*arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("chunk", "message"),
    [
        (np.full((2, 3), np.nan), "NaN or infinity"),
        (np.full(3, np.inf), "NaN or infinity"),
        (np.zeros(4), r"a step has shape \[3\].* not \[4\]"),
        (np.zeros((2, 2, 3)), r"not \[2, 2, 3\]"),
        (np.array(1.0), r"not \[\]"),
        (np.array(["yes"]), "takes numbers"),
        (np.zeros(3, complex), "complex"),
    ],
)
def test_bad_inputs_are_refused_and_the_stream_goes_on(chunk, message):
    network = NETWORKS["LSTM"]
    inputs = inputs_for(network, 9, seed=1)
    stream = rc.Stream(network, rc.Never())
    stream.push(inputs[:4])
    refused(ValueError, message, stream.push, chunk)
    assert stream.steps == 4
    assert_same(streamed(stream, [inputs[4:]]), rc.decide(network, inputs[None], rule=rc.Never()))


@pytest.mark.parametrize(
    ("chunk", "message"),
    [
        (np.array([0.1, np.nan]), "NaN or infinity"),
        (np.zeros(3, np.int32), "not int32"),
        (np.zeros((2, 2)), r"not float64 \[2, 2\]"),
        (np.full(3, 300.0), "not up to 300: scale them"),
    ],
)
def test_bad_samples_are_refused_and_the_stream_goes_on(chunk, message):
    network, samples = sound_network(), np.sin(np.arange(1500) / 9)
    stream = rc.Stream(network, rc.Never())
    stream.push(samples[:700])
    refused(ValueError, message, stream.push, chunk)
    (expected,) = rc.predict(network, [samples], rc.Never())
    found = streamed(stream, [samples[700:]])
    assert_predicted(found, expected)


def test_bad_values_of_series_and_images():
    refused(ValueError, "holds infinity", rc.Stream(series_network(2)).push, [1.0, np.inf])
    image = rc.Stream(image_network((1, 4, 3), steps=6), rc.Never())
    refused(ValueError, "1 where a pixel appears", image.push, np.full((1, 4, 3), 0.5))
    refused(ValueError, r"shape \[1, 4, 3\]", image.push, np.zeros((3, 3), int))
    refused(ValueError, "lie in 0…16", image.push, np.full((4, 3), 17))
    image.push(np.zeros((5, 1, 4, 3)))
    refused(ValueError, "complete after 6 steps, and these would be 7", image.push, np.zeros((2, 1, 4, 3)))
    assert image.steps == 5 and image.push(np.zeros((1, 4, 3))) is None and image.steps == 6


def test_a_sample_rate_that_is_not_the_networks():
    network = sound_network()
    refused(ValueError, "reads sound at 4,000 Hz, not at 16,000 Hz: resample", rc.Stream, network, None, 16_000)
    refused(ValueError, "does not read sound", rc.Stream, NETWORKS["LSTM"], None, 16_000)


def test_a_stream_that_has_answered_wants_a_reset():
    network = NETWORKS["LSTM"]
    inputs, stream = inputs_for(network, 6, seed=1), rc.Stream(network, rc.FireAt(3))
    for end in (lambda: stream.push(inputs), lambda: (stream.push(inputs[:2]), stream.finish())):
        end()
        for call in (lambda: stream.push(inputs), lambda: stream.push(inputs[:0]), stream.finish):
            refused(RuntimeError, r"the stream has answered; call reset\(\)", call)
        stream.reset()
        assert stream.steps == 0 and stream.probabilities is None


@pytest.mark.parametrize("network", [NETWORKS["LSTM"], sound_network()], ids=["inputs", "sound"])
def test_an_end_before_any_input(network):
    stream = rc.Stream(network)
    assert stream.push(np.zeros((0, 3) if network.front_end is None else 0)) is None
    refused(RuntimeError, r"nothing was read: push inputs before finish\(\)", stream.finish)
    assert stream.push(np.zeros(3)) is None and stream.finish().steps.item() == 1


def test_a_front_end_that_cannot_be_streamed():
    network = NETWORKS["LSTM"]

    class Own:
        def __call__(self, stored, lengths=None):
            return stored, lengths

    other = rc.Network(network.cell, 3)
    other.front_end = Own()
    refused(ValueError, r"Own has no method stream\(rows\)", rc.Stream, other)


def test_a_cell_that_does_not_say_its_shape_reads_vectors():
    stream = rc.Stream(network_of(Leaky()), rc.Never())
    refused(ValueError, "the cell needs an attribute input_shape", stream.push, np.zeros((1, 1, 3)))
    stream.push([0.1, 0.2, 0.3])
    refused(ValueError, r"a step has shape \[3\]", stream.push, np.zeros(4))


def test_a_rule_that_does_not_fit():
    refused(ValueError, "a rule is needed, not 0.9", rc.Stream, NETWORKS["LSTM"], 0.9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        refused(ValueError, "steps for 2 rows", rc.Stream, NETWORKS["LSTM"], rc.FireAt([1, 2]))
