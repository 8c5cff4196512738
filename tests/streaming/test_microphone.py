"""A microphone: its sound in chunks, and one clear error for everything that happens to microphones."""

import threading

import numpy as np
import pytest

from rankcode.streaming.microphone import MAX_CHUNKS, microphone


class PortAudioError(Exception):
    pass


class Device:
    """Stands for the module sounddevice: a device that records some chunks, and then does what `end` says."""

    PortAudioError = PortAudioError

    def __init__(self, chunks=3, end="stop", refuses=None):
        self.chunks, self.end, self.refuses, self.closed = chunks, end, refuses, False

    def InputStream(self, samplerate, channels, dtype, blocksize, callback, finished_callback):  # noqa: N802
        if self.refuses:
            raise self.refuses
        assert (samplerate, channels, dtype, blocksize) == (16_000, 1, "int16", 320)
        self.callback, self.finished = callback, finished_callback
        return self

    def record(self):
        for number in range(self.chunks):
            samples = np.full((320, 1), number, np.int16)
            self.callback(samples, 320, None, None)
            samples[:] = -1  # a driver uses its buffer again
        if self.end == "stop":
            self.finished()

    def start(self):
        self.thread = threading.Thread(target=self.record)
        self.thread.start()

    def close(self):
        self.thread.join()
        self.closed = True
        if self.end == "unplugged":
            raise PortAudioError("Unanticipated host error")


def heard(device, **settings):
    """The chunks before the error, and the error."""
    chunks = []
    with pytest.raises(OSError) as stop:
        for chunk in microphone(16_000, device, **settings):
            chunks.append(chunk)
    return chunks, str(stop.value)


@pytest.mark.parametrize("end", ["stop", "unplugged"])
def test_sound_until_the_microphone_vanishes(end):
    device = Device(end=end)
    chunks, message = heard(device, timeout=0.2)
    assert [set(chunk.tolist()) for chunk in chunks] == [{0}, {1}, {2}] and chunks[0].shape == (320,)
    assert message == "the microphone has vanished: it records no more" and device.closed


def test_there_is_no_microphone():
    chunks, message = heard(Device(refuses=PortAudioError("Error querying device -1")))
    assert chunks == [] and message == "there is no microphone that records at 16,000 Hz: Error querying device -1"


def test_a_computer_that_is_too_slow():
    device = Device(chunks=MAX_CHUNKS + 5)
    with pytest.raises(OSError, match="too slow"):
        for _ in microphone(16_000, device):
            device.thread.join()


def test_listening_can_end_at_any_time():
    device = Device()
    sound = microphone(16_000, device)
    next(sound)
    sound.close()
    assert device.closed
