"""Recordings of Speech Commands, where they are there, and the network of the reproduction that reads them."""

import io
import zipfile
from pathlib import Path

import pytest

import rankcode as rc

ROOT = Path(__file__).parents[1]
REAL = ROOT.parent / "shared" / "data" / "speech_commands_v0.01"
LONGEST = 20_000  # samples: recordings of background noise are cut


def recordings(words, count):
    """The first recordings of each word, samples of 16 bits at 16 kHz."""
    if not REAL.is_dir():
        pytest.skip("the recordings of Speech Commands v0.01 are not here")
    soundfile = pytest.importorskip("soundfile")
    for archive in words or sorted(path.stem for path in REAL.glob("*.zip")):
        with zipfile.ZipFile(REAL / f"{archive}.zip") as packed:
            for name in sorted(name for name in packed.namelist() if name.endswith(".ogg"))[:count]:
                yield soundfile.read(io.BytesIO(packed.read(name)), dtype="int16")[0][:LONGEST]


def speech_network():
    return rc.load(ROOT / "results" / "reproduction" / "runs" / "paper" / "speech-own-0")
