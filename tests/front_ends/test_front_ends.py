"""What is part of a network beside its weights: how raw data become its inputs, and what its classes are called."""

import json
import math

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import rankcode as rc
from live_networks import Leaky
from rankcode.data.sources import Arrays, Batch, Generated, Packed, as_source
from rankcode.front_ends import FRONT_ENDS, Audio, LatencyCode, LogMel, Standardise
from rankcode.metrics import source_for
from rankcode.saving.description import describe, read_network
from rankcode.saving.model_file import _read, metadata
from rankcode.tasks import OwnData, rows_for
from wav_files import write_wav

THIRDS = tuple(k / 3 for k in range(1, 21))  # numbers that no short text holds exactly
KINDS = {
    "standardise": Standardise((0.1, -1e300, math.pi), (1e-12, 2 / 3, 5.0)),
    "latency": LatencyCode(255, 10, (1, 28, 28)),
    "latency, flat": LatencyCode(16, 7, (64,)),
    "audio": Audio(THIRDS, THIRDS[::-1]),
    "audio of another kind": Audio((0.1, 0.2, 0.3), (1.0, 2.0, 3.0), LogMel(8000, 3), context=2),
}
NAMES = ("ja", "näh ☺", "10", "")


def example(front_end=None, names=None):
    torch.manual_seed(0)
    shape = (3,) if front_end is None else front_end.output_shape
    cell = rc.cells.GRU(shape[0], 5) if len(shape) == 1 else rc.cells.ConvLSTM(shape[0], 2, shape[1:])
    network = rc.Network(cell, 4)
    network.front_end, network.label_names = front_end, names
    return network


# In a model file


@pytest.mark.parametrize("kind", KINDS)
def test_a_front_end_comes_back_exactly(kind, tmp_path):
    rc.save(example(KINDS[kind], NAMES), tmp_path / "model")
    again = rc.load(tmp_path / "model")
    assert again.front_end == KINDS[kind] and type(again.front_end) is type(KINDS[kind])
    assert hash(again.front_end) == hash(KINDS[kind]), "every part of it is what it was, tuples too"
    assert again.label_names == NAMES
    rc.save(again, tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "model").read_bytes()


def test_every_kind_of_front_end_is_tried():
    assert {type(kind) for kind in KINDS.values()} == set(FRONT_ENDS.values())


def test_a_description_says_only_what_there_is():
    assert {"front_end", "label_names"}.isdisjoint(describe(example()))
    description = json.loads(json.dumps(describe(example(KINDS["audio of another kind"], NAMES))))
    assert description["front_end"] == {
        "kind": "Audio",
        "mean": [0.1, 0.2, 0.3],
        "std": [1.0, 2.0, 3.0],
        "log_mel": {"sample_rate": 8000, "n_mels": 3, "hop_ms": 10},
        "context": 2,
    }
    assert description["label_names"] == list(NAMES)
    again = read_network(description)
    assert again.front_end == KINDS["audio of another kind"] and again.label_names == NAMES


def written(path, **changes):
    """A model file whose description says something else."""
    rc.save(example(KINDS["standardise"], NAMES), path)
    header, weights = _read(path)
    header["network"] = {name: value for name, value in (header["network"] | changes).items() if value is not None}
    save_file(weights, path, metadata(header, weights))
    return path


def test_a_file_without_a_front_end_and_names_loads(tmp_path):
    path = written(tmp_path / "plain", front_end=None, label_names=None)
    again = rc.load(path)
    assert again.front_end is None and again.label_names is None
    inputs = torch.randn(4, 6, 3)
    assert rc.decide(again, inputs).probabilities.equal(rc.decide(example(), inputs).probabilities)


