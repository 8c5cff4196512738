"""How many streams the service takes by default."""

from running_service import small_network

from live_networks import series_network
from rankcode.serve import capacity
from rankcode.serve.capacity import measured_streams
from rankcode.serve.limits import Limits
from rankcode.serve.served_model import ServedModel


def test_sound_is_measured_and_other_data_has_no_rate():
    sound, series = ServedModel(small_network(), "sound"), ServedModel(series_network(2), "series")
    assert 1 <= measured_streams(sound) <= Limits().max_clients
    assert measured_streams(series) == Limits().max_streams


def test_a_computer_that_is_too_slow_takes_one(monkeypatch):
    monkeypatch.setattr(capacity, "SHARE", 1e-6)
    assert measured_streams(ServedModel(small_network(), "sound")) == 1
