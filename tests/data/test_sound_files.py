"""Sound files of every kind, and files that are none."""

import io
import struct
import sys
import time
from contextlib import suppress

import numpy as np
import pytest
import soundfile

import rankcode as rc
from rankcode.data import sound_files
from rankcode.data.sound_files import sound_blocks

GUID = bytes.fromhex("0000 0000 1000 8000 00aa 0038 9b71")  # follows the format in WAVE_FORMAT_EXTENSIBLE


def tone(frequency=440.0, rate=16_000, seconds=0.5, volume=0.5):
    return volume * np.sin(2 * np.pi * frequency * np.arange(round(rate * seconds)) / rate)


def pcm(samples, bits):
    """Samples in −1…1 as the bytes of a WAV file: from 8 bits on little-endian integers, unsigned where 8."""
    values = np.round(np.asarray(samples) * (2 ** (bits - 1) - 1)).astype("<i8")
    if bits == 8:
        return (values + 128).astype(np.uint8).tobytes()
    return values.reshape(-1, 1).view(np.uint8)[:, : bits // 8].tobytes()


def chunk(name, content, length=None):
    return name + struct.pack("<I", len(content) if length is None else length) + content + b"\0" * (len(content) % 2)


def wav(data, rate=16_000, form=1, channels=1, bits=16, before=b"", length=None, extensible=False, riff=None):
    """The bytes of a WAV file, `before` standing before the sound, the lengths as given or right."""
    block = channels * bits // 8
    head = struct.pack("<HHIIHH", 0xFFFE if extensible else form, channels, rate, rate * block % 2**32, block, bits)
    if extensible:
        head += struct.pack("<HHIH", 22, bits, (1 << channels) - 1, form) + GUID
    content = b"WAVE" + chunk(b"fmt ", head) + before + chunk(b"data", data, length)
    return chunk(b"RIFF", content, riff)


def read_audio(path, rate=16_000):
    return np.concatenate(list(sound_blocks(path, rate)))


def read(path, content, rate=16_000):
    path.write_bytes(content)
    return read_audio(path, rate)


# What can be read


@pytest.mark.parametrize("extensible", [False, True])
@pytest.mark.parametrize("bits", [8, 16, 24, 32])
def test_whole_numbers_of_any_size(tmp_path, bits, extensible):
    samples = read(tmp_path / "a.wav", wav(pcm(tone(), bits), bits=bits, extensible=extensible))
    assert samples.dtype == np.float32 and samples.shape == (8000,)
    np.testing.assert_allclose(samples, tone(), rtol=0, atol=1.1 / 2 ** (bits - 1) + 1e-7)


@pytest.mark.parametrize("extensible", [False, True])
@pytest.mark.parametrize("bits", [32, 64])
def test_floating_point(tmp_path, bits, extensible):
    data = tone().astype(f"<f{bits // 8}").tobytes()
    samples = read(tmp_path / "a.wav", wav(data, form=3, bits=bits, extensible=extensible))
    assert samples.dtype == np.float32 and np.array_equal(samples, tone().astype(np.float32))


@pytest.mark.parametrize("channels", [2, 5])
def test_channels_are_averaged(tmp_path, channels):
    each = np.stack([tone(440, volume=0.1 * (k + 1)) for k in range(channels)], 1)
    samples = read(tmp_path / "a.wav", wav(pcm(each, 16), channels=channels))
    assert samples.shape == (8000,)
    np.testing.assert_allclose(samples, each.mean(1), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("suffix", "subtype", "within"),
    [
        ("wav", "PCM_16", 1e-4),
        ("flac", "PCM_16", 1e-4),
        ("flac", "PCM_24", 1e-6),
        ("aiff", "PCM_16", 1e-4),
        ("au", "PCM_16", 1e-4),
        ("ogg", "VORBIS", 0.1),
        ("opus", "OPUS", 0.1),
    ],
)
def test_other_formats(tmp_path, suffix, subtype, within):
    path = tmp_path / f"a.{suffix}"
    soundfile.write(path, tone(), 16_000, subtype=subtype, format="OGG" if suffix == "opus" else None)
    samples = read_audio(str(path))
    assert samples.dtype == np.float32 and samples.shape == (8000,)
    np.testing.assert_allclose(samples[400:-400], tone()[400:-400], rtol=0, atol=within)


def test_the_name_does_not_decide_the_format(tmp_path):
    soundfile.write(tmp_path / "a.flac", tone(), 16_000)
    (tmp_path / "a.flac").rename(tmp_path / "a.wav")
    np.testing.assert_allclose(read_audio(tmp_path / "a.wav"), tone(), rtol=0, atol=1e-4)


def test_a_plain_file_is_what_libsndfile_reads(tmp_path):
    every = np.arange(-32768, 32768).astype("<i2")
    samples = read(tmp_path / "a.wav", wav(every.tobytes()))
    assert np.array_equal(samples, soundfile.read(tmp_path / "a.wav", dtype="float32")[0])
    assert samples.min() == -1 and samples.max() == 32767 / 32768
    assert np.array_equal(read(tmp_path / "b.wav", wav(every.tobytes() + b"\1")), samples), "an odd byte at the end"


@pytest.mark.parametrize("content", [b"odd", b"even", b""])
def test_chunks_before_and_after_the_sound_are_passed_over(tmp_path, monkeypatch, content):
    monkeypatch.setitem(sys.modules, "soundfile", None)
    before = chunk(b"LIST", content) + chunk(b"fact", struct.pack("<I", 8000))
    whole = wav(pcm(tone(), 16), before=before) + chunk(b"LIST", b"data")
    np.testing.assert_allclose(read(tmp_path / "a.wav", whole), tone(), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("length", "riff"),
    [(0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, None), (0xFFFFF000, 0xFFFFFFFF), (0x7FFFF000, 0x7FFFF024), (0, 0)],
)
def test_a_wav_from_a_pipe_did_not_know_its_length(tmp_path, length, riff):
    samples = read(tmp_path / "a.wav", wav(pcm(tone(), 16), length=length, riff=riff))
    np.testing.assert_allclose(samples, tone(), rtol=0, atol=1e-4)


def test_other_files_from_a_pipe_did_not_know_their_length(tmp_path):
    data = tone().astype("<f4").tobytes()
    samples = read(tmp_path / "a.wav", wav(data, form=3, bits=32, length=0xFFFFFFFF, riff=0xFFFFFFFF))
    assert np.array_equal(samples, tone().astype(np.float32))
    assert len(read(tmp_path / "a.au", changed(encoded("au"), 8, b"\xff" * 4))) == 32_000


# Other rates


@pytest.mark.parametrize("stereo", [False, True])
@pytest.mark.parametrize("rate", [8000, 11_025, 44_100])
def test_a_tone_stays_the_tone_it_was(tmp_path, rate, stereo):
    own = tone(440, rate)
    samples = read(tmp_path / "a.wav", wav(pcm(np.repeat(own, 1 + stereo), 16), rate, channels=1 + stereo))
    assert abs(len(samples) - 8000) <= 1 and samples.dtype == np.float32
    np.testing.assert_allclose(samples[1000:7000], tone()[1000:7000], rtol=0, atol=0.01)
    lower = read_audio(tmp_path / "a.wav", 4000)
    np.testing.assert_allclose(lower[250:1750], tone(rate=4000)[250:1750], rtol=0, atol=0.01)


def test_what_a_lower_rate_cannot_hold_is_removed(tmp_path):
    both = tone(440, 44_100, volume=0.25) + tone(10_000, 44_100, volume=0.5)
    samples = read(tmp_path / "a.wav", wav(pcm(both, 16), 44_100))
    np.testing.assert_allclose(samples[1000:7000], tone(volume=0.25)[1000:7000], rtol=0, atol=0.01)
    alone = read(tmp_path / "b.wav", wav(pcm(tone(10_000, 44_100), 16), 44_100))
    assert np.abs(alone[1000:7000]).max() < 1e-3, "10 kHz came back as 6 kHz"


# What cannot be read


def changed(content, at, new):
    return content[:at] + new + content[at + len(new) :]


GOOD = wav(pcm(tone(), 16))
NOT_A_NUMBER = np.array([0, 0.5, np.nan, 0.5], "<f4").tobytes()
INFINITE = np.array([0, np.inf], "<f8").tobytes()
HUGE = np.full(2, 3e38, "<f4").tobytes()  # in two channels, whose sum makes NumPy warn
BOTH_INFINITE = np.array([np.inf, -np.inf], "<f4").tobytes()  # whose mean makes NumPy warn
BAD = {
    "no byte": (b"", "empty"),
    "cut in the sound": (GOOD[:-101], r"cut short: 16,000 bytes of sound announced, 15,899 there"),
    "cut at the sound": (GOOD[:44], "cut short"),
    "cut in the header": (GOOD[:40], "not sound"),
    "cut after RIFF": (GOOD[:12], "not sound"),
    "cut, float": (wav(tone().astype("<f4").tobytes(), form=3, bits=32)[:-1000], "cut short"),
    "text": (b"yes, no, up, down\n" * 50, "not sound"),
    "rubbish": (np.random.default_rng(0).bytes(5000), "not sound"),
    "NaN": (wav(NOT_A_NUMBER, form=3, bits=32), "NaN"),
    "infinity": (wav(INFINITE, form=3, bits=64), "infinity"),
    "infinity and its negative": (wav(BOTH_INFINITE, form=3, bits=32, channels=2), "NaN or infinity"),
    "numbers that are too large": (wav(HUGE, form=3, bits=32, channels=2), "NaN or infinity"),
    "no known format": (wav(pcm(tone(), 16), form=0x1234), "not sound"),
    "no channel": (wav(pcm(tone(), 16), channels=0), "not sound"),
    "half a sample": (wav(b"\1"), "no samples"),
    "rate 0": (wav(pcm(tone(), 16), rate=0), "rate"),
    "too short for the rate": (wav(pcm(tone()[:1], 16), rate=192_000), "no samples|too short"),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("content", "says"), BAD.values(), ids=BAD)
def test_a_file_that_cannot_be_used_is_named_with_the_reason(tmp_path, content, says):
    path = tmp_path / "bad one.wav"
    with pytest.raises(rc.BadData, match=says) as error:
        read(path, content)
    message = str(error.value)
    assert message.startswith(str(path)) and "\n" not in message and len(message) > len(str(path)) + 8


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no file") as error:
        read_audio(tmp_path / "none.wav")
    assert str(tmp_path / "none.wav") in str(error.value) and "\n" not in str(error.value)


def aiff():
    with io.BytesIO() as file:
        soundfile.write(file, tone(seconds=0.01), 16_000, format="AIFF")
        return file.getvalue()


@pytest.mark.filterwarnings("error")  # soundfile prints exceptions in its callbacks, and pytest makes them warnings
@pytest.mark.parametrize(
    "whole",
    [wav(pcm(tone(seconds=0.01), 16)), wav(pcm(tone(seconds=0.01), 24), bits=24, channels=2, extensible=True), aiff()],
    ids=["plain", "extensible", "aiff"],
)
def test_a_damaged_header_gives_sound_or_says_what_is_wrong(tmp_path, whole):
    random = np.random.default_rng(0)
    read_at_all = 0
    for _ in range(100):
        content = whole
        for _ in range(random.integers(1, 3)):
            content = changed(content, int(random.integers(60)), random.bytes(1))
        try:
            samples = read(tmp_path / "damaged.wav", content[: int(random.integers(1, 2 * len(content)))])
        except rc.BadData as error:
            assert "damaged.wav" in str(error) and "\n" not in str(error)
        else:
            read_at_all += 1
            assert len(samples) > 0 and np.isfinite(samples).all()
    assert 0 < read_at_all < 100


# Without the packages for sound


def test_a_plain_wav_needs_no_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "soundfile", None)
    monkeypatch.setitem(sys.modules, "soxr", None)
    np.testing.assert_allclose(read(tmp_path / "a.wav", GOOD), tone(), rtol=0, atol=1e-4)
    with pytest.raises(rc.BadData, match="cut short"):
        read(tmp_path / "a.wav", GOOD[:-100])