BROKEN = {
    "an unknown kind": {"front_end": {"kind": "os.system", "command": "touch owned"}},
    "no kind": {"front_end": {"mean": [0.0], "std": [1.0]}},
    "a part too many": {"front_end": {"kind": "LatencyCode", "levels": 1, "steps": 1, "shape": [1], "hook": "x"}},
    "a number": {"front_end": 3},
    "other channels than the cell": {"front_end": {"kind": "Standardise", "mean": [0.0, 1.0], "std": [1.0, 1.0]}},
    "a deviation of 0": {"front_end": {"kind": "Standardise", "mean": [0.0] * 3, "std": [1.0, 0.0, 1.0]}},
    "audio with too few bands": {"front_end": {"kind": "Audio", "mean": [0.0], "std": [1.0]}},
    "names that are no list": {"label_names": 3},
    "too few names": {"label_names": ["a", "b"]},
}


@pytest.mark.parametrize("into", [False, True], ids=["", "into a network"])
@pytest.mark.parametrize("change", BROKEN.values(), ids=BROKEN)
def test_a_file_that_describes_something_else_is_one_line(change, into, tmp_path):
    path = written(tmp_path / "broken", **change)
    with pytest.raises(ValueError) as error:
        rc.load(path, example() if into else None)
    assert "\n" not in str(error.value)


def test_a_network_with_parts_of_its_own_gets_them_too(tmp_path):
    network = rc.Network(Leaky(), 4, nn.Linear(4, 4))
    network.front_end, network.label_names = KINDS["standardise"], NAMES
    rc.save(network, tmp_path / "own")
    again = rc.load(tmp_path / "own", network=rc.Network(Leaky(), 4, nn.Linear(4, 4)))
    assert (again.front_end, again.label_names) == (KINDS["standardise"], NAMES)


# Whose front end is used


def test_raw_data_are_read_as_the_network_reads_them():
    task_front_end, own = Standardise((0.0,), (1.0,)), Standardise((2.0,), (4.0,))
    source = Packed(torch.arange(6.0)[:, None], [0, 2], [2, 4], [0, 1], task_front_end)
    chosen = source_for(example(own), source)
    assert next(chosen.scan(2, "cpu")).inputs[1].flatten().tolist() == [0, 0.25, 0.5, 0.75]
    assert source.encode == task_front_end, "the data is left as it was"
    assert next(source.scan(2, "cpu")).inputs[1].flatten().tolist() == [2, 3, 4, 5]


def test_data_that_are_inputs_already_are_left_alone():
    network = example(Standardise((5.0,) * 3, (2.0,) * 3))
    inputs, labels = torch.randn(4, 6, 3), torch.zeros(4, dtype=torch.long)
    own = Arrays(inputs, labels, encode=lambda stored, lengths: (2 * stored, lengths))
    made = Generated(lambda rows, generator: Batch(torch.zeros(rows, 2, 3), torch.zeros(rows).long()), 8)
    for source in (as_source((inputs, labels)), own, made, as_source([(inputs, labels)])):
        assert source_for(network, source) is source
    assert rc.evaluate(network, (inputs, labels)).loss == rc.evaluate(example(), (inputs, labels)).loss


def test_evaluation_uses_the_networks_front_end_and_names():
    """The same rows twice as large, for a network that halves them."""
    torch.manual_seed(1)
    values, labels = torch.randn(40, 3), torch.arange(10) % 3
    offsets, lengths = torch.arange(0, 40, 4), torch.full((10,), 4)
    network = example(Standardise((0.0,) * 3, (1.0,) * 3), NAMES)
    plain = Packed(values, offsets, lengths, labels, Standardise((9.0,) * 3, (9.0,) * 3))
    doubled = Packed(2 * values, offsets, lengths, labels, Standardise((9.0,) * 3, (9.0,) * 3))
    halving = example(Standardise((0.0,) * 3, (2.0,) * 3), NAMES)
    rule = rc.Threshold(0.4)
    report = rc.evaluate(network, plain, rule)
    assert report == rc.evaluate(halving, doubled, rule)
    assert report == rc.evaluate(example(names=NAMES), (values.view(10, 4, 3), labels), rule)
    assert report != rc.evaluate(network, doubled, rule)
    assert [each.name for each in report.classes] == ["ja", "näh ☺", "10"]
    thresholds = [0.3, 0.35, 0.4]
    assert rc.tradeoff(network, plain, thresholds) == rc.tradeoff(halving, doubled, thresholds)
    assert rc.tradeoff(network, plain, thresholds) != rc.tradeoff(network, doubled, thresholds)


