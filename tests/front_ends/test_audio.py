"""Waveforms to frames and inputs, against the definition written out in plain NumPy, whole and in pieces."""

import math

import numpy as np
import pytest
import torch

from rankcode.data import sound_files
from rankcode.front_ends import audio as audio_module
from rankcode.front_ends.audio import LOWEST, UNIT, Audio, LogMel, power_of
from wav_files import read_wav, write_wav

MEAN, DEVIATION = tuple(np.linspace(-9, -3, 20)), tuple(np.linspace(1, 3, 20))


def clip(samples=16_000, seed=0):
    """A rising tone in noise, clipped at first and ever softer, and in between nothing."""
    random = np.random.default_rng(seed)
    time = np.arange(samples) / 16_000
    sound = 1.2 * np.sin(2 * np.pi * (200 + 3000 * time) * time) + 0.1 * random.standard_normal(samples)
    sound *= np.geomspace(2, 1e-4, samples)
    sound[samples // 3 : samples // 2] = 0
    return torch.from_numpy(sound.clip(-1, 1).astype(np.float32))


def clips(count):
    """The frames of several clips: [count, 101, 20]."""
    return torch.stack([LogMel().frames(clip(seed=seed)) for seed in range(count)])


def written_out(waveform, rate=16_000, bands=20, hop_ms=10):
    """Bytes of all frames by the definition: every frame, band and frequency by itself."""
    size, hop = rate * 25 // 1000, rate * hop_ms // 1000
    padded = np.concatenate([np.zeros(size // 2), np.asarray(waveform, np.float64), np.zeros(size // 2)])
    n = np.arange(size)
    hamming = 0.54 - 0.46 * np.cos(2 * np.pi * n / size)
    fourier = np.exp(-2j * np.pi * np.outer(np.arange(size // 2 + 1), n) / size)
    mel = np.linspace(0, 2595 * np.log10(1 + rate / 2 / 700), bands + 2)
    edge = [700 * (10 ** (m / 2595) - 1) for m in mel]
    result = np.zeros((1 + len(waveform) // hop, bands))
    for frame in range(len(result)):
        power = np.abs(fourier @ (padded[frame * hop : frame * hop + size] * hamming)) ** 2
        for band in range(bands):
            low, centre, high = edge[band : band + 3]
            total = 0.0
            for k in range(size // 2 + 1):
                frequency = k * rate / size
                if low < frequency <= centre:
                    total += power[k] * (frequency - low) / (centre - low)
                elif centre < frequency < high:
                    total += power[k] * (high - frequency) / (high - centre)
            result[frame, band] = math.log(total + 1e-6)
    step = (8 - math.log(1e-6)) / 255
    return np.clip(np.round((result - math.log(1e-6)) / step), 0, 255).astype(np.int64)


def in_chunks(log_mel, waveform, sizes):
    """The frames of a stream that is cut into chunks of these sizes, and the rest."""
    held, frames, at = log_mel.start(), [], 0
    for size in [*sizes, len(waveform)]:
        new, held = log_mel.push(waveform[at : at + size], held)
        frames.append(new)
        at += size
    return torch.cat([*frames, log_mel.finish(held)])


# Frames


@pytest.mark.parametrize(("rate", "bands", "hop_ms"), [(16_000, 20, 10), (8000, 12, 10), (16_000, 40, 20)])
def test_frames_are_the_definition_written_out(rate, bands, hop_ms):
    waveform = clip(rate // 2)
    expected = written_out(waveform, rate, bands, hop_ms)
    got = LogMel(rate, bands, hop_ms).frames(waveform).long().numpy()
    assert got.shape == expected.shape == (1 + 500 // hop_ms, bands)
    assert np.abs(got - expected).max() <= 1
    assert (got == expected).mean() > 0.999
    assert len(np.unique(got)) > 100, "the clip does not use the range"


@pytest.mark.parametrize("rate", [1200, 8000, 16_000, 48_000])
def test_there_is_a_frame_for_every_10_milliseconds_and_one_more(rate):
    for samples in (0, 1, rate // 100 - 1, rate // 100, rate // 100 + 1, rate // 40, rate):
        assert LogMel(rate, n_mels=4).frames(torch.zeros(samples)).shape == (1 + samples // (rate // 100), 4)


def test_silence_is_zero_and_nothing_is_above_255():
    assert LogMel().frames(torch.zeros(1600)).eq(0).all()
    loud = torch.sign(torch.sin(torch.arange(1600) * 0.4))
    assert 200 < int(LogMel().frames(loud).max()) <= 255
    assert int(LogMel().frames(1000 * loud).max()) == 255
    constant = LogMel().frames(torch.ones(16_000))  # clipped for good: no power but at the lowest frequencies
    assert constant[50, 0] > 0 and constant[50, 5:].max() < 30


def test_bytes_stand_for_powers_from_1e_6_to_e_8():
    values = power_of(torch.arange(256, dtype=torch.uint8))
    torch.testing.assert_close(values[[0, 255]], torch.tensor([math.log(1e-6), 8.0]))
    torch.testing.assert_close(values.diff(), torch.full((255,), UNIT), rtol=1e-4, atol=0)
    given = torch.tensor([[-3.5, 0.25]])
    assert power_of(given) is given


@pytest.mark.parametrize(
    "settings",
    [{"sample_rate": rate} for rate in (0, 999, 5000 + 1, 16_001)]
    + [{"n_mels": 0}, {"n_mels": 101}, {"hop_ms": 0}, {"hop_ms": 26}],
)
def test_settings_that_give_no_frames(settings):
    with pytest.raises(ValueError, match=str(*settings.values())) as error:
        LogMel(**settings)
    assert "\n" not in str(error.value)


# Streams


@pytest.mark.parametrize("sizes", [[37], [160], [399, 401], [0, 1, 2, 7, 159, 161, 1000, 5000]])
@pytest.mark.parametrize("samples", [0, 1, 199, 200, 201, 5945, 16_000])
def test_chunks_of_any_size_give_the_bytes_of_the_whole(sizes, samples):
    waveform = clip(samples)
    assert in_chunks(LogMel(), waveform, sizes * (samples // sum(sizes) + 1)).equal(LogMel().frames(waveform))


def test_a_frame_comes_with_the_sample_that_completes_it():
    log_mel, waveform = LogMel(), clip(2000)
    held, count = log_mel.start(), 0
    for number, sample in enumerate(waveform.split(1), 1):
        frames, held = log_mel.push(sample, held)
        count += len(frames)
        assert count == max(0, 1 + (number - 200) // 160), "frame f is complete after 160 · f + 200 samples"
    assert len(held) < 400


# Inputs


def test_an_input_is_21_normalised_frames_one_after_the_other():
    stored = clips(2)
    inputs, lengths = Audio(MEAN, DEVIATION)(stored, torch.tensor([101, 60]))
    assert inputs.shape == (2, 81, 420) and lengths.tolist() == [81, 40]
    normal = (stored.double() * UNIT + LOWEST - torch.tensor(MEAN)) / torch.tensor(DEVIATION)
    for row in range(2):
        for step in (0, 1, 40, 80):
            expected = torch.cat([normal[row, step + offset] for offset in range(21)])
            torch.testing.assert_close(inputs[row, step].double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("context", [0, 1, 4])
def test_any_context(context):
    audio = Audio(MEAN, DEVIATION, context=context)
    stored = LogMel().frames(clip())[None]
    inputs, lengths = audio(stored)
    assert lengths is None and inputs.shape == (1, 101 - 2 * context, *audio.output_shape)
    alone, _ = Audio(MEAN, DEVIATION, context=0)(stored)
    for step in (0, 50, 100 - 2 * context):
        assert inputs[0, step].equal(alone[0, step : step + 2 * context + 1].flatten())


def test_frames_given_as_powers_are_taken_as_they_are():
    audio, stored = Audio(MEAN, DEVIATION), LogMel().frames(clip())[None]
    assert audio(power_of(stored))[0].equal(audio(stored)[0])


def test_a_short_recording_gives_one_step():
    audio = Audio(MEAN, DEVIATION)
    for samples in (1, 500, 3199, 3200):
        waveform = clip(samples)
        frames = audio.read(waveform).values
        assert frames.equal(LogMel().frames(torch.cat([waveform, torch.zeros(3200 - samples)])))
        assert audio(frames[None])[0].shape == (1, 1, 420)
    assert audio.read(clip(3360)).values.equal(LogMel().frames(clip(3360)))


def test_mean_and_deviation_are_those_of_the_training_frames():
    stored = clips(5)
    audio = Audio.of(stored, LogMel(), 7)  # in five parts
    values = (stored.double() * UNIT + LOWEST).flatten(0, 1).numpy()
    np.testing.assert_allclose(audio.mean, values.mean(0), rtol=1e-5)
    np.testing.assert_allclose(audio.std, values.std(0), rtol=1e-5)
    assert (audio.log_mel, audio.context) == (LogMel(), 7)
    inputs, _ = Audio(audio.mean, audio.std, context=0)(stored)
    torch.testing.assert_close(inputs.flatten(0, 1).mean(0), torch.zeros(20), rtol=0, atol=1e-4)
    assert Audio.of([stored.flatten(0, 1)], LogMel(), 7) == audio


def test_a_band_that_never_changes_does_not_become_infinite():
    stored = torch.full((1, 40, 20), 7, dtype=torch.uint8)
    inputs, _ = Audio.of(stored, LogMel())(stored)
    torch.testing.assert_close(inputs, torch.zeros_like(inputs), rtol=0, atol=1e-4)


# Milliseconds


def test_a_step_hears_10_milliseconds_more_than_the_one_before_and_never_more_than_there_is():
    steps = torch.arange(1, 82)
    heard = Audio(MEAN, DEVIATION).heard(steps, torch.full((81,), 16_000))
    assert heard.tolist() == [min(1000, 10 * (step - 1) + 212.5) for step in range(1, 82)]
    few = Audio(MEAN, DEVIATION).heard(torch.tensor([1, 1, 4]), torch.tensor([800, 3400, 3680]))
    assert few.tolist() == [50, 212.5, 230]


@pytest.mark.parametrize("step", [1, 2, 30, 79])
def test_what_was_heard_is_what_the_inputs_depend_on(step):
    audio = Audio(MEAN, DEVIATION)
    needed = round(16 * audio.heard(torch.tensor([step]), torch.tensor([16_000])).item())
    silence = audio(audio.read(torch.zeros(16_000)).values[None])[0]
    for sample, differs in ((needed - 1, True), (needed, False)):
        waveform = torch.zeros(16_000)
        waveform[sample] = 1.0
        inputs = audio(audio.read(waveform).values[None])[0]
        assert inputs[0, :step].equal(silence[0, :step]) != differs


# Settings


@pytest.mark.parametrize(("mean", "std"), [((0.0,) * 19, (1.0,) * 19), ((0.0,) * 20, (1.0,)), ((), ())])
def test_a_mean_and_a_deviation_for_each_band(mean, std):
    with pytest.raises(ValueError, match="each of 20 bands"):
        Audio(mean, std)


def test_a_scale_that_gives_no_numbers_is_refused():
    with pytest.raises(ValueError, match="mean must be finite and std finite and positive"):
        Audio((0.0,) * 20, (1.0,) * 19 + (0.0,))


# Any length in bounded memory


@pytest.mark.parametrize("samples", [1, 3200, 9_999, 10_001])
def test_frames_computed_in_blocks_are_those_of_the_whole(samples, monkeypatch):
    whole = LogMel().frames(clip(samples))
    monkeypatch.setattr(audio_module, "BLOCK", 1_600)
    assert LogMel().frames(clip(samples)).equal(whole) and LogMel().read(clip(samples)).values.equal(whole)


def test_a_file_gives_the_frames_of_its_waveform(tmp_path, monkeypatch):
    path = write_wav(tmp_path / "a.wav", clip(30_000))
    monkeypatch.setattr(sound_files, "BLOCK", 1_000)
    frames, size = LogMel().read(path)
    assert size == 30_000 and frames.equal(LogMel().frames(torch.from_numpy(read_wav(path))))


def test_spectra_are_in_memory_for_one_block_at_a_time(monkeypatch):
    """The windows of an hour in 64 bits would take a gigabyte."""
    rfft, sizes = torch.fft.rfft, []

    def watched(windows):
        sizes.append(windows.numel() * windows.element_size())
        return rfft(windows)

    monkeypatch.setattr(torch.fft, "rfft", watched)
    LogMel().read(torch.zeros(5 * 60 * 16_000))
    assert len(sizes) > 10 and max(sizes) < 6e6


def test_inputs_are_windows_of_the_frames_and_not_copies():
    stored = LogMel().frames(clip())[None].expand(3, -1, -1)
    inputs, _ = Audio(MEAN, DEVIATION)(stored)
    assert inputs.shape == (3, 81, 420)
    assert inputs.untyped_storage().nbytes() == 3 * 101 * 20 * 4
    assert inputs.contiguous().equal(inputs)


def test_a_negative_context():
    with pytest.raises(ValueError, match="context must be at least 0, not -1"):
        Audio(MEAN, DEVIATION, context=-1)
