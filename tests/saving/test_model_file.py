import math
import os
import resource
import time
from collections import OrderedDict
from copy import deepcopy
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import rankcode as rc
from live_networks import Leaky
from rankcode import cells
from rankcode.readouts import EnsembleReadout
from rankcode.saving import files as whole_file
from rankcode.saving.description import describe
from rankcode.saving.model_file import _read, metadata

IMAGES = {"in_channels": 1, "image_size": (4, 3)}
NETWORKS = {
    "lstm": (lambda: rc.Network(cells.LSTM(3, 4, num_layers=2), 5), (3,)),
    "gru": (lambda: rc.Network(cells.GRU(3, 4), 5), (3,)),
    "sigmoid": (lambda: rc.Network(cells.GRU(3, 4), 1), (3,)),
    "conv lstm": (lambda: rc.Network(cells.ConvLSTM(hidden_channels=2, kernel_size=5, **IMAGES), 5), (1, 4, 3)),
    "lif": (lambda: rc.Network(cells.LIF(3, 4, threshold=0.3, decay=0.7, surrogate_width=0.2), 5), (3,)),
    "membranes": (lambda: rc.Network(cells.LIF(3, 4, emits="membranes"), 4), (3,)),
    "conv lif": (lambda: rc.Network(cells.ConvLIF(hidden_channels=4, pool_size=2, decay=0.6, **IMAGES), 5), (1, 4, 3)),
    "stack": (
        lambda: rc.Network(
            cells.Stack(cells.ConvLIF(hidden_channels=2, threshold=0.1, **IMAGES), cells.LIF(24, 5, emits="membranes")),
            5,
        ),
        (1, 4, 3),
    ),
    "stack in a stack": (
        lambda: rc.Network(cells.Stack(cells.Stack(cells.GRU(3, 4), cells.LSTM(4, 6)), cells.GRU(6, 2)), 5),
        (3,),
    ),
    "layers": (
        lambda: rc.Network(
            cells.LSTM(3, 4),
            5,
            readout=nn.Sequential(
                nn.Flatten(1, -1),
                nn.Linear(4, 6, bias=False),
                nn.ReLU(),
                nn.Dropout(0.25),
                nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Identity()),
                nn.GELU(),
                nn.Linear(6, 4),
                nn.GELU(approximate="tanh"),
                nn.Linear(4, 5),
            ),
        ),
        (3,),
    ),
    "ensemble": (
        lambda: rc.Network(
            cells.Parallel(cells.GRU(3, 4), cells.Stack(cells.LSTM(3, 6), cells.GRU(6, 2))),
            2,
            EnsembleReadout((nn.Linear(4, 1), nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))), (4, 2)),
        ),
        (3,),
    ),
    "membranes of any cell": (
        lambda: rc.Network(cells.GRU(3, 4), 5, readout=nn.Linear(4, 5), activation="membrane"),
        (3,),
    ),
}


def refused(path, *words, error=ValueError, **options):
    """Loading is refused in one line that holds these words."""
    with pytest.raises(error) as caught:
        rc.load(path, **options)
    message = str(caught.value)
    assert "\n" not in message and all(word in message for word in (path.name, *words)), message


def same_weights(one, other):
    one, other = one.state_dict(), other.state_dict()
    return list(one) == list(other) and all(one[name].equal(other[name]) for name in one)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kind", NETWORKS)
def test_every_built_in_part_comes_back(kind, dtype, tmp_path):
    make, shape = NETWORKS[kind]
    network = make().to(dtype)
    rc.save(network, tmp_path / "model.rc")
    again = rc.load(tmp_path / "model.rc")
    assert repr(again) == repr(network) and describe(again) == describe(network)
    assert all(parameter.dtype == dtype for parameter in again.parameters()) and same_weights(again, network)
    inputs = 2 * torch.randn(4, 6, *shape, dtype=dtype)
    expected, got = (rc.trace(each, inputs) for each in (network, again))
    assert got.activations.equal(expected.activations)
    assert os.listdir(tmp_path) == ["model.rc"]


NAMED = OrderedDict(low=nn.Linear(4, 4), up=nn.Linear(4, 2))
CUSTOM = {
    "cell": lambda: rc.Network(Leaky(), 2, readout=nn.Linear(4, 2)),
    "cell in a stack": lambda: rc.Network(cells.Stack(cells.GRU(3, 3), Leaky()), 2, readout=nn.Linear(4, 2)),
    "readout": lambda: rc.Network(cells.GRU(3, 4), 2, readout=nn.Bilinear(4, 4, 2)),
    "layer": lambda: rc.Network(cells.GRU(3, 4), 2, readout=nn.Sequential(nn.Softplus(), nn.Linear(4, 2))),
    "names of layers": lambda: rc.Network(cells.GRU(3, 4), 2, readout=nn.Sequential(deepcopy(NAMED))),
}


