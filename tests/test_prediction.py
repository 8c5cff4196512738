import math
import subprocess
import sys

import numpy as np
import pytest
import torch

import rankcode as rc
from rankcode import prediction
from rankcode.data.sources import BadData
from rankcode.front_ends import Audio, LatencyCode, Standardise
from rankcode.prediction import ROWS, predict_rows
from wav_files import wav_bytes


@pytest.fixture(autouse=True)
def features_are_kept_here(monkeypatch, tmp_path_factory):
    monkeypatch.setenv("RANKCODE_DATA", str(tmp_path_factory.mktemp("data")))


def lively(network, std):
    """Weights that make it answer at different steps."""
    torch.manual_seed(2)
    for name, parameter in network.named_parameters():
        torch.nn.init.normal_(parameter, std=0.0 if "bias" in name else 2.0 if "readout" in name else std)
    return network


def series_network(channels=2):
    network = lively(rc.Network(rc.cells.GRU(channels, 8), 3), 0.4)
    network.front_end, network.label_names = Standardise((5.0,) * channels, (2.0,) * channels), ("x", "y", "z")
    return network


def sound_network():
    network = lively(rc.Network(rc.cells.GRU(420, 8), 3), 0.018)
    network.front_end, network.label_names = Audio((-2.0,) * 20, (4.0,) * 20), ("yes", "no", "unknown")
    return network


def image_network():
    network = lively(rc.Network(rc.cells.ConvLSTM(1, 2, (8, 8)), 10), 0.15)
    network.front_end, network.label_names = LatencyCode(16, 5, (1, 8, 8)), tuple("0123456789")
    return network


def sounds():
    """Waveforms of different lengths that grow loud."""
    random = np.random.default_rng(0)
    sizes = (16000, 5000, 900, 3, 24001)
    return [(0.2 * random.normal(size=n) * np.linspace(0, 1, n) ** 2).clip(-1, 1).astype(np.float32) for n in sizes]


def written(path, waveform, rate=16_000):
    """A WAV file, and the waveform as the file holds it."""
    samples = np.round(waveform * 32767).astype("<i2")
    path.write_bytes(wav_bytes(samples, rate))
    return samples / np.float32(32768)


def series(lengths=(7, 1, 12, 5, 9, 3), channels=2, seed=0):
    random = np.random.default_rng(seed)
    return [random.normal(5, 3, (length, channels)).astype(np.float32) for length in lengths]


def by_hand(network, inputs, rule):
    """What `decide` answers to the inputs of each row alone."""
    found = []
    for row in inputs:
        decision = rc.decide(network, row[None], rule=rule)
        label = int(decision.label)
        probability = pytest.approx(float(decision.probabilities[0, label]), abs=1e-6)
        found.append((network.label_names[label], probability, int(decision.steps), bool(decision.fired)))
    return found


def refused(network, data, *parts, error=ValueError):
    """`predict` is refused in one line that holds these parts."""
    with pytest.raises(error) as caught:
        rc.predict(network, data)
    message = str(caught.value)
    assert "\n" not in message and all(part in message for part in parts), message


RULES = [None, rc.Threshold(0.6), rc.Patience(rc.Threshold(0.5), 2), rc.Never()]


# Series


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_series_of_different_lengths(rule):
    network, rows = series_network(), series()
    rows[2][4:6, 1] = np.nan
    rows[4][0] = np.nan
    filled = [row.copy() for row in rows]
    filled[2][4:6, 1] = rows[2][3, 1]
    filled[4][0] = 5
    inputs = [torch.from_numpy((row - 5) / 2) for row in filled]
    found = rc.predict(network, rows, rule)
    assert [each[:4] for each in found] == by_hand(network, inputs, rule)
    assert {tuple(type(part) for part in each) for each in found} == {(str, float, int, bool, type(None), dict)}
    assert all(each.fired or each.steps == len(row) for each, row in zip(found, rows, strict=True))
    if rule == rc.Threshold(0.6):
        assert len({each.steps for each in found}) > 1 and len({each.label for each in found}) > 1


