"""Writing small WAV files."""

import io
import wave

import numpy as np


def wav_bytes(samples, rate=16_000):
    """A mono file with these samples of 16 bits."""
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setparams((1, 2, rate, 0, "NONE", ""))
        file.writeframes(samples.astype("<i2").tobytes())
    return content.getvalue()


def write_wav(path, samples=4000, seed=0):
    """A mono file with 16 bits a sample: the given samples in −1…1, or so many of noise."""
    if isinstance(samples, int):
        samples = 0.09 * np.random.default_rng(seed).standard_normal(samples)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(wav_bytes(32767 * np.asarray(samples)))
    return path


def tone(path, hertz, seconds=0.3):
    return write_wav(path, 0.3 * np.sin(2 * np.pi * hertz * np.arange(round(16_000 * seconds)) / 16_000))


def read_wav(path):
    with wave.open(str(path)) as file:
        return np.frombuffer(file.readframes(-1), "<i2") / np.float32(32768)