@pytest.mark.parametrize("make", CUSTOM.values(), ids=CUSTOM)
def test_a_network_with_custom_parts_needs_a_network_to_load_into(make, tmp_path):
    network, again, path = make(), make(), tmp_path / "own.rc"
    rc.save(network, path)
    refused(path, "is not part of rankcode", "network=")
    assert rc.load(path, network=again) is again and same_weights(again, network)


def test_layers_without_a_size_take_that_of_the_file(tmp_path):
    network, again, inputs = rc.Network(Leaky(), 2), rc.Network(Leaky(), 2), torch.randn(3, 5, 3)
    expected = rc.decide(network, inputs).probabilities
    rc.save(network, tmp_path / "own.rc")
    rc.load(tmp_path / "own.rc", network=again)
    assert rc.decide(again, inputs).probabilities.equal(expected)


def test_a_network_that_does_not_fit_is_left_as_it_was(tmp_path):
    rc.save(rc.Network(cells.LSTM(3, 4), 5), tmp_path / "model.rc")
    network = rc.Network(cells.LSTM(3, 4), 2)
    before = deepcopy(network)
    refused(tmp_path / "model.rc", "readout.weight", network=network)
    assert same_weights(network, before)


# Files that are not models


@pytest.fixture
def good(tmp_path):
    path = tmp_path / "good.rc"
    network = rc.Network(cells.LSTM(3, 4), 2)
    network.rule = rc.Threshold(0.9)
    rc.save(network, path)
    return path


