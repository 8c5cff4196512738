import pytest
import torch

import rankcode as rc
from rankcode.experiments import speech_sounds as speech
from spoken_words import spoken_words
from wav_files import write_wav

HARD = speech.Mix(silent=0.5, hard_silence=True)


def test_each_split_has_its_own_recordings_and_part_of_the_noise(tmp_path):
    folder = spoken_words(tmp_path, splits=("validation", "testing"))
    write_wav(folder / "_background_noise_" / f"{speech.VOICE}.wav", 10 * speech.SECOND)
    sounds = speech.Sounds.read(folder, "validation")
    assert sounds.labels.bincount(minlength=12).tolist() == [4, 4, *8 * [0], 4, 0]
    assert set(sounds.lengths.tolist()) == {8000} and not sounds.samples[:, 8000:].any()
    assert (len(sounds.noise), len(sounds.voice)) == (3 * speech.SECOND, speech.SECOND)  # a tenth of each


def test_frames_are_those_of_the_front_end(sounds):
    values = speech.log_mel(sounds.samples[:3].float() / 32768)
    for row, own in enumerate(values):
        frames = speech.LOG_MEL.frames(sounds.samples[row].float() / 32768)
        torch.testing.assert_close(own, rc.front_ends.audio.power_of(frames), atol=0.05, rtol=0)  # half of a byte


@pytest.mark.parametrize("mix", [speech.Mix(), HARD], ids=["first", "hard silence"])
def test_augmentation_makes_silence_of_some_and_leaves_the_labels_of_the_others(sounds, mix):
    rows = torch.arange(24).repeat(20)
    values, labels = speech.augmented(sounds, rows, torch.Generator().manual_seed(0), mix)
    silent = labels == speech.SILENCE
    assert silent.float().mean().item() == pytest.approx(mix.silent, abs=0.05)
    assert torch.equal(labels[~silent], sounds.labels[rows][~silent])
    assert values.shape == (480, 51, 40)
    assert values.isfinite().all()
    assert not torch.equal(values[0], values[24])  # another variant of the same recording


def test_hard_silence_has_a_voice_in_a_third_and_is_synthetic_in_a_fifth(sounds):
    rows, nothing = torch.arange(24).repeat(20), torch.zeros(2 * speech.SECOND)

    def share_of_heard(hard, **parts):
        mix, generator = speech.Mix(silent=1.0, hard_silence=hard), torch.Generator().manual_seed(0)
        values, _ = speech.augmented(sounds._replace(**parts), rows, generator, mix)
        return (values.amax((1, 2)) > -8).float().mean().item()

    assert share_of_heard(False, noise=nothing) == 0
    assert share_of_heard(True, noise=nothing, voice=nothing) == pytest.approx(0.95 * 0.2, abs=0.05)
    assert share_of_heard(True, noise=nothing) == pytest.approx(0.95 * (0.2 + 0.8 * 0.35), abs=0.06)


def test_synthetic_noise_is_different_in_each_row():
    noise = speech.synthetic_noise(50, torch.Generator().manual_seed(0))
    loudness = noise.square().mean(1).sqrt()
    assert noise.shape == (50, speech.SECOND) and 0 < loudness.min() < 0.05 < loudness.max() < 0.2
    spectrum = torch.fft.rfft(noise).abs()
    share_of_low = spectrum[:, :500].sum(1) / spectrum.sum(1)
    assert share_of_low.min() < 0.1 and share_of_low.max() > 0.4


def test_masks_are_stretches_of_bands_and_of_frames():
    inputs = speech.masked(torch.ones(50, 101, 40), torch.Generator().manual_seed(0))
    bands, frames = (inputs == 0).all(1), (inputs == 0).all(2)
    assert bands.sum(1).max() == 40 // 6
    assert 8 < frames.sum(1).max() <= 16
    assert torch.equal(inputs == 0, bands[:, None] | frames[:, :, None])
