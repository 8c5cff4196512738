"""The microphone of the page, played by Chromium from a file."""

import numpy as np
from browser import FAKE_MICROPHONE, chromium, visit
from page_answers import SPEECH, choose, saved, shown, sound, stored, streamed

import rankcode as rc
from real_recordings import recordings

SPEAK = f"{SPEECH} [data-part=speak]"


def spoken(path, samples):
    """A file for the microphone: this sound, with quiet noise before and after it."""
    before, after = (
        20 * np.random.default_rng(seed).standard_normal(size) for seed, size in ((1, 12_000), (2, 48_000))
    )
    return stored(path, np.concatenate([before, samples, after]))


def heard(url, path):
    """What the page answers to the microphone, and the samples that it heard."""
    with (
        chromium(*FAKE_MICROPHONE, f"--use-file-for-fake-audio-capture={path}") as browser,
        visit(browser, url) as page,
    ):
        page.click(SPEAK)
        answer = shown(page)
        page.wait_for_selector(f"{SPEAK}[aria-pressed=false]")  # it stops by itself
        return answer, saved(page)


def test_sound_from_the_microphone_is_answered_as_by_a_stream(url, tmp_path):
    answer, samples = heard(url, spoken(tmp_path / "tones.wav", sound()))
    assert len(samples) == 16_000 and np.abs(samples[:3000]).max() < 0.1 < np.abs(samples).max()
    assert answer == streamed(rc.load("speech-commands"), samples)


def test_a_word_from_the_microphone_is_recognised(url, tmp_path):
    (word,) = recordings(("left",), 1)
    answer, samples = heard(url, spoken(tmp_path / "left.wav", word))
    assert answer == streamed(rc.load("speech-commands"), samples)
    assert answer[0] == "left" and answer[3] and answer[1] < 70


def test_a_refused_microphone(url, tmp_path):
    flags = "--use-fake-device-for-media-stream", "--deny-permission-prompts"
    with chromium(*flags) as browser, visit(browser, url) as page:
        page.click(SPEAK)
        page.get_by_text("The browser may not use the microphone. Allow it beside the address").wait_for()
        page.wait_for_selector(f"{SPEAK}[aria-pressed=false]")
        choose(page, stored(tmp_path / "sound.wav", sound(0.2)))
        assert shown(page)[1] == 11 and page.inner_text(f"{SPEECH} [data-part=error]") == ""
