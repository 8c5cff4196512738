"""Sounds for the tests of the page, what a stream of Python answers to them, and what the page shows."""

import numpy as np
import torch

import rankcode as rc
from wav_files import wav_bytes

SPEECH = "#panel-speech"


def sound(seconds=1.0, seed=0):
    """Two tones in a little noise, after 0.3 seconds; the network soon says *unknown*. Samples of 16 bits."""
    time = np.arange(int(16_000 * seconds)) / 16_000
    tones = 0.3 * np.sin(2 * np.pi * (500 + 20 * seed) * time) + 0.2 * np.sin(2 * np.pi * 1500 * time)
    noise = 0.002 * np.random.default_rng(seed).standard_normal(len(time))
    return ((tones * ((time > 0.3) & (time < 0.6)) + noise) * 32767).astype(np.int16)


def stored(path, samples):
    """A WAV file with exactly these samples."""
    path.write_bytes(wav_bytes(samples))
    return path


def as_float(samples):
    return samples.astype(np.float32) / 32768


def decided(network, inputs, rule=None):
    """The decision of a stream: label, steps, whether it fired."""
    stream = rc.Stream(network, rule)
    decision = stream.push(inputs) or stream.finish()
    return decision.label.item(), decision.steps.item(), decision.fired.item()


def streamed(network, samples, rule=None):
    """The answer of a stream to sound, as the page shows it: word, steps, milliseconds, whether it fired."""
    label, steps, fired = decided(network, samples, rule)
    heard = network.front_end.heard(torch.tensor([steps]), torch.tensor([len(samples)])).item()
    return network.label_names[label], steps, f"{heard:,.0f}", fired


def choose(page, path, root=SPEECH):
    page.set_input_files(f"{root} [data-part=file]", path)


def shown(page, root=SPEECH):
    """The answer that the page shows: word, steps, milliseconds, whether the network fired."""
    page.wait_for_selector(f"{root} .sound[data-state=done]")
    answer = page.locator(f"{root} [data-part=answer][data-label]")
    answer.wait_for()
    data = answer.evaluate("element => ({...element.dataset})")
    assert page.inner_text(f"{root} [data-part=word]") == data["label"]
    return data["label"], int(data["steps"]), page.inner_text(f"{root} [data-part=clock]"), data["fired"] == "true"


def saved(page, root=SPEECH):
    """The samples of the WAV file that the page saves."""
    with page.expect_download() as download:
        page.click(f"{root} [data-part=save]")
    content = download.value.path().read_bytes()
    assert content[20:24] == b"\x03\0\x01\0" and content[36:40] == b"data"  # floats, one channel
    return np.frombuffer(content[44:], "<f4")
