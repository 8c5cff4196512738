"""Real recordings: an exported network decides as PyTorch does, from samples."""

import numpy as np
import pytest

import rankcode as rc
from real_recordings import recordings, speech_network

pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.usefixtures("operators_are_read_once")
WORDS = ("yes", "left", "bird", "_background_noise_")


def exported(tmp_path, words, count, **options):
    """Export the network and compare on the first recordings of these words."""
    sounds = [samples / np.float32(32768) for samples in recordings(words, count)]
    return rc.export_onnx(speech_network(), tmp_path / "speech.onnx", check_on=sounds, **options)


@pytest.mark.parametrize("rule", [None, rc.Patience(rc.Threshold(0.9), 5)], ids=str)
def test_decisions_from_samples(tmp_path, rule):
    done = exported(tmp_path, WORDS, 20, rule=rule)
    assert done.agreement.rows > 60 and done.agreement.near <= 1 and done.agreement.difference < 1e-4
    assert done.size < 2.2e6 and done.parameters > 450_000


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("int8", [False, True])
def test_5000_recordings(tmp_path, int8):
    done = exported(tmp_path, (), 170, int8=int8)
    assert done.agreement.rows > 5000 and done.agreement.near <= 5 and done.agreement.difference < 1e-4
    assert done.size < (0.7e6 if int8 else 2.2e6) and done.agreement.changed <= 0.003 * done.agreement.rows