def test_data_of_another_kind_is_one_line():
    images = Arrays(torch.zeros(6, 1, dtype=torch.uint8), [0] * 6, encode=LatencyCode(255, 5, (1,)))
    assert source_for(example(), images) is images
    with pytest.raises(ValueError, match="reads sound in 20 bands") as error:
        rc.evaluate(hears(), images)
    assert "\n" not in str(error.value)


def test_training_leaves_both_where_the_data_has_neither():
    network = example(KINDS["standardise"], NAMES)
    config = rc.Training(examples=64, batch_size=32, device="cpu", progress=False)
    rc.fit(network, (torch.randn(32, 4, 3), torch.arange(32) % 4), rc.AtEnd(), config)
    assert (network.front_end, network.label_names) == (KINDS["standardise"], NAMES)


# Milliseconds


@pytest.fixture
def recordings(tmp_path, monkeypatch):
    """Recordings of class a and b of 500, 300 and 30 ms each."""
    monkeypatch.setenv("RANKCODE_DATA", str(tmp_path / "kept"))
    for word in "ab":
        for milliseconds in (300, 500, 30):
            write_wav(tmp_path / "sound" / word / f"{milliseconds}.wav", 16 * milliseconds)
    return tmp_path / "sound"


def hears(context=10):
    torch.manual_seed(0)
    front_end = Audio((0.0,) * 20, (3.0,) * 20, context=context)
    network = rc.Network(rc.cells.GRU(front_end.output_shape[0], 6), 2)
    network.front_end, network.label_names = front_end, ("a", "b")
    return network


@pytest.mark.parametrize("rows", [2, 1024])
def test_what_was_heard_by_hand(recordings, rows):
    network = hears()
    source = rows_for(network, recordings)
    assert [name.split("/")[1] for name in source.names] == ["30.wav", "300.wav", "500.wav"] * 2
    steps = torch.tensor([1, 4, 2, 1, 11, 31])
    assert source.heard(steps).tolist() == [30, 30 + 212.5, 10 + 212.5, 30, 300, 500]
    assert source.heard(torch.tensor([9, 10]), first=1).tolist() == [80 + 212.5, 90 + 212.5]
    report = rc.evaluate(network, source, rc.Never(), batch_size=rows)
    assert report.milliseconds == pytest.approx((30 + 300 + 500) / 3)
    assert "277 ms heard" in str(report)
    assert report.as_dict()["milliseconds"] == report.milliseconds


@pytest.mark.parametrize("rows", [4, 1024])
def test_a_curve_in_milliseconds_is_that_of_its_reports(recordings, rows):
    network = hears()
    source = rows_for(network, recordings)
    thresholds = [0.5, 0.55, 0.6, 0.65, 0.7, 0.8, 1.0]
    curve = rc.tradeoff(network, source, thresholds, batch_size=rows)
    assert len(set(curve.milliseconds)) > 2
    for threshold, heard in zip(curve.thresholds, curve.milliseconds, strict=True):
        assert heard == pytest.approx(rc.evaluate(network, source, rc.Threshold(threshold)).milliseconds)
    assert curve.milliseconds[0] == pytest.approx((30 + 212.5 + 212.5) / 3)


def test_what_was_heard_counts_the_networks_context_and_not_the_tasks(recordings):
    task = OwnData(str(recordings), context=3)
    row = int(task.train.samples.argmax())
    assert task.train.samples[row] >= 16 * 300
    assert task.train.heard(torch.tensor([2]), row).tolist() == [10 + 60 + 12.5]
    assert source_for(hears(0), task.train).heard(torch.tensor([2]), row).tolist() == [10 + 12.5]
