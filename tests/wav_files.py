"""Writing small WAV files."""

import wave

import numpy as np


def write_wav(path, samples=4000, seed=0, rate=16_000):
    """A mono file with 16 bits a sample: the given samples in −1…1, or so many of noise."""
    if isinstance(samples, int):
        samples = 0.09 * np.random.default_rng(seed).standard_normal(samples)
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, rate, 0, "NONE", ""))
        file.writeframes((32767 * np.asarray(samples)).astype("<i2").tobytes())
    return path


def tone(path, hertz, seconds=0.3):
    return write_wav(path, 0.3 * np.sin(2 * np.pi * hertz * np.arange(round(16_000 * seconds)) / 16_000))


def read_wav(path):
    with wave.open(str(path)) as file:
        return np.frombuffer(file.readframes(-1), "<i2") / np.float32(32768)
