"""Streams over WebSocket: the answers are those of whole recordings, whatever the chunks and however many clients."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from running_service import RULE, Raw, expected_answers, request, running, same, small_network, sounds, wait_until

import rankcode as rc
from live_networks import Leaky, network_of, series_network
from rankcode.serve.client import Client, ServiceError
from rankcode.serve.served_model import ServedModel
from rankcode.serve.wire_format import record, records


@pytest.fixture(scope="module")
def server():
    with running() as found:
        yield found


def in_chunks(recording, generator, largest=400):
    ends = np.cumsum(generator.integers(0, largest, len(recording)))
    return np.split(recording, ends[ends < len(recording)])


@pytest.mark.parametrize("dtype", ["int16", "float32"])
def test_many_clients_with_random_chunks_get_the_answers_of_whole_recordings(server, dtype):
    recordings = list(sounds(48, seed=1))
    expected = expected_answers(small_network(), recordings)
    assert {each.fired for each in expected} == {True, False} and len({each.label for each in expected}) == 3
    found = {}

    def play(first):
        generator = np.random.default_rng(first)
        with Client(server.url, dtype) as client:
            for number in range(first, len(recordings), 12):  # one after the other on the same connection
                answer = None
                for chunk in in_chunks(recordings[number], generator):
                    if (answer := client.push(chunk)) is not None:
                        break
                found[number] = client.finish() if answer is None else answer

    with ThreadPoolExecutor(12) as clients:
        list(clients.map(play, range(12), timeout=30))
    assert len(found) == len(recordings)
    assert [number for number, each in enumerate(expected) if not same(found[number], each)] == []


def test_many_streams_on_one_connection(server):
    recordings = list(sounds(40, seed=2))
    expected = expected_answers(small_network(), recordings)
    client = Raw(server.port)
    for begin in range(0, 2000, 250):  # a part of every recording in each message
        parts = [record(number, each[begin : begin + 250].tobytes()) for number, each in enumerate(recordings)]
        client.frame(2, b"".join(parts))
    for number in range(len(recordings)):
        client.text(type="finish", stream=number)
    found = {}
    while len(found) < len(recordings):
        message = client.message()
        kind, number, *answer = message.values()
        assert kind == "decision"
        found[number] = tuple(answer)
    assert [number for number, each in enumerate(expected) if not same(found[number], each)] == []
    client.socket.close()


def test_the_hello_says_what_the_network_needs(server):
    with Client(server.url) as client:
        model, limits = client.model, client.limits
    assert (model["sample_rate"], model["step_shape"], model["dtypes"]) == (4000, [], ["int16", "float32"])
    assert model["labels"] == ["low", "middle", "high"] and model["name"] == "test"
    assert model["rule"]["kind"] == "Threshold" and model["rule"]["threshold"] == 0.6
    assert len(model["version"]) == 16 and limits["message_bytes"] == 1 << 18


def test_data_that_comes_after_the_answer_is_ignored_and_the_next_stream_begins(server):
    recording = next(each for each in sounds(20) if expected_answers(small_network(), [each])[0].steps == 1)
    client = Raw(server.port)
    client.data(0, recording)
    first = client.message()
    client.data(0, recording)  # was on its way
    client.text(type="finish", stream=0)
    client.data(1, recording)
    second = client.message()
    assert (first.pop("stream"), second.pop("stream")) == (0, 1) and first == second and first["fired"]
    client.socket.close()


def test_a_recording_sent_at_once_does_not_stop_the_others(server):
    """A client that sends 10 s at once waits for them; the streams of others are read in between."""
    network = small_network()
    quiet = np.zeros(10 * 4000, np.int16)
    with Client(server.url, "int16", timeout=30) as large, Client(server.url, "int16") as small:
        begun = time.monotonic()
        waiting = threading.Thread(target=large.classify, args=(quiet,))
        waiting.start()
        recording = next(iter(sounds(1, seed=3)))
        answers = []
        while waiting.is_alive() and time.monotonic() < begun + 20:
            sent = time.monotonic()
            answers.append((small.classify(recording), time.monotonic() - sent))
        waiting.join()
    (expected,) = expected_answers(network, [recording])
    assert len(answers) > 3 and all(same(answer, expected) for answer, _ in answers)
    assert max(seconds for _, seconds in answers) < 2


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_series(dtype):
    network = series_network(2)
    network.rule = rc.Threshold(0.84)
    rows = [np.random.default_rng(seed).normal(size=(25, 2)).astype(dtype) for seed in range(12)]
    rows[3][4:7, 1] = np.nan  # a missing value
    with running(network) as server, Client(server.url, dtype) as client:
        assert client.model["step_shape"] == [2] and client.model["sample_rate"] is None
        found = [client.classify(row) for row in rows]
    expected = rc.predict(network, rows)
    assert {each.fired for each in expected} == {True, False}
    assert all(same(answer, each) for answer, each in zip(found, expected, strict=True))


def test_a_network_without_a_front_end_takes_steps():
    network = network_of(rc.cells.GRU(3, 4)).float()
    network.rule = rc.Threshold(0.7)
    rows = np.random.default_rng(0).normal(size=(8, 30, 3)).astype(np.float32)
    with running(network) as server, Client(server.url) as client:
        found = [client.classify(row) for row in rows]
    assert all(same(*each) for each in zip(found, rc.predict(network, rows), strict=True))


def test_a_cell_that_does_not_say_its_input_shape_cannot_be_served():
    with pytest.raises(ValueError, match="input_shape"):
        ServedModel(network_of(Leaky()), "own")


def test_streams_of_a_client_that_leaves_are_freed(server):
    client = Raw(server.port)
    for number in range(20):
        client.data(number, np.zeros(400, np.int16))
    wait_until(lambda: server.metrics()["rankcode_streams"] == 20)
    client.socket.close()
    wait_until(lambda: server.metrics()["rankcode_streams"] == 0)


def test_over_capacity_newcomers_are_refused_and_the_others_go_on():
    recording = next(iter(sounds(1, seed=3)))
    (expected,) = expected_answers(small_network(), [recording])
    with running(max_streams=2) as server, Client(server.url, "int16") as first, Client(server.url, "int16") as second:
        third = Client(server.url, "int16")
        first.push(recording[:200])
        second.push(recording[:200])
        wait_until(lambda: server.metrics()["rankcode_streams"] == 2)
        with pytest.raises(ServiceError, match="try again later") as refused:
            third.classify(recording)  # was connected before the others began
        assert refused.value.code is None
        with pytest.raises(ServiceError, match="try again later") as refused:
            Client(server.url)
        assert refused.value.code == 503
        first.push(recording[200:])
        assert same(first.finish(), expected)
        assert same(third.classify(recording), expected)  # there is room again
        third.close()


class Slow:
    """A rule that takes its time."""

    seconds = 0.0

    def initial_state(self, batch_size):
        return RULE.initial_state(batch_size)

    def __call__(self, activations, probabilities, step, state):
        time.sleep(self.seconds)
        return RULE(activations, probabilities, step, state)


def test_an_overloaded_server_refuses_newcomers():
    network, recording = small_network(), next(iter(sounds(1, seed=3)))
    expected = expected_answers(network, [recording])[0]
    network.rule = Slow()
    with running(network, lag_ms=60) as server, Client(server.url, "int16", timeout=60) as old:
        network.rule.seconds = 0.15
        for begin in range(0, 1200, 40):  # a step in every tick
            old.push(recording[begin : begin + 40])
            time.sleep(0.05)
        wait_until(lambda: server.metrics()["rankcode_overloaded"] == 1)
        with pytest.raises(ServiceError, match="try again later") as refused:
            Client(server.url)
        assert refused.value.code == 503
        network.rule.seconds = 0
        old.push(recording[1200:])
        assert same(old.finish(), expected)
        wait_until(lambda: server.metrics()["rankcode_overloaded"] == 0)
        with Client(server.url, "int16") as new:
            assert same(new.classify(recording), expected)


def test_a_single_long_tick_is_no_overload():
    network, recording = small_network(), next(iter(sounds(1, seed=3)))
    network.rule = Slow()
    with running(network, lag_ms=60) as server, Client(server.url, "int16") as old:
        network.rule.seconds = 1.5
        old.push(recording[:480])  # one step
        wait_until(lambda: request(server.port, "/health/ready")[0] == 503)  # while it lasts
        network.rule.seconds = 0
        wait_until(lambda: server.metrics()["rankcode_tick_seconds_sum"] > 1)
        Client(server.url).close()  # is not refused


def test_records_are_read_as_they_are_written():
    message = record(0, b"ab") + record(2**32 - 1, b"") + record(7, b"cdef")
    assert list(records(message)) == [(0, b"ab"), (2**32 - 1, b""), (7, b"cdef")]
    for end in range(1, len(message)):
        if end not in (10, 18):
            with pytest.raises(ValueError, match="binary message"):
                list(records(message[:end]))