def test_a_network_without_names_or_front_end():
    network, rows = lively(rc.Network(rc.cells.GRU(2, 8), 3), 0.2), series()
    found = rc.predict(network, rows, rc.Threshold(0.6))
    network.label_names = ("0", "1", "2")
    assert [each[:4] for each in found] == by_hand(network, map(torch.from_numpy, rows), rc.Threshold(0.6))


@pytest.mark.filterwarnings("error")
def test_rows_as_users_have_them():
    network, rows = series_network(), np.stack(series((6,) * 4))
    expected = rc.predict(network, list(rows))
    assert rc.predict(network, torch.from_numpy(rows)) == rc.predict(network, rows.tolist()) == expected
    assert rc.predict(network, rows.transpose(0, 2, 1)) == expected  # channels before steps
    assert rc.predict(network, rows[::-1]) == expected[::-1]
    assert rc.predict(network, rows.astype(">f4")) == rc.predict(network, np.ma.masked_array(rows)) == expected
    assert rc.predict(network, rows[:0]) == [] == rc.predict(network, [])
    rows.flags.writeable = False
    assert rc.predict(network, rows) == expected
    missing = rows.copy()
    missing[2, 3:5, 1] = np.nan
    assert rc.predict(network, np.ma.masked_invalid(missing)) == rc.predict(network, missing) != expected


def test_one_value_a_step_needs_no_channels():
    network, rows = series_network(1), series(channels=1)
    expected = rc.predict(network, rows)
    flat = np.empty(len(rows), object)
    flat[:] = [row[:, 0] for row in rows]
    assert rc.predict(network, flat) == rc.predict(network, list(flat)) == expected
    assert rc.predict(network, [row[:, 0].tolist() for row in rows]) == expected
    assert rc.predict(network, tuple(torch.from_numpy(row) for row in rows)) == expected


def test_whole_numbers_among_the_rows_change_no_other_row():
    network = series_network(1)
    whole, broken = np.array([7, 2, 4, 9]), np.array([4.6, 5.5, 3.9, 4.4])
    expected = [rc.predict(network, [row], rc.Never())[0] for row in (whole, broken)]
    for order in ([0, 1], [1, 0]):
        found = rc.predict(network, [(whole, broken)[k] for k in order], rc.Never())
        assert [each[:3] for each in found] == [
            (expected[k].label, pytest.approx(expected[k].probability, abs=1e-6), 4) for k in order
        ]


def test_more_rows_than_are_run_at_once():
    network = series_network()
    rows = series([1 + k % 11 for k in range(2 * ROWS + 37)])
    inputs = [torch.from_numpy((row - 5) / 2) for row in rows]
    found = rc.predict(network, rows, rc.Threshold(0.6))
    assert len(found) == 2 * ROWS + 37
    chosen = [0, ROWS - 1, ROWS, 2 * ROWS - 1, 2 * ROWS, 2 * ROWS + 36, *range(100, 400, 7)]
    assert [found[k][:4] for k in chosen] == by_hand(network, [inputs[k] for k in chosen], rc.Threshold(0.6))


def test_steps_missing_at_the_end_of_an_array_are_not_read(tmp_path):
    """As in a file, and in training."""
    values = np.random.default_rng(0).normal(5, 2, size=(6, 9, 2))
    values[1, 6:], values[4, 2:], values[3, 4:6, 0] = np.nan, np.nan, np.nan
    np.savez(tmp_path / "padded.npz", X=values)
    network = series_network()
    found = rc.predict(network, values, rc.Never())
    assert [each.steps for each in found] == [9, 6, 9, 9, 2, 9]
    assert found == rc.predict(network, torch.from_numpy(values), rc.Never())
    assert found == rc.predict(network, str(tmp_path / "padded.npz"), rc.Never())
    assert [each.steps for each in rc.predict(network, list(values), rc.Never())] == [9] * 6  # as long as each is


