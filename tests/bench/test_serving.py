"""Live clients of the service, so few and for so short that the numbers mean nothing."""

import pytest

pytest.importorskip("fastapi")

import numpy as np

import rankcode as rc
from rankcode.bench import serving
from rankcode.bench.cases import Shape
from rankcode.bench.serving import Served, make_clips, measure_serving, running_server, serving_table
from rankcode.bench.streams import sound_front_end


@pytest.fixture(scope="module")
def network():
    found = Shape(input_size=420, hidden_size=4).network()
    found.front_end, found.rule = sound_front_end(), rc.Threshold(0.3)
    return found


@pytest.fixture(scope="module")
def server(network, tmp_path_factory):
    path = tmp_path_factory.mktemp("served") / "model.safetensors"
    rc.save(network, path)
    with running_server(str(path), "--max-streams", "12", "--streams-per-client", "20") as found:
        assert found[2] == 12
        yield found


def test_decisions_are_those_of_whole_recordings(network, server, monkeypatch):
    monkeypatch.setattr(serving, "WARM_UP_SECONDS", 1.0)
    clips = make_clips(network)
    assert len(clips) == 64 and {len(each.packets) for each in clips} == {50}
    found = measure_serving(server, clips, streams=9, per_connection=3, seconds=2)
    assert (found.streams, found.connections, found.capacity) == (9, 3, 12)
    assert found.decisions > 9 and (found.different, found.refused, found.failed) == (0, 0, 0)
    assert 0 < found.p50 <= found.p99 <= found.longest and 0 < found.load_cores < 2


def test_wrong_decisions_are_counted(network, server, monkeypatch):
    monkeypatch.setattr(serving, "WARM_UP_SECONDS", 0.5)
    clips = [each._replace(expected=each.expected._replace(steps=0)) for each in make_clips(network)]
    found = measure_serving(server, clips, streams=4, per_connection=1, seconds=1)
    assert found.different == found.decisions > 0 and not found.holds


def test_streams_beyond_the_capacity_are_refused_and_counted(network, server, monkeypatch):
    monkeypatch.setattr(serving, "WARM_UP_SECONDS", 1.0)
    found = measure_serving(server, make_clips(network), streams=20, per_connection=1, seconds=2)
    assert found.refused == 8 and found.different == 0 and found.decisions > 0 and not found.holds


def test_recordings_of_a_folder(network, tmp_path):
    import wave

    with wave.open(str(tmp_path / "noise.wav"), "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", ""))
        file.writeframes(np.random.default_rng(0).integers(-999, 999, 24_000).astype("<i2").tobytes())
    (clip,) = make_clips(network, str(tmp_path))
    assert len(clip.packets) == 50  # the first second


def test_a_server_that_cannot_start_says_why(tmp_path):
    with pytest.raises(RuntimeError, match="there is no model file"), running_server(str(tmp_path / "nothing")):
        pass


def test_the_table_names_the_largest_number_that_holds():
    good = Served(100, 100, 10, 900, 0, 0, 0, 30, 60, 80, 500, 0.5, 0.1)
    late = Served(500, 500, 10, 900, 0, 0, 0, 30, 101, 120, 500, None, 0.1)
    refused = Served(600, 600, 10, 900, 0, 100, 0, 30, 60, 80, 500, 0.5, 0.1)
    assert serving_table([good, late, refused]).endswith("within 100 ms: up to 100 streams")