def test_a_file_cut_short(good):
    content = good.read_bytes()
    for size in (0, 1, 7, 8, 9, 100, len(content) // 2, len(content) - 1):
        good.write_bytes(content[:size])
        refused(good)


@pytest.mark.parametrize("content", [b"accuracy,steps\n0.9,12\n" * 100, b"\x00" * 64, b"{}", b"\xff" * 1000])
def test_a_file_of_another_sort(content, tmp_path):
    (tmp_path / "other.rc").write_bytes(content)
    refused(tmp_path / "other.rc")
    refused(tmp_path / "none.rc", error=FileNotFoundError)


@pytest.mark.parametrize(
    "rule", [None, rc.Threshold(0.7), rc.Threshold(0.8, classes=(1,)), rc.StepThresholds((0.9, 0.6))], ids=str
)
def test_the_rule_comes_back_and_is_what_decides(rule, tmp_path):
    torch.manual_seed(0)
    network = rc.Network(cells.LSTM(3, 8), outputs=2)
    with torch.no_grad():
        network.readout.weight.mul_(8)
    network.rule = rule
    rc.save(network, tmp_path / "model.rc")
    again = rc.load(tmp_path / "model.rc")
    assert again.rule == rule
    inputs = torch.randn(64, 12, 3)
    for expected, got in zip(
        rc.decide(network, inputs, rule=rule or rc.Threshold(0.95)), rc.decide(again, inputs), strict=True
    ):
        assert got.equal(expected)
    if rule is not None:
        assert not rc.decide(again, inputs).steps.equal(rc.decide(again, inputs, rule=rc.Threshold(0.95)).steps)


def test_the_models_of_a_run_have_the_rule_of_the_training(tmp_path):
    data = SimpleNamespace(train=(torch.randn(16, 5, 3), torch.arange(16) % 2))
    patient = rc.Patience(rc.Threshold(0.6), 2)
    for objective, rule in (
        (rc.AtSpike(0.7), rc.Threshold(0.7)),
        (rc.AtSpike(rule=patient), patient),
        (rc.AtEnd(), None),
    ):
        network, folder = rc.Network(cells.LSTM(3, 8), outputs=2), tmp_path / repr(rule)
        rc.fit(network, data, objective, rc.Training(epochs=1, folder=str(folder), progress=False, finish_with="last"))
        assert network.rule == rc.load(folder / "last.safetensors").rule == rc.load(folder).rule == rule


def with_header(good, **changes):
    """A copy of a good file whose header says something else; a change to None leaves the key out."""
    header, weights = _read(good)
    for target in (header, header["network"]):
        for name in changes.keys() & target.keys():
            target[name] = changes[name]
            if changes[name] is None:
                del target[name]
    path = good.with_name("changed.rc")
    save_file(weights, path, metadata(header, weights))
    return path


def test_the_header_is_read(good):
    assert same_weights(rc.load(with_header(good)), rc.load(good))
    for number in (0, 2, "1", None):
        refused(with_header(good, format=number), "format")


def kind(name, **settings):
    return {"kind": name, **settings}


@pytest.mark.parametrize(
    "changes",
    [
        {"cell": kind("os.system", command="touch owned")},
        {"cell": kind("Network")},
        {"cell": kind("__import__", module="os")},
        {"cell": kind("LSTM", input_size=3, hidden_size=4, num_layers=1, hook="os.system")},
        {"cell": kind("LSTM", input_size=-3, hidden_size=4, num_layers=1)},
        {"cell": kind("LSTM", input_size=10**12, hidden_size=10**12, num_layers=1)},
        {"cell": kind("Linear", in_features=3, out_features=4)},
        {"cell": kind("Stack", parts=[kind("LSTM", input_size=3, hidden_size=4, num_layers=1), kind("eval")])},
        {"cell": None},
        {"readout": kind("Lambda", code="1")},
        {"outputs": 10**12},
        {"outputs": 3},
        {"activation": "relu"},
        {"dtype": "object"},
        {"network": None},
        {"rule": kind("Threshold", hook="os.system")},
    ],
    ids=str,
)
def test_a_header_can_only_name_built_in_parts(good, changes, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    refused(with_header(good, **changes))
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize(
    "cell",
    [
        kind("LSTM", input_size=3, hidden_size=20_000, num_layers=1),
        kind("LSTM", input_size=10**9, hidden_size=4, num_layers=1),
        kind("GRU", input_size=3, hidden_size=4, num_layers=10**7),
        kind("LIF", input_size=10**6, hidden_size=10**6),
        kind("Stack", parts=[kind("ConvLSTM", in_channels=10**5, hidden_channels=10**5, image_size=[10**9, 10**9])]),
    ],
    ids=str,
)
def test_a_header_with_huge_sizes_takes_neither_memory_nor_time(good, cell):
    path, before, begun = with_header(good, cell=cell), resident(), time.perf_counter()
    with pytest.raises(ValueError, match=r"changed\.rc is damaged: "):
        rc.load(path)
    assert time.perf_counter() - begun < 2
    assert resident() - before < 100e6


def resident() -> int:
    """The most memory that this process has used, in bytes."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_weights_that_are_not_finite_are_refused_by_name(value, tmp_path):
    network = rc.Network(cells.LSTM(3, 4), 2)
    with torch.no_grad():
        network.readout.weight[1, 2] = value
    rc.save(network, tmp_path / "model.rc")
    for into in (None, rc.Network(cells.LSTM(3, 4), 2)):
        with pytest.raises(
            ValueError, match=r"model\.rc cannot be used: the weights readout\.weight hold NaN or infinity"
        ):
            rc.load(tmp_path / "model.rc", into)
    assert into.readout.weight.isfinite().all()


@pytest.mark.parametrize("header", ["3", "[1]", "null", "{}", "not json", '"x"'])
def test_a_header_that_is_no_header(header, tmp_path):
    save_file({"a": torch.zeros(1)}, tmp_path / "bad.rc", {"rankcode": header})
    refused(tmp_path / "bad.rc")


def test_a_file_of_another_library(tmp_path):
    for theirs in (None, {"format": "pt"}):
        save_file({"weight": torch.zeros(3)}, tmp_path / "theirs.safetensors", theirs)
        refused(tmp_path / "theirs.safetensors", "was not written by rankcode.save")


def test_a_pickle_is_not_opened(tmp_path):
    class Payload:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "owned"),)

    torch.save({"network": Payload()}, tmp_path / "model.rc")
    refused(tmp_path / "model.rc")
    assert not (tmp_path / "owned").exists()


# Writing


def test_a_save_never_writes_into_the_old_file(good, monkeypatch):
    seen = []
    replace = os.replace
    monkeypatch.setattr(whole_file.os, "replace", lambda a, b: (seen.append(good.read_bytes()), replace(a, b)))
    before = good.read_bytes()
    network = rc.Network(cells.GRU(3, 4), 2)
    rc.save(network, good)
    assert seen == [before] and good.read_bytes() != before
    assert same_weights(rc.load(good), network)


def test_a_folder_is_made(tmp_path):
    rc.save(rc.Network(cells.GRU(3, 4), 2), str(tmp_path / "a" / "b" / "model.rc"))
    assert rc.load(str(tmp_path / "a" / "b" / "model.rc")).outputs == 2


def test_a_custom_front_end_stays_with_the_network_loaded_into(tmp_path):
    class Halve:
        def __call__(self, stored, lengths):
            return stored / 2, lengths

    network, other = rc.Network(cells.GRU(3, 4), 5), rc.Network(cells.GRU(3, 4), 5)
    network.front_end, other.front_end = Halve(), (own := Halve())
    rc.save(network, tmp_path / "own")
    with pytest.raises(ValueError, match=r"own names 'Halve' as network\.front_end, which is not part of rankcode"):
        rc.load(tmp_path / "own")
    rc.load(tmp_path / "own", other)
    assert other.front_end is own
    assert torch.equal(other.cell.weights(0)[0], network.cell.weights(0)[0])
