"""Real recordings, live: what the network of the reproduction answers, and when, is what it answers to whole files."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from live_networks import assert_predicted, streamed

import rankcode as rc

ROOT = Path(__file__).parents[2]
REAL = ROOT.parent / "shared" / "data" / "speech_commands_v0.01"
PACKET = 320  # samples: 20 ms


@pytest.fixture(scope="module")
def recordings():
    if not REAL.is_dir():
        pytest.skip("the recordings of Speech Commands v0.01 are not here")
    soundfile = pytest.importorskip("soundfile")
    found = []
    for word in ("yes", "left", "bird", "_background_noise_"):
        with zipfile.ZipFile(REAL / f"{word}.zip") as archive:
            names = sorted(name for name in archive.namelist() if name.endswith(".ogg"))[:10]
            found += [soundfile.read(io.BytesIO(archive.read(name)), dtype="int16")[0][:20_000] for name in names]
    return found


@pytest.fixture(scope="module")
def network():
    return rc.load(ROOT / "results" / "reproduction" / "runs" / "paper" / "speech-own-0")


@pytest.mark.parametrize("rule", [None, rc.Patience(rc.Threshold(0.9), 5), rc.Never()], ids=str)
def test_recordings_in_packets_of_20_milliseconds(recordings, network, rule):
    expected = rc.predict(network, [samples / np.float32(32768) for samples in recordings], rule)
    assert rule == rc.Never() or (len({answer.steps for answer in expected}) > 5 and any(a.fired for a in expected))
    pool = rc.StreamPool(network, rule, capacity=len(recordings), sample_rate=16_000)
    ids, together = [pool.open() for _ in recordings], {}
    for at in range(0, 20_000, PACKET):
        for stream, samples in zip(ids, recordings, strict=True):
            if stream not in together and at < len(samples):
                pool.push(stream, samples[at : at + PACKET])
                if at + PACKET >= len(samples):
                    pool.finish(stream)
        together.update(pool.tick())
    stream = rc.Stream(network, rule, sample_rate=16_000)
    for number, samples, answer in zip(ids, recordings, expected, strict=True):
        assert_predicted(together[number], answer)
        assert_predicted(streamed(stream, np.array_split(samples, 1 + len(samples) // PACKET)), answer)
        stream.reset()
