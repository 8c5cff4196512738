"""Sound from a microphone, as it is recorded. Needs sounddevice."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np

CHUNK_SECONDS = 0.02
MAX_CHUNKS = 250  # that wait to be read, 5 seconds: a computer that is further behind is too slow
MAX_SILENT_SECONDS = 3.0  # without a chunk: some drivers report nothing when a microphone is unplugged


def microphone(sample_rate: int, devices: Any = None, timeout: float = MAX_SILENT_SECONDS) -> Iterator[np.ndarray]:
    """Chunks of int16 samples [samples] from the default microphone, without end. One that cannot be used, or vanishes,
    raises an OSError. `devices` is the module sounddevice, or an object like it."""
    devices = _sounddevice() if devices is None else devices
    chunks: queue.Queue[np.ndarray | None] = queue.Queue(MAX_CHUNKS)
    lost: list[str] = []

    def keep(samples: np.ndarray, frames: int, time: Any, status: Any) -> None:  # called in a thread of the driver
        try:
            chunks.put_nowait(samples[:, 0].copy())
        except queue.Full:
            lost.append("sound was lost: this computer is too slow for the network")

    def end() -> None:
        with suppress(queue.Full):
            chunks.put_nowait(None)

    try:
        stream = devices.InputStream(
            samplerate=sample_rate,
            channels=1,
            dtype="int16",
            blocksize=round(CHUNK_SECONDS * sample_rate),
            callback=keep,
            finished_callback=end,
        )
        stream.start()
    except (devices.PortAudioError, ValueError) as error:
        raise OSError(f"there is no microphone that records at {sample_rate:,} Hz: {error}") from None
    try:
        while True:
            try:
                chunk = chunks.get(timeout=timeout)
            except queue.Empty:
                chunk = None
            if chunk is None or lost:
                raise OSError(lost[0] if lost else "the microphone has vanished: it records no more")
            yield chunk
    finally:
        with suppress(devices.PortAudioError):
            stream.close()


def _sounddevice() -> Any:
    try:
        import sounddevice
    except ImportError:
        raise ImportError("listening to a microphone needs sounddevice: pip install 'rankcode[mic]'") from None
    except OSError:  # on Linux it does not bring PortAudio
        raise OSError(
            "listening to a microphone needs the library PortAudio: install it, for example with "
            "apt install libportaudio2"
        ) from None
    return sounddevice
