"""Recordings in the page: what it answers, and when, is what Python's streams answer."""

import json
import re
from functools import partial

import numpy as np
import pytest
from browser import visit
from page_answers import SPEECH, as_float, choose, saved, shown, sound, stored, streamed

import rankcode as rc
from rankcode.serve.static_page import page_files
from real_recordings import recordings


@pytest.fixture(scope="module")
def page(browser, url):
    with visit(browser, url, reduced_motion="reduce") as page:
        yield page


@pytest.fixture(scope="module")
def speech():
    return rc.load("speech-commands")


@pytest.mark.parametrize("seconds", [1.0, 0.4, 0.013, 1.7])
def test_a_recording_is_answered_as_by_a_stream(page, speech, tmp_path, seconds):
    samples = sound(seconds)
    choose(page, stored(tmp_path / "sound.wav", samples))
    assert shown(page) == streamed(speech, as_float(samples))
    assert np.array_equal(saved(page), as_float(samples))


def test_a_word_is_recognised_while_it_is_played(browser, url, speech, tmp_path):
    for word, samples in zip(("left", "stop"), recordings(("left", "stop"), 1), strict=True):
        with visit(browser, url) as page:
            choose(page, stored(tmp_path / f"{word}.wav", samples))
            answer = shown(page)
            assert answer == streamed(speech, as_float(samples)) and answer[0] == word and answer[3]
            total = 1 + len(samples) // speech.front_end.log_mel.hop
            share = f"{100 * (1 - answer[1] / total):.0f} %"
            assert page.inner_text(f"{SPEECH} [data-part=saved]") == share
            assert f"{answer[1]} of {total} steps" in page.inner_text(SPEECH)


def test_the_log_mel_picture_goes_as_far_as_the_answer(page, speech, tmp_path):
    noise = (3000 * np.random.default_rng(0).standard_normal(16_000)).astype(np.int16)  # loud at every pitch
    choose(page, stored(tmp_path / "noise.wav", noise))
    heard = int(shown(page)[2])
    drawn = """(canvas, share) => {
        const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
        copy.drawImage(canvas, 0, 0);
        const [x, y] = [6 + share * (canvas.clientWidth - 16), 148].map((at) => Math.round(at * devicePixelRatio));
        return [...copy.getImageData(x, y, 1, 1).data].slice(0, 3);
    }"""
    figure = page.locator(f"{SPEECH} [data-part=figure]")
    empty, early, late = (figure.evaluate(drawn, at / 1000) for at in (heard + 100, 0.2 * heard, heard - 30))
    assert np.abs(np.subtract(early, late)).max() < 60 < np.abs(np.subtract(late, empty)).max()


def test_other_formats_and_sample_rates(page, speech, tmp_path):
    soundfile, soxr = pytest.importorskip("soundfile"), pytest.importorskip("soxr")
    samples = as_float(sound(seed=1))
    fast = soxr.resample(samples, 16_000, 44_100)
    soundfile.write(tmp_path / "fast.wav", np.stack([fast, fast], 1), 44_100, "PCM_24")
    soundfile.write(tmp_path / "packed.flac", samples, 16_000, "PCM_16")
    label, steps, *_ = streamed(speech, samples)
    for name in ("fast.wav", "packed.flac"):
        choose(page, tmp_path / name)
        answer = shown(page)
        heard = saved(page)
        assert answer == streamed(speech, heard)
        assert answer[0] == label and abs(answer[1] - steps) <= 1
        assert abs(len(heard) - len(samples)) <= 1
        difference = heard[200:-200] - samples[200 : len(heard) - 200]
        assert np.sqrt(np.mean(difference**2)) < 1e-3  # a shift of one sample gives 0.02


def test_a_dropped_file(page, speech, tmp_path):
    samples = sound(seed=2)
    content = stored(tmp_path / "dropped.wav", samples).read_bytes()
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
    ("damaged", "said"),
    [
        (lambda content: b"", "broken.wav cannot be read: it is empty."),
        (lambda content: b"no sound at all", "broken.wav cannot be read: it is not sound that this browser can read."),
        (lambda content: content[:3000], "broken.wav cannot be read: it is cut short."),
        (lambda content: content[:30], "broken.wav cannot be read: it is cut short."),
        (lambda content: content[:40] + bytes(4), "broken.wav cannot be read: it holds no samples."),
        (lambda content: content[:24] + bytes(4) + content[28:], "broken.wav cannot be read: its header is damaged."),
    ],
)
def test_a_broken_file(page, tmp_path, damaged, said):
    path = stored(tmp_path / "broken.wav", sound())
    path.write_bytes(damaged(path.read_bytes()))
    choose(page, path)
    page.get_by_text(said).wait_for()
    choose(page, stored(tmp_path / "good.wav", sound(0.2)))
    assert shown(page)[1] >= 1 and page.inner_text(f"{SPEECH} [data-part=error]") == ""


def test_the_slider_and_the_curve(page, speech, tmp_path):
    """Each θ gives the answer of a stream with it; nothing is computed past the answer unless the slider asks."""
    samples = next(each for each in map(partial(sound, 1.0), range(20)) if streamed(speech, as_float(each))[3])
    numbers = json.loads(page_files()["/numbers.json"].content)["speech"]
    choose(page, stored(tmp_path / "sound.wav", samples))
    own = shown(page)
    slider = page.get_by_role("slider").first
    assert slider.get_attribute("aria-valuetext") == f"{speech.rule.threshold:g}"
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
    while float(slider.get_attribute("aria-valuetext")) > speech.rule.threshold:
        slider.press("ArrowLeft")
    assert shown(page) == own
    assert "only because the slider was moved" in page.inner_text(SPEECH)


def test_the_curve_has_the_point_of_the_card(speech):
    numbers = json.loads(page_files()["/numbers.json"].content)["speech"]
    (point,) = (each for each in numbers["points"] if each["theta"] == speech.rule.threshold)
    card = rc.models.model_path("speech-commands").with_suffix(".md").read_text()
    accuracy, milliseconds = map(float, re.findall(r"\| ([\d.]+) % \| (\d+) ms \|", card)[0])
    assert (accuracy, milliseconds) == (pytest.approx(100 * point["accuracy"], abs=0.0051), round(point["time"]))
    assert numbers["recordings"] == 6835
