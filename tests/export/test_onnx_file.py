"""Whole sequences = streams = ONNX files, step by step, for every cell and every rule; and what is refused."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import rankcode as rc
from live_networks import CLASSES, NETWORKS, RULES, inputs_for, network_of, series_network, sound_network
from rankcode.export.step import exportable

onnx, ort = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.usefixtures("operators_are_read_once")

STEPS = 14
PAIRS = {  # every cell and every rule
    "LSTM": "Threshold of some classes",
    "GRU of two layers": "Patience",
    "ConvLSTM": "StepThresholds",
    "LIF": "Threshold",
    "ConvLIF": "FireAt",
    "Glimpses": "Never",
    "RandomKernels": "OptimalStopping",
    "Parallel": "Threshold",
    "Stack": "own rule",
    "CausalConv": "patience with features",
    "own cell": "reads features",
}


def test_the_pairs_are_complete():
    assert PAIRS.keys() == NETWORKS.keys() and {*PAIRS.values()} == RULES.keys()


def opset_of(path):
    (used,) = onnx.load(path).opset_import
    return used.version


class Client:
    """What a client does that has onnxruntime and NumPy alone."""

    def __init__(self, path, rows=1):
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = ort.InferenceSession(path, options)
        self.about = json.loads(self.session.get_modelmeta().custom_metadata_map["rankcode"])
        self.state = {part["name"]: np.zeros((rows, *part["shape"]), part["dtype"]) for part in self.about["state"]}

    def step(self, x):
        feeds = {"x": np.asarray(x, self.about["x"]["dtype"]), **self.state}
        probabilities, fired, label, *new = self.session.run(None, feeds)
        self.state = dict(zip(self.state, new, strict=True))
        return probabilities, fired, label


def read_to_the_answer(client, calls):
    """The (label, steps, fired) of one row, and the probabilities of each step read."""
    seen = []
    for x in calls:
        probabilities, fired, label = client.step(x[None])
        if int(client.state["calls"][0]) > client.about["warm_up"]:
            seen.append(probabilities[0])
        else:
            assert not fired[0] and np.allclose(probabilities, 1 / CLASSES)
        if fired[0]:
            break
    return (int(label[0]), len(seen), bool(fired[0])), np.array(seen)


def assert_same(network, rule, path, inputs, atol=2e-5):
    """One row: offline = stream = file, with the same probabilities at every step."""
    decision = rc.decide(network, inputs[None], rule=rule)
    answer, seen = read_to_the_answer(Client(path), inputs.view(len(inputs), *Client(path).about["x"]["shape"]).numpy())
    assert answer == tuple(part.item() for part in decision[:3])
    stream = rc.Stream(network, rule)
    for number, (x, probabilities) in enumerate(zip(inputs, seen, strict=False), start=1):
        live = stream.push(x.numpy())
        if network.may_fire(number):
            np.testing.assert_allclose(stream.probabilities[0], probabilities, atol=atol)
        assert (live is not None) == (answer == (answer[0], number, True))
    np.testing.assert_allclose(decision.probabilities[0], seen[-1], atol=atol)


@pytest.mark.parametrize("name", PAIRS)
def test_every_cell_and_rule(name, tmp_path):
    network, rule = exportable(NETWORKS[name]), RULES[PAIRS[name]]
    if name == "own cell":
        network.cell.input_shape = (3,)
    done = rc.export_onnx(network, tmp_path / "step.onnx", rule)
    assert done.agreement.rows == 64 and not done.agreement.wrong and done.agreement.near <= 1
    assert done.size == (tmp_path / "step.onnx").stat().st_size and 0 < done.milliseconds < 50
    for seed in range(4):
        # Here a group of GroupNorm has two values, whose difference may be near 0: rounding is magnified.
        atol = 5e-4 if name == "Glimpses" else 2e-5
        assert_same(network, rule, done.path, inputs_for(network, STEPS, seed).float(), atol)
    assert opset_of(done.path) == 18
    together, apart = Client(done.path, 3), [Client(done.path) for _ in range(3)]
    for x in inputs_for(network, STEPS, 9, rows=3).float().transpose(0, 1).numpy():
        x = x.reshape(3, *together.about["x"]["shape"])
        alone = [one.step(part[None]) for one, part in zip(apart, x, strict=True)]
        for whole, *parts in zip(together.step(x), *alone, strict=True):
            np.testing.assert_allclose(whole, np.concatenate(parts), atol=1e-5)


@pytest.mark.parametrize(("name", "opset"), [("LIF", 19), ("Glimpses", 21), ("LSTM", 23)])
def test_other_opsets(name, opset, tmp_path):
    done = rc.export_onnx(NETWORKS[name], tmp_path / "step.onnx", rc.Threshold(0.8), opset=opset)
    assert opset_of(done.path) == opset and not done.agreement.wrong


@pytest.fixture(scope="module")
def patient(tmp_path_factory):
    """One sigmoid output, with patience."""
    torch.manual_seed(1)
    network = rc.Network(rc.cells.GRU(2, 6), outputs=1)
    with torch.no_grad():
        network.readout.weight.mul_(12)
    rule = rc.Patience(rc.Threshold(0.7), 2)
    path = tmp_path_factory.mktemp("patient") / "step.onnx"
    rc.export_onnx(network, path, rule)
    return network.eval(), rule, path


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10**6), length=st.integers(1, 30))
def test_any_row_of_any_length(patient, seed, length):
    network, rule, path = patient
    assert_same(network, rule, path, torch.randn(length, 2, generator=torch.Generator().manual_seed(seed)))


@pytest.fixture(scope="module", params=[0, 3])
def sound(request, tmp_path_factory):
    """With context and without."""
    network, rule = sound_network(request.param), rc.Threshold(0.75)
    path = tmp_path_factory.mktemp("sound") / "step.onnx"
    rc.export_onnx(network, path, rule)
    return network, rule, path


@pytest.mark.parametrize("samples", [1, 700, 1043])
def test_sound_from_samples(sound, samples):
    network, rule, path = sound
    raw = network.front_end.step_module()
    for seed in range(8):
        generator = torch.Generator().manual_seed(seed)
        waveform = (0.3 * torch.randn(samples, generator=generator) * torch.rand(1, generator=generator)).clamp(-1, 1)
        (expected,) = rc.predict(network, [waveform], rule)
        answer, seen = read_to_the_answer(Client(path), raw.sequence(waveform).numpy())
        assert answer == (int(expected.label), expected.steps, expected.fired)
        np.testing.assert_allclose(seen[-1], [*expected.probabilities.values()], atol=2e-5)


def test_series_with_missing_values(tmp_path):
    network, rule = series_network(2), rc.Threshold(0.9)
    done = rc.export_onnx(network, tmp_path / "series.onnx", rule)
    values = np.random.default_rng(0).normal((1, 2), (0.3, 2), (9, 2))
    values[[0, 3, 4], [1, 0, 0]] = np.nan
    (expected,) = rc.predict(network, [values], rule)
    answer, _ = read_to_the_answer(Client(done.path), values)
    assert answer == (int(expected.label), expected.steps, expected.fired)
    inputs = rc.export_onnx(network, tmp_path / "inputs.onnx", rule, from_inputs=True)
    about = Client(inputs.path).about
    assert about["x"] == {"shape": [2], "dtype": "float32", "raw": False} and about["front_end"]["mean"] == [1, 2]


def test_the_metadata_says_all_that_a_client_needs(tmp_path):
    network = sound_network(0)
    network.label_names = ("yes", "no", "größer")
    path = tmp_path / "sound.onnx"
    rc.export_onnx(network, path, rc.Threshold(0.8, classes=(0, 1)), source="a run", int8=True, opset=20)
    client = Client(path)
    about = client.about
    assert about["labels"] == ["yes", "no", "größer"] and about["activation"] == "softmax"
    assert about["rule"] == {"kind": "Threshold", "threshold": 0.8, "classes": [0, 1]}
    assert about["sound"] == {"sample_rate": 4000, "hop": 40, "window": 100, "look_ahead": 50, "silence_before": 30}
    assert about["x"] == {"shape": [40], "dtype": "float32", "raw": True} and about["warm_up"] == 1
    assert about["rankcode"]["source"] == "a run" and about["rankcode"]["int8"] and about["rankcode"]["opset"] == 20
    names = [part.name for part in client.session.get_inputs()]
    assert names == ["x", *(part["name"] for part in about["state"])]
    outputs = [part.name for part in client.session.get_outputs()]
    assert outputs == [*about["outputs"], *(part["new"] for part in about["state"])]
    text = path.read_bytes()
    assert json.loads(text[text.rindex(b'{"rankcode": {') :]) == about  # it is the end of the file


def test_weights_in_8_bits(tmp_path):
    torch.manual_seed(0)
    network = rc.Network(rc.cells.GRU(40, 64), CLASSES)
    with torch.no_grad():
        network.readout.weight.mul_(30)
    rows = torch.randn(300, 20, 40, generator=torch.Generator().manual_seed(1))
    plain = rc.export_onnx(network, tmp_path / "plain.onnx", rc.Threshold(0.9), check_on=rows)
    small = rc.export_onnx(network, tmp_path / "small.onnx", rc.Threshold(0.9), check_on=rows, int8=True)
    assert small.size < 0.4 * plain.size and small.agreement.rows == 300
    assert small.agreement.changed <= 6 and small.agreement.lost <= 1 and plain.agreement.changed == 0
    with torch.no_grad():  # all that matters is rounded away
        network.cell.weight_ih_l0[:, -1] = 1e5
    rows[:, :, -1] = 0
    with pytest.raises(ArithmeticError, match="was not written: weights in 8 bits lose"):
        rc.export_onnx(network, tmp_path / "lossy.onnx", rc.Threshold(0.9), check_on=rows, int8=True)
    assert not (tmp_path / "lossy.onnx").exists()
    unseen = rc.export_onnx(
        network, tmp_path / "lossy.onnx", rc.Threshold(0.9), int8=True
    )  # there are no right answers
    assert unseen.checked_on == "random numbers" and unseen.path.exists()


class Exported(nn.Module):
    """A cell that is exported wrongly."""

    input_shape = output_shape = (CLASSES,)

    def __init__(self, fault=1.0):
        super().__init__()
        self.scale, self.fault = nn.Parameter(torch.ones(CLASSES)), fault

    def initial_state(self, batch_size):
        return self.scale.new_zeros(batch_size, CLASSES)

    def forward(self, x_t, state):
        state = state + x_t * self.scale * (self.fault if torch.compiler.is_exporting() else 1.0)
        return state, state


def test_a_file_that_decides_differently_is_not_written(tmp_path):
    path = tmp_path / "step.onnx"
    network = rc.Network(Exported(), CLASSES, readout=nn.Identity())
    rc.export_onnx(network, path, rc.Threshold(0.9))
    before = path.read_bytes()
    network.cell.fault = 1.01
    with pytest.raises(ArithmeticError, match=r"step.onnx was not written: .* in \d+ of 64 rows .*; row \d+ is"):
        rc.export_onnx(network, path, rc.Threshold(0.9))
    assert path.read_bytes() == before


class Keeps(Exported):
    def forward(self, x_t, state):
        return x_t * self.scale, state


def test_a_state_that_stays_as_it_is(tmp_path):
    done = rc.export_onnx(rc.Network(Keeps(), CLASSES), tmp_path / "step.onnx", rc.Threshold(0.7))
    client = Client(done.path, rows=2)
    client.step(np.ones((2, CLASSES)))
    assert client.state["cell"].shape == (2, CLASSES) and not client.state["cell"].any()


class ReadsItsValues(Exported):
    def forward(self, x_t, state):
        return (x_t, state) if float(x_t.sum()) > 0 else (state, x_t)


class CountsItsRows(Exported):
    def forward(self, x_t, state):
        return x_t + torch.zeros(len(x_t), CLASSES), state


def test_what_cannot_be_exported(tmp_path):
    network = network_of(rc.cells.GRU(3, 4))
    cases = [
        (network, "model.bin", {}, ValueError, "something.onnx"),
        (network, "", {}, ValueError, "something.onnx"),
        (network, "nowhere/model.onnx", {}, FileNotFoundError, "no folder"),
        (network, "model.onnx", {"opset": 9}, ValueError, "opset must be 18…23, not 9"),
        (network, "other.onnx", {}, ValueError, "was not exported by rankcode"),
        (network, "folder.onnx", {}, ValueError, "is a folder"),
        (network, "model.onnx", {"rule": rc.Threshold(1.5)}, ValueError, "outside"),
        (NETWORKS["own cell"], "model.onnx", {}, ValueError, "Leaky does not say what it reads"),
        (rc.Network(ReadsItsValues(), CLASSES), "model.onnx", {}, ValueError, "PyTorch cannot export the network"),
        (rc.Network(CountsItsRows(), CLASSES), "model.onnx", {}, ValueError, "use x.shape.0. rather than len.x."),
    ]
    (tmp_path / "other.onnx").write_bytes(b"a model of something else")
    (tmp_path / "folder.onnx").mkdir()
    for network, name, options, kind, message in cases:
        with pytest.raises(kind, match=message) as caught:
            rc.export_onnx(network, tmp_path / name, **options)
        assert "\n" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.onnx", "other.onnx"]
