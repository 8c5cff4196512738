"""Live streams in real time, so few and so short that the numbers mean nothing."""

import dataclasses

import pytest
import torch

from rankcode.bench import streams
from rankcode.bench.cases import Shape
from rankcode.bench.streams import PlantedEvenly, Streams, measure_streams, sound_front_end, streams_table


def small_network():
    network = Shape(input_size=420, hidden_size=4, readout_layer_size=5).network()
    network.front_end = sound_front_end()
    return network


def test_planted_steps_are_spread_over_all_steps():
    steps = PlantedEvenly(81).initial_state(2000)
    assert steps.min() == 1 and steps.max() == 81 and abs(steps.float().mean() - 41) < 2
    fired, _ = PlantedEvenly(81)(torch.zeros(3, 2), None, torch.tensor([1, 5, 9]), torch.tensor([2, 5, 4]))
    assert fired.tolist() == [False, True, True]


def test_streams_are_measured_in_real_time():
    found = measure_streams(small_network(), count=6, seconds=2)
    assert found.streams == 6 and 0 < found.busy <= 1
    assert 5 <= found.decisions <= 80  # a stream answers after 0.6 seconds on average
    assert 0 < found.p50 <= found.p99 <= found.longest


def test_latency_is_counted_from_the_sound(monkeypatch):
    """A pool that is asked every 100 ms answers 50 ms after the packet on average, and 100 ms at most."""
    monkeypatch.setattr(streams, "TICK_SECONDS", 0.1)
    found = measure_streams(small_network(), count=4, seconds=2)
    assert found.p50 > 25 and found.longest > 60 and not found.holds


def test_a_machine_that_is_too_slow_is_given_up(monkeypatch):
    monkeypatch.setattr(streams, "MAX_LATE_SECONDS", 0.1)
    monkeypatch.setattr(streams, "TICK_SECONDS", 0.2)
    found = measure_streams(small_network(), count=3, seconds=60)
    assert found.decisions >= 3 and found.longest >= 100 and not found.holds


def test_the_table_names_the_largest_number_that_holds():
    fast = Streams(100, 10, 1000, 20.0, 49.0, 60.0, 0.4)
    slow = dataclasses.replace(fast, streams=200, p99=51.0)
    text = streams_table([fast, slow])
    assert len(text.splitlines()) == 4 and text.endswith("within 50 ms: up to 100 streams")
    assert streams_table([slow]).endswith("up to 0 streams")
    with pytest.raises(ValueError, match="gave 0 decisions: measure for longer"):
        measure_streams(small_network(), count=1, seconds=-1.4)
