"""The page in a real browser: what it answers, and when, is what Python's streams answer."""

import json
import wave

import numpy as np
import pytest
import torch
from browser import chromium, visit
from page_server import running

import rankcode as rc
from rankcode.serve.static_page import page_files
from real_recordings import recordings

SPEECH = "#panel-speech"
ANSWER = "[data-part=answer][data-label]"


@pytest.fixture(scope="module")
def url():
    with running(page_files()) as server:
        yield server.url


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def speech():
    return rc.load("speech-commands")


def streamed(network, samples, rule=None):
    """The answer of a stream: label, steps, milliseconds as shown, whether it fired."""
    stream = rc.Stream(network, rule)
    decision = stream.push(samples) or stream.finish()
    heard = network.front_end.heard(decision.steps, torch.tensor([len(samples)])).item()
    label = network.label_names[decision.label.item()]
    return label, decision.steps.item(), f"{heard:,.0f}", decision.fired.item()


def shown(page, root=SPEECH):
    """The same, as the page shows it."""
    answer = page.locator(f"{root} {ANSWER}")
    answer.wait_for()
    page.wait_for_selector(f"{root} [data-state=done]")
    data = answer.evaluate("element => ({...element.dataset})")
    clock = page.inner_text(f"{root} [data-part=clock]")
    assert page.inner_text(f"{root} [data-part=word]") == data["label"]
    return data["label"], int(data["steps"]), clock, data["fired"] == "true"


def choose(page, path, root=SPEECH):
    page.set_input_files(f"{root} [data-part=file]", path)


def sound(seconds=1.0, seed=0):
    """Two tones in a little noise, after 0.3 seconds; the network soon says *unknown*. Samples of 16 bits."""
    time = np.arange(int(16_000 * seconds)) / 16_000
    tones = 0.3 * np.sin(2 * np.pi * (500 + 20 * seed) * time) + 0.2 * np.sin(2 * np.pi * 1500 * time)
    noise = 0.002 * np.random.default_rng(seed).standard_normal(len(time))
    return ((tones * ((time > 0.3) & (time < 0.6)) + noise) * 32767).astype(np.int16)


def stored(path, samples, rate=16_000, channels=1):
    with wave.open(str(path), "wb") as file:
        file.setparams((channels, 2, rate, 0, "NONE", ""))
        file.writeframes(samples.astype("<i2").tobytes())
    return path


def as_float(samples):
    return samples.astype(np.float32) / 32768


def saved(page):
    """The samples of the WAV file that the page saves."""
    with page.expect_download() as download:
        page.get_by_role("button", name="Save").click()
    content = download.value.path().read_bytes()
    assert content[20:24] == b"\x03\0\x01\0" and content[36:40] == b"data"  # floats, one channel
    return np.frombuffer(content[44:], "<f4")


@pytest.mark.parametrize("seconds", [1.0, 0.4, 0.013, 1.7])
def test_a_recording_is_answered_as_by_a_stream(browser, url, speech, tmp_path, seconds):
    samples = sound(seconds)
    with visit(browser, url, reduced_motion="reduce") as page:
        choose(page, stored(tmp_path / "sound.wav", samples))
        assert shown(page) == streamed(speech, as_float(samples))
        assert np.array_equal(saved(page), as_float(samples))


def test_a_word_is_recognised_while_it_is_played(browser, url, speech, tmp_path):
    for word, samples in zip(("left", "stop"), recordings(("left", "stop"), 1), strict=True):
        with visit(browser, url) as page:
            choose(page, stored(tmp_path / f"{word}.wav", samples))
            answer = shown(page)
            assert answer == streamed(speech, as_float(samples)) and answer[0] == word and answer[3]
            total = 1 + len(samples) // 160
            share = f"{100 * (1 - answer[1] / total):.0f} %"
            assert page.inner_text(f"{SPEECH} [data-part=saved]") == share
            assert f"{answer[1]} of {total} steps" in page.inner_text(SPEECH)