@pytest.mark.parametrize(
    ("content", "needs"),
    [
        (wav(pcm(tone(), 24), bits=24), "soundfile"),
        (wav(pcm(tone(), 16), channels=2), "soundfile"),
        (b"fLaC" + bytes(100), "soundfile"),
        (wav(pcm(tone(), 16), rate=8000), "soxr"),
    ],
    ids=["24 bits", "stereo", "flac", "rate"],
)
def test_what_needs_a_package_says_how_to_get_it(tmp_path, monkeypatch, content, needs):
    for package in ("soundfile", "soxr"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"{needs}.*rankcode\[audio\]") as error:
        read(tmp_path / "a.wav", content)
    assert "\n" not in str(error.value)


# Files cut short, which libsndfile reads as far as they go


def encoded(suffix, seconds=2.0):
    buffer = io.BytesIO()
    container, subtype = {"opus": ("OGG", "OPUS"), "ogg": ("OGG", "VORBIS"), "mp3": ("MP3", None)}.get(
        suffix, (suffix.upper(), "PCM_16")
    )
    noise = np.random.default_rng(0).uniform(-0.3, 0.3, round(16_000 * seconds))
    soundfile.write(buffer, noise, 16_000, format=container, subtype=subtype)
    return buffer.getvalue()


@pytest.mark.parametrize("suffix", ["aiff", "au", "mp3", "ogg", "opus", "flac", "rf64"])
def test_a_file_of_any_format_that_is_cut(tmp_path, suffix):
    whole = encoded(suffix)
    assert len(read(tmp_path / f"whole.{suffix}", whole)) == 32_000
    for length in (len(whole) - 1, len(whole) - 100, len(whole) * 9 // 10, len(whole) // 2):
        with pytest.raises(rc.BadData, match=r"cut\.\w+ is cut short"):
            read(tmp_path / f"cut.{suffix}", whole[:length])


def test_a_tag_before_and_after_an_mp3_is_not_part_of_the_sound(tmp_path):
    tag = b"ID3\x04\0\0" + bytes([0, 0, 2, 44]) + bytes(300)
    whole = encoded("mp3")
    for content in (tag + whole, whole + b"TAG" + bytes(125)):
        assert len(read(tmp_path / "a.mp3", content)) == 32_000
    with pytest.raises(rc.BadData, match="cut short"):
        read(tmp_path / "a.mp3", (tag + whole)[:-200])


def test_a_damaged_mp3_prints_nothing(tmp_path, capfd):
    for content in (changed(encoded("mp3"), 3000, bytes(1000)), encoded("mp3") + bytes(1000), b"ID3" + bytes(500)):
        (tmp_path / "a.mp3").write_bytes(content)
        with suppress(rc.BadData):
            read_audio(tmp_path / "a.mp3")
    print("still there", file=sys.stderr)
    assert capfd.readouterr() == ("", "still there\n")


# In blocks


@pytest.mark.parametrize("rate", [16_000, 8_000, 44_100])
@pytest.mark.parametrize("suffix", ["wav", "flac"])
def test_the_size_of_blocks_changes_nothing(tmp_path, monkeypatch, suffix, rate):
    path = tmp_path / f"a.{suffix}"
    soundfile.write(path, np.random.default_rng(0).uniform(-0.5, 0.5, (30_000, 1 + (suffix == "flac"))), rate)
    whole = read_audio(path)
    monkeypatch.setattr(sound_files, "BLOCK", 1_000)
    blocks = list(sound_blocks(path))
    assert len(blocks) >= 30 and max(map(len, blocks)) <= 6_000
    assert np.array_equal(np.concatenate(blocks), whole)


@pytest.mark.parametrize("rate", [1, 100, 999, 1_000_001, 2_000_000_000])
def test_a_rate_that_cannot_be_right(tmp_path, rate):
    """At 100 Hz, 1 MB of samples would be 100 minutes, 300 MB at 16 kHz."""
    with pytest.raises(rc.BadData, match=f"impossible sample rate: {rate:,} Hz"):
        read(tmp_path / "a.wav", wav(pcm(tone(), 16), rate=rate))


def test_a_recording_that_is_too_long(tmp_path, monkeypatch):
    monkeypatch.setattr(sound_files, "MAX_HOURS", 1 / 3600)
    assert len(read(tmp_path / "a.wav", wav(pcm(tone(seconds=1.0), 16)))) == 16_000
    with pytest.raises(rc.BadData, match=r"a\.wav is longer than"):
        read(tmp_path / "a.wav", wav(pcm(tone(seconds=1.1), 16)))


def test_a_file_of_a_million_empty_chunks(tmp_path):
    begun = time.monotonic()
    with pytest.raises(rc.BadData, match=r"not sound|cut short"):
        read(tmp_path / "a.wav", wav(b"")[:36] + chunk(b"junk", b"") * 1_000_000)
    assert time.monotonic() - begun < 5