def test_files_of_series(tmp_path):
    network, rows = series_network(), np.stack(series((6,) * 4))
    expected, lengths = rc.predict(network, rows), np.array([6, 2, 5, 6])
    np.savez(tmp_path / "a.npz", X=rows[:3], y=["x", "what", "z"])  # labels are not needed
    np.savez(tmp_path / "b.npz", X=rows[3:])
    names, _, found = zip(*predict_rows(network, [str(tmp_path / "a.npz"), tmp_path / "b.npz"]), strict=True)
    assert list(found) == expected
    assert names == (*(f"{tmp_path / 'a.npz'}, row {k}" for k in (1, 2, 3)), f"{tmp_path / 'b.npz'}, row 1")
    np.savez(tmp_path / "splits.npz", X_test=rows[2:], y_test=[0, 1], X_train=rows[:2], y_train=[0, 1])
    assert rc.predict(network, tmp_path / "splits.npz") == expected
    np.savez(tmp_path / "ragged.npz", X=rows, lengths=lengths)
    shorter = [row[:length] for row, length in zip(rows, lengths, strict=True)]
    assert rc.predict(network, tmp_path / "ragged.npz") == rc.predict(network, shorter)


def test_a_file_of_a_pair_counts_for_itself(tmp_path):
    for split, value in (("TRAIN", 3), ("TEST", 8)):
        (tmp_path / f"Mine_{split}.tsv").write_text(f"x\t{value}\t{value}\n")
    assert rc.predict(series_network(1), tmp_path / "Mine_TEST.tsv") == rc.predict(series_network(1), [[8.0, 8.0]])


# Sound


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_waveforms(rule):
    network, waveforms = sound_network(), sounds()
    inputs = [network.front_end(network.front_end.read(each).values[None])[0][0] for each in waveforms]
    assert [len(each) for each in inputs] == [81, 12, 1, 1, 131]
    found = rc.predict(network, waveforms, rule)
    assert [each[:4] for each in found] == by_hand(network, inputs, rule)
    for each, waveform in zip(found, waveforms, strict=True):
        assert each.milliseconds == min(len(waveform) / 16, 10 * (each.steps - 1) + 212.5)
        assert type(each.milliseconds) is float
    if rule == rc.Threshold(0.6):
        assert len({each.steps for each in found}) > 2


def test_an_answer_depends_on_nothing_that_was_not_heard():
    network, (waveform, *_) = sound_network(), sounds()
    (found,) = rc.predict(network, waveform, rc.FireAt([30]))
    assert found.milliseconds == 290 + 212.5
    heard = round(16 * found.milliseconds)
    changed, touched = waveform.copy(), waveform.copy()
    changed[heard:] = 0.9
    touched[heard - 100 :] = 0.9
    assert rc.predict(network, changed, rc.FireAt([30])) == [found]
    assert rc.predict(network, touched, rc.FireAt([30])) != [found]


def test_files_and_waveforms_alone_in_lists_and_mixed(tmp_path):
    network = sound_network()
    waveforms = [written(tmp_path / f"{k}.wav", each) for k, each in enumerate(sounds())]
    files = [tmp_path / f"{k}.wav" for k in range(5)]
    expected = rc.predict(network, waveforms)
    assert rc.predict(network, files) == rc.predict(network, tuple(map(str, files))) == expected
    mixed = [files[0], waveforms[1], torch.from_numpy(waveforms[2]), *map(str, files[3:])]
    assert rc.predict(network, mixed) == rc.predict(network, tmp_path) == expected
    alone = [rc.predict(network, data) for data in (files[1], str(files[1]), waveforms[1], [waveforms[1]])]
    assert all(found == alone[0] for found in alone) and alone[0][0][::2] == expected[1][::2]
    block = np.stack([waveforms[0], waveforms[0][::-1]])
    assert rc.predict(network, block) == rc.predict(network, list(block))


def test_a_file_at_another_rate_is_brought_to_the_networks(tmp_path):
    pytest.importorskip("soxr")
    written(tmp_path / "slow.wav", sounds()[1], rate=8000)
    (found,) = rc.predict(sound_network(), tmp_path / "slow.wav", rc.Never())
    assert found.milliseconds == 5000 / 8 and found.steps == 1 + 10000 // 160 - 20


