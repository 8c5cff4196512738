"""Sound files to waveforms: any format libsndfile reads, any rate, any number of channels."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import numpy as np

from rankcode.data.sources import BadData

SUFFIXES = {".wav", ".flac", ".ogg", ".opus", ".mp3", ".aiff", ".aif", ".au"}


def read_audio(path: str | Path, rate: int = 16_000) -> np.ndarray:
    """A file as float32 samples in −1…1, channels averaged, at `rate` samples a second."""
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {path}") from None
    if not content:
        raise BadData(f"{path} is empty")
    own_rate, samples = _plain_wav(content, path) or _any_format(content, path)
    if not 100 <= own_rate <= 10_000_000:
        raise BadData(f"{path} cannot be right: {own_rate:,} samples a second")
    if not np.isfinite(samples).all():
        raise BadData(f"{path} holds NaN or infinity")
    samples = resample(samples, own_rate, rate) if len(samples) else samples
    if len(samples) == 0:  # a few at a high rate are none at a lower one
        raise BadData(f"{path} holds no samples")
    return samples


def resample(samples: np.ndarray, own_rate: int, rate: int) -> np.ndarray:
    """Samples [samples] at another rate, band-limited."""
    if own_rate == rate:
        return samples
    try:
        import soxr
    except ImportError:
        raise ImportError("changing a sampling rate needs soxr: pip install 'rankcode[audio]'") from None
    return soxr.resample(samples, own_rate, rate)


def _plain_wav(content: bytes, path: str | Path) -> tuple[int, np.ndarray] | None:
    """Rate and samples of a WAV of 16-bit samples in one channel, the commonest file by far; None for others.

    Also where a WAV of any kind is seen to be cut short: libsndfile reads what there is, and says nothing.
    """
    if content[:4] != b"RIFF" or content[8:12] != b"WAVE":
        return None
    form, at = None, 12
    while at + 8 <= len(content):
        name, length = struct.unpack_from("<4sI", content, at)
        at += 8
        if name == b"fmt " and at + 16 <= len(content):
            form = struct.unpack_from("<HHIIHH", content, at)  # format, channels, rate, bytes a second, block, bits
        if name == b"data":
            there = len(content) - at
            # Programs that write to a pipe cannot know the length, and say 0, nearly 2³¹ or nearly 2³².
            if length >= 0x7FFFF000 or (length == 0 and content[4:8] == bytes(4)):
                length = there - there % 2
            if length > there:
                raise BadData(f"{path} is cut short: {length:,} bytes of sound announced, {there:,} there")
            if form is None or (form[0], form[1], form[5]) != (1, 1, 16) or length > there or length % 2:
                return None
            return form[2], np.frombuffer(content, "<i2", length // 2, at).astype(np.float32) / 32768
        at += length + length % 2
    return None


def _any_format(content: bytes, path: str | Path) -> tuple[int, np.ndarray]:
    try:
        import soundfile
    except ImportError:
        raise ImportError(f"reading {path} needs soundfile: pip install 'rankcode[audio]'") from None
    try:
        samples, rate = soundfile.read(io.BytesIO(content), dtype="float32", always_2d=True)
    except soundfile.LibsndfileError as error:
        raise BadData(f"{path} is not sound that can be read: {error.error_string.rstrip('.')}") from None
    return rate, samples.mean(1)