def test_other_formats_and_sample_rates(browser, url, speech, tmp_path):
    soundfile, soxr = pytest.importorskip("soundfile"), pytest.importorskip("soxr")
    samples = as_float(sound(seed=1))
    fast = soxr.resample(samples, 16_000, 44_100)
    soundfile.write(tmp_path / "fast.wav", np.stack([fast, fast], 1), 44_100, "PCM_24")
    soundfile.write(tmp_path / "packed.flac", samples, 16_000, "PCM_16")
    label, steps, *_ = streamed(speech, samples)
    with visit(browser, url, reduced_motion="reduce") as page:
        for name in ("fast.wav", "packed.flac"):
            choose(page, tmp_path / name)
            answer = shown(page)
            heard = saved(page)
            assert answer == streamed(speech, heard)
            assert answer[0] == label and abs(answer[1] - steps) <= 1
            assert abs(len(heard) - len(samples)) <= 1
            difference = heard[200:-200] - samples[200 : len(heard) - 200]
            assert np.sqrt(np.mean(difference**2)) < 1e-3  # a shift of one sample gives 0.02


def test_a_dropped_file(browser, url, speech, tmp_path):
    samples = sound(seed=2)
    content = stored(tmp_path / "dropped.wav", samples).read_bytes()
    with visit(browser, url, reduced_motion="reduce") as page:
        transfer = page.evaluate_handle(
            """bytes => {
                const transfer = new DataTransfer();
                transfer.items.add(new File([new Uint8Array(bytes)], "dropped.wav"));
                return transfer;
            }""",
            list(content),
        )
        page.dispatch_event(f"{SPEECH} .sound", "drop", {"dataTransfer": transfer})
        assert shown(page) == streamed(speech, as_float(samples))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("empty.wav", b"", "empty.wav cannot be read: it is empty."),
        ("text.wav", b"no sound at all", "text.wav cannot be read: it is not sound that this browser can read."),
        ("short.wav", None, "short.wav cannot be read: it is cut short."),
        ("none.wav", "no samples", "none.wav cannot be read: it holds no samples."),
    ],
)
def test_a_broken_file(browser, url, tmp_path, name, content, said):
    path = stored(tmp_path / name, sound() if content is None else sound()[:0])
    path.write_bytes(
        path.read_bytes()[:3000] if content is None else path.read_bytes() if content == "no samples" else content
    )
    with visit(browser, url) as page:
        choose(page, path)
        page.get_by_text(said).wait_for()
        choose(page, stored(tmp_path / "good.wav", sound(0.2)))
        assert shown(page)[1] >= 1 and page.inner_text(f"{SPEECH} [data-part=error]") == ""


def test_the_slider_and_the_curve(browser, url, speech, tmp_path):
    """Each θ gives the answer of a stream with it; nothing is computed past the answer unless the slider asks."""
    samples = sound(seed=3)
    numbers = json.loads(page_files()["/numbers.json"].content)["speech"]
    with visit(browser, url, reduced_motion="reduce") as page:
        choose(page, stored(tmp_path / "sound.wav", samples))
        own = shown(page)
        slider = page.get_by_role("slider").first
        assert slider.get_attribute("aria-valuetext") == "0.98"
        for key in ("Home", "ArrowRight", "End", "ArrowLeft"):
            slider.press(key)
            theta = float(slider.get_attribute("aria-valuetext"))
            expected = streamed(speech, as_float(samples), rc.Threshold(theta))
            page.wait_for_function(
                "steps => document.querySelector('[data-part=answer]').dataset.steps === steps", arg=str(expected[1])
            )
            assert shown(page) == expected
            (point,) = (each for each in numbers["points"] if each["theta"] == theta)
            said = page.inner_text(f"{SPEECH} [data-part=curve-text]")
            assert f"{100 * point['accuracy']:.1f} % right after {point['time']:.0f} ms" in said
        assert page.locator(f"{SPEECH} svg .current").count() == 1
        for _ in range(30):
            if slider.get_attribute("aria-valuetext") == "0.98":
                break
            slider.press("ArrowLeft")
        assert shown(page) == own
        assert "only because the slider was moved" in page.inner_text(SPEECH)


def test_the_curve_has_the_point_of_the_card():
    numbers = json.loads(page_files()["/numbers.json"].content)["speech"]
    (point,) = (each for each in numbers["points"] if each["theta"] == 0.98)
    card = rc.models.model_path("speech-commands").with_suffix(".md").read_text()
    assert f"| {100 * point['accuracy']:.2f} % | {point['time']:.0f} ms |" in card and numbers["recordings"] == 6835