# Images


def test_images_of_bytes():
    network = image_network()
    images = torch.randint(17, (6, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    inputs, _ = LatencyCode(16, 5, (1, 8, 8))(images)
    rule = rc.Threshold(0.3)
    found = rc.predict(network, images, rule)
    assert [each[:4] for each in found] == by_hand(network, inputs, rule)
    assert len({each.steps for each in found}) > 1 and all(each.milliseconds is None for each in found)
    for same in (images.numpy(), list(images), images[:, None], images.flatten(1), images.long(), images.tolist()):
        assert rc.predict(network, same, rule) == found
    (alone,) = rc.predict(network, images[2], rule)
    assert (alone.label, alone.steps) == (found[2].label, found[2].steps)


# Data that cannot be used

WRONG = {
    series_network: {
        "one row instead of rows": np.zeros(24),
        "numbers": [1.0, 2.0, 3.0],
        "a number": 3,
        "nothing": None,
        "a dictionary": {"a": np.zeros((3, 2))},
        "a generator": (row for row in series()),
        "rows of other widths": [np.zeros((5, 2)), np.zeros((5, 3))],
        "one value a step": [np.zeros(5)],
        "images": np.zeros((4, 5, 2, 2)),
        "no steps": np.zeros((2, 0, 2)),
        "a row of no steps": [np.zeros((3, 2)), np.zeros((0, 2))],
        "names": ["yes", "no"],
        "text": [[["a", "b"], ["c", "d"]]],
        "a ragged list": [[[1.0, 2.0], [3.0]]],
        "no file": "none.npz",
        "sound": "none.wav",
    },
    sound_network: {
        "two channels": np.zeros((2, 2, 100), dtype=np.float32),
        "no samples": np.zeros(0, dtype=np.float32),
        "a number": 3.0,
        "nothing in a list": [None],
        "numbers": [0.1, 0.2],
        "names in an array": np.array(["a.wav", "b.wav"]),
        "not a number": np.full(100, math.nan),
        "infinity": [np.full(100, math.inf, dtype=np.float32)],
        "a dictionary": {"waveform": np.zeros(100)},
    },
    image_network: {
        "part of one image": np.zeros((8, 7), dtype=np.uint8),
        "small ones": np.zeros((3, 4, 4), dtype=np.uint8),
        "of different heights": [np.full((8, 8), 3, dtype=np.uint8), np.full((6, 8), 3, dtype=np.uint8)],
        "of numbers in 0…1": np.zeros((3, 8, 8)),
        "too dark": np.full((3, 8, 8), 17),
        "a file": "digit.png",
    },
}


@pytest.mark.parametrize(
    ("network", "data"),
    [pytest.param(make, data, id=f"{make.__name__}-{name}") for make in WRONG for name, data in WRONG[make].items()],
)
def test_other_data_is_refused_in_one_line(network, data):
    refused(network(), data)


@pytest.mark.parametrize(
    ("network", "good", "bad", "reason"),
    [
        (sound_network, np.zeros(900, np.float32), np.full(900, np.nan, np.float32), "the waveform holds NaN"),
        (sound_network, np.zeros(900, np.float32), np.zeros(900, np.int16), "a waveform is"),
        (sound_network, np.zeros(900, np.float32), np.full(900, 300.0), "scale it first"),
        (series_network, np.zeros((3, 2)), np.full((3, 2), np.nan), "all of its values are missing"),
        (series_network, np.zeros((3, 2)), np.full((3, 2), np.inf), "it has an infinite value"),
        (series_network, np.zeros((3, 2)), np.zeros((3, 3)), "3 values a step"),
        (series_network, np.zeros((3, 2)), np.ones((3, 2)) * 1j, "complex"),
        (image_network, np.zeros((8, 8), np.uint8), np.zeros((8, 7), np.uint8), "an image must have shape"),
    ],
)
def test_a_bad_row_of_a_list_is_named_or_left_out(network, good, bad, reason):
    network, rows = network(), [good, good, bad, good]
    with pytest.raises(BadData, match=rf"^row 2 of the data: .*{reason}.*; skip_bad=True leaves it out$"):
        rc.predict(network, rows)
    left_out = []
    found = rc.predict(network, rows, skip_bad=True, left_out=left_out)
    assert found == rc.predict(network, [good] * 3) == rc.predict(network, rows, skip_bad=True)
    assert len(left_out) == 1 and left_out[0].startswith("row 2 of the data: ") and reason in left_out[0]


def test_a_bad_row_is_named_by_its_place_in_all(tmp_path):
    values = np.ones((ROWS + 20, 4, 2))
    values[ROWS + 3, 0] = np.inf
    message = f"row {ROWS + 3} of the data: it has an infinite value; skip_bad=True leaves it out"
    refused(series_network(), values, message, error=BadData)

    values[0], values[3, 2] = np.inf, 3e38
    np.savez(tmp_path / "large.npz", X=values[:5])
    network, left_out = series_network(), []
    network.front_end = Standardise((0.0, 0.0), (1e-3, 1.0))
    with pytest.raises(ValueError, match=r"inputs hold NaN or infinity in .*large.npz, row 4, step 3$"):
        rc.predict(network, str(tmp_path / "large.npz"), rc.Never(), skip_bad=True, left_out=left_out)
    assert len(left_out) == 1


def test_sound_files_that_cannot_be_used_are_left_out(tmp_path):
    network, waveform = sound_network(), sounds()[0]
    for name in ("a.wav", "c.wav"):
        written(tmp_path / name, waveform)
    (tmp_path / "b.wav").write_bytes((tmp_path / "a.wav").read_bytes()[:-100])
    refused(network, tmp_path, "b.wav is cut short", "; skip_bad=True leaves it out", error=BadData)
    left_out = []
    found = list(predict_rows(network, tmp_path, skip_bad=True, left_out=left_out))
    assert [name for name, _, _ in found] == [str(tmp_path / "a.wav"), str(tmp_path / "c.wav")]
    assert len(left_out) == 1 and "b.wav is cut short" in left_out[0]
    left_out.clear()
    files = [tmp_path / "none.wav", tmp_path / "a.wav"]
    assert len(rc.predict(network, files, skip_bad=True, left_out=left_out)) == 1
    assert left_out == [f"there is no file {tmp_path / 'none.wav'}"]


def test_files_that_are_not_there_or_of_another_sort(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.wav").write_text("these are notes")
    (tmp_path / "data.npz").write_bytes(b"PK rubbish")
    refused(sound_network(), tmp_path / "notes.wav", "notes.wav", error=BadData)
    refused(sound_network(), tmp_path / "none.wav", "none.wav", error=FileNotFoundError)
    refused(sound_network(), tmp_path / "empty", f"there is no sound file in {tmp_path / 'empty'}")
    refused(series_network(), tmp_path / "data.npz", "data.npz")


def test_a_rule_that_does_not_suit_the_network_is_not_the_fault_of_a_file(tmp_path):
    np.savez(tmp_path / "a.npz", X=np.ones((3, 4, 2)))
    for data in (tmp_path / "a.npz", tmp_path / "none.npz", series()):
        with pytest.raises(ValueError, match=r"^threshold 1\.2 is outside") as error:
            rc.predict(series_network(), data, rc.Threshold(1.2))
        assert type(error.value) is ValueError


# Memory


def test_long_rows_are_read_a_few_at_a_time(monkeypatch):
    monkeypatch.setattr(prediction, "BATCH_VALUES", 100)
    network, rows = series_network(), series((40, 3, 3, 3, 60, 20, 5, 5))
    sizes = []
    monkeypatch.setattr(prediction, "decide", lambda *given: sizes.append(tuple(given[1].shape)) or rc.decide(*given))
    found = rc.predict(network, rows, rc.Never())
    assert [each.steps for each in found] == [len(row) for row in rows]
    assert sizes == [(1, 40, 2), (3, 3, 2), (1, 60, 2), (2, 20, 2), (1, 5, 2)]


@pytest.mark.parametrize("cell", [rc.cells.GRU(420, 8), rc.cells.LIF(420, 8)], ids=["gru", "lif"])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_inputs_of_long_recordings_are_made_in_blocks(rule, cell, monkeypatch):
    network, waveforms, frames = sound_network(), sounds(), []
    if isinstance(cell, rc.cells.LIF):
        network.cell = lively(cell, 0.05)
    whole = rc.predict(network, waveforms, rule)
    make = Audio.__call__
    monkeypatch.setattr(Audio, "__call__", lambda self, stored: frames.append(stored.shape[1]) or make(self, stored))
    monkeypatch.setattr(prediction, "BATCH_VALUES", 0)
    monkeypatch.setattr(prediction, "BLOCK_STEPS", 7)
    for each, other in zip(rc.predict(network, waveforms, rule), whole, strict=True):
        assert each[::2] == other[::2] and each.fired == other.fired
        assert list(each.probabilities.values()) == pytest.approx(list(other.probabilities.values()), abs=1e-6)
    assert max(frames) == 7 + 20 and len(frames) == sum(-(-each.steps // 7) for each in whole)


LONG = """
import resource, sys
import torch
import rankcode as rc
from rankcode import prediction
from rankcode.front_ends import Audio

torch.set_num_threads(1)
network = rc.Network(rc.cells.GRU(420, 4), 2)
network.front_end = Audio((0.0,) * 20, (1.0,) * 20)
rc.predict(network, torch.zeros(16_000))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
(answer,) = rc.predict(network, sys.argv[1], rc.Never())
print(answer.steps, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_ten_minutes_of_silence_take_little_memory(tmp_path):
    """A file of 30 kB: its inputs would be 100 MB in 32 bits, and its windows in 64 bits 400 MB."""
    soundfile = pytest.importorskip("soundfile")
    with soundfile.SoundFile(tmp_path / "a.flac", "w", 16_000, 1) as file:
        for _ in range(10):
            file.write(np.zeros(60 * 16_000, np.int16))
    command = [sys.executable, "-c", LONG, tmp_path / "a.flac"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    steps, kilobytes = map(int, done.stdout.split())
    assert steps == 10 * 60 * 100 - 19 and kilobytes < 60_000


FOUR_HOURS = """
import resource
import torch
import rankcode as rc
from rankcode.front_ends import Audio
from rankcode.front_ends.protocol import StoredRow

class Silence(Audio):
    def read(self, raw):
        return StoredRow(torch.zeros(raw, 20, dtype=torch.uint8), 160 * raw)

torch.set_num_threads(1)
network = rc.Network(rc.cells.GRU(20, 4), 2)
network.front_end = Silence((0.0,) * 20, (1.0,) * 20, context=0)
rc.predict(network, [100])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
(answer,) = rc.predict(network, [4 * 3600 * 100], rc.Threshold(0.01))
print(answer.steps, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_inputs_that_are_not_read_take_no_memory():
    """All inputs of four hours are 115 MB, the frames that they are made of 29 MB."""
    done = subprocess.run([sys.executable, "-c", FOUR_HOURS], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    steps, kilobytes = map(int, done.stdout.split())
    assert steps == 1 and kilobytes < 60_000


def test_the_probabilities_of_all_classes_come_by_name():
    network, rows = series_network(), np.stack(series((6,) * 4))
    decision = rc.decide(network, network.front_end(torch.from_numpy(rows))[0])
    names = network.class_names
    for answer, probabilities in zip(rc.predict(network, rows), decision.probabilities.tolist(), strict=True):
        assert list(answer.probabilities) == list(names)
        assert list(answer.probabilities.values()) == pytest.approx(probabilities, abs=1e-6)
        assert answer.probability == answer.probabilities[answer.label]
