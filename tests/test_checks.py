"""Bad input is refused where it enters, by one line that names it, through every way in."""

import math
import pickle

import numpy as np
import pytest
import torch
from torch import nn

import rankcode as rc
from rankcode import cells
from rankcode.checks import checked_inputs, is_clean


def network(outputs=3, cell=None):
    return rc.Network(cell or cells.LSTM(4, 5), outputs)


def inputs(rows=3, steps=6, features=4):
    return torch.randn(rows, steps, features, generator=torch.Generator().manual_seed(0))


LABELS = torch.tensor([0, 1, 2])
WITHOUT_LABELS = {
    "decide": lambda network, inputs, lengths=None: rc.decide(network, inputs, lengths),
    "trace": lambda network, inputs, lengths=None: rc.trace(network, inputs, lengths),
}
WITH_LABELS = {
    kind: lambda network, inputs, lengths=None, labels=LABELS, made=made: made(network, inputs, labels, lengths)
    for kind, made in {
        "AtSpike": rc.AtSpike(),
        "UntilSpike": rc.UntilSpike(),
        "AtEnd": rc.AtEnd(),
        "EveryStep": rc.EveryStep(),
    }.items()
} | {
    "evaluate": lambda network, inputs, lengths=None, labels=LABELS: rc.evaluate(network, [(inputs, labels, lengths)]),
    "tradeoff": lambda network, inputs, lengths=None, labels=LABELS: rc.tradeoff(network, [(inputs, labels, lengths)]),
}
every_way = pytest.mark.parametrize("way", [*WITHOUT_LABELS.values(), *WITH_LABELS.values()])
labelled_ways = pytest.mark.parametrize("way", WITH_LABELS.values(), ids=WITH_LABELS.keys())


def refused(call, *words):
    with pytest.raises(ValueError) as error:
        call()
    message = str(error.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message


@every_way
def test_good_input_passes(way):
    way(network(), inputs())
    way(network(), inputs(), torch.tensor([6, 1, 3]))
    way(network(), inputs().numpy(), [6, 1, 3])


@every_way
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity(way, value):
    bad = inputs()
    bad[1, 0, 2] = value
    refused(lambda: way(network(), bad), "inputs", "NaN or infinity", "in row 1 of the ", ", step 1")


@every_way
def test_nan_in_padding_does_no_harm(way):
    bad = inputs()
    bad[2, 3] = math.nan
    refused(lambda: way(network(), bad, torch.tensor([6, 6, 4])), "in row 2 of the ", ", step 4")
    way(network(), bad, torch.tensor([6, 6, 3]))


@pytest.mark.parametrize("engine", ["reference", "stepwise", "whole", "graphs"])
def test_only_what_was_read_is_refused(engine):
    bad = inputs()
    bad[0, 3] = math.nan
    rc.decide(network(), bad, rule=rc.FireAt(3), engine=engine)
    rc.AtSpike(rule=rc.FireAt(3))(network(), bad, LABELS, engine=engine)
    refused(lambda: rc.decide(network(), bad, rule=rc.FireAt(4), engine=engine), "row 0 of the batch, step 4")
    refused(lambda: rc.AtSpike(rule=rc.FireAt(4))(network(), bad, LABELS, engine=engine), "row 0 of the batch, step 4")


@every_way
@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ((), "must have shape [rows, steps, features…], not []"),
        ((3, 4), "must have shape [rows, steps, features…], not [3, 4]"),
        ((3, 6, 2, 2), "has shape [2, 2], the network reads [4]"),
        ((3, 6, 5), "has shape [5], the network reads [4]"),
        ((0, 6, 4), "empty"),
        ((3, 0, 4), "empty"),
        ((3, 6, 0), "empty"),
    ],
    ids=str,
)
def test_wrong_shape(way, shape, said):
    refused(lambda: way(network(), torch.zeros(shape)), "inputs", said)


IMAGE = (1, 4, 3)


@pytest.mark.parametrize(
    ("cell", "good", "bad"),
    [
        (cells.GRU(4, 5), (4,), [(3,), (2, 2), (1, 4)]),
        (cells.LIF(12, 5), (12,), [(11,), (1, 4, 4)]),
        (cells.LIF(12, 5), IMAGE, []),
        (cells.ConvLSTM(1, 2, (4, 3)), IMAGE, [(2, 4, 3), (1, 3, 4), (1, 5, 3), (12,), (1,), (4, 3)]),
        (cells.ConvLIF(1, 2, (4, 3)), IMAGE, [(2, 4, 3), (1, 3, 4), (12,), (1,)]),
        (cells.ConvLIF(1, 2, (4, 4), pool_size=2), (1, 4, 4), [(1, 5, 4), (1, 4, 5), (1, 2, 2)]),  # 5 // 2 = 4 // 2
        (cells.Stack(cells.GRU(4, 5), cells.LSTM(5, 3)), (4,), [(5,), (2, 2)]),
        (cells.Stack(cells.ConvLIF(1, 2, (4, 3)), cells.LIF(24, 5)), IMAGE, [(2, 4, 3), (1, 3, 4), (12,)]),
        (cells.Stack(cells.Stack(cells.GRU(4, 5)), cells.LSTM(5, 3)), (4,), [(5,)]),
        (cells.Stack(cells.LIF(12, 5), cells.LSTM(5, 3)), IMAGE, [(11,), (1, 4, 4)]),
    ],
)
def test_features_of_every_cell(cell, good, bad):
    made = network(cell=cell)
    rc.decide(made, torch.randn(2, 3, *good))
    for shape in bad:
        refused(lambda shape=shape: rc.decide(made, torch.randn(2, 3, *shape)), "inputs", "the network reads")


def test_a_users_cell_reads_what_it_likes():
    class Images(nn.Module):
        input_size, output_shape = 1, (1,)

        def initial_state(self, rows):
            return None

        def forward(self, x_t, state):
            return x_t.flatten(1).sum(1, keepdim=True), None

    rc.decide(network(cell=Images()), torch.randn(2, 3, *IMAGE))
    refused(lambda: rc.decide(network(cell=Images()), torch.randn(2, 3, 2)), "inputs", "the network reads [1]")
    Images.input_size = nn.Linear(4, 4)  # the name may mean anything
    rc.decide(network(cell=Images()), torch.randn(2, 3, 2))


@every_way
@pytest.mark.parametrize(("lengths", "named"), [([6, 0, 1], "0"), ([6, 7, 1], "7"), ([6, -1, 1], "-1")])
def test_lengths_out_of_range(way, lengths, named):
    refused(lambda: way(network(), inputs(), torch.tensor(lengths)), "length", "row 1", named, "1…6")


@every_way
@pytest.mark.parametrize(
    "lengths",
    [
        torch.tensor([6, 1]),
        torch.tensor([6, 1, 1, 1]),
        torch.tensor([[6, 1, 1]]),
        torch.tensor(6),
        torch.tensor([6.0, 1.0, 1.0]),
        torch.tensor([True, True, True]),
    ],
)
def test_lengths_of_another_sort(way, lengths):
    refused(lambda: way(network(), inputs(), lengths), "lengths")


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_lengths_of_any_whole_type(dtype):
    lengths = torch.tensor([100, 1, 120], dtype=dtype)
    _, checked = checked_inputs(network(), inputs(steps=300), lengths)
    assert checked.dtype == torch.int64 and checked.tolist() == [100, 1, 120]


@labelled_ways
@pytest.mark.parametrize(("labels", "outputs"), [([0, 3, 1], 3), ([0, -1, 1], 3), ([0, 2, 1], 1), ([0, 2, 1], 2)])
def test_labels_out_of_range(way, labels, outputs):
    call = lambda: way(network(outputs), inputs(), labels=torch.tensor(labels))  # noqa: E731
    refused(call, "label", "row 1", str(labels[1]), f"0…{max(outputs, 2) - 1}")


@labelled_ways
@pytest.mark.parametrize(
    "labels",
    [
        torch.tensor([0.0, 1.0, 2.0]),
        torch.tensor([0, 1]),
        torch.tensor([[0], [1], [2]]),
        torch.tensor(1),
        torch.eye(3),
    ],
)
def test_labels_of_another_sort(way, labels):
    refused(lambda: way(network(), inputs(), labels=labels), "labels")


@pytest.mark.parametrize(("outputs", "threshold"), [(3, 1.5), (1, 1.5), (1, 0.4)])
def test_a_threshold_out_of_range(outputs, threshold):
    data = inputs(), torch.tensor([0, 1, 1])
    for call in (
        lambda: rc.decide(network(outputs), data[0], rule=rc.Threshold(threshold)),
        lambda: rc.AtSpike(threshold=threshold)(network(outputs), *data),
        lambda: rc.UntilSpike(threshold=threshold)(network(outputs), *data),
        lambda: rc.evaluate(network(outputs), data, rc.Threshold(threshold)),
        lambda: rc.tradeoff(network(outputs), data, [0.9, threshold]),
    ):
        refused(call, "threshold", str(threshold))


@labelled_ways
def test_complex_numbers(way):
    refused(lambda: way(network(), inputs().to(torch.complex64)), "complex", "imaginary part")
    refused(lambda: way(network(), inputs(), labels=LABELS.to(torch.complex64)), "complex")


@every_way
def test_arrays_of_any_layout(way):
    numpy = inputs().numpy()
    way(network(), numpy[::-1], np.array([6, 1, 3])[::-1])
    way(network(), numpy.astype(">f8"), np.array([6, 1, 3], dtype=">i4"))
    way(network(), np.ma.masked_invalid(numpy))
    masked = np.ma.masked_array(numpy, np.arange(numpy.size).reshape(numpy.shape) == 0)  # the first value of all
    refused(lambda: way(network(), masked), "inputs", "NaN", "row 0", "step 1")


def test_inputs_on_another_device():
    refused(lambda: rc.decide(network(), inputs().to("meta")), "inputs are on meta", "cpu")


def test_nothing_is_changed():
    given, lengths, labels = inputs(), torch.tensor([6, 1, 3]), LABELS.clone()
    before = given.clone()
    rc.AtSpike()(network(), given, labels, lengths)
    assert given.equal(before) and lengths.tolist() == [6, 1, 3] and labels.equal(LABELS)


def test_a_bad_row_can_be_sent_to_another_process():
    bad = inputs()
    bad[1] = math.nan
    with pytest.raises(ValueError) as error:
        rc.decide(network(), bad)
    again = pickle.loads(pickle.dumps(error.value))
    assert type(again) is type(error.value) and str(again) == str(error.value)


@pytest.mark.parametrize(
    ("inputs", "labels", "lengths", "clean"),
    [
        (torch.zeros(3, 4, 2), [0, 1, 2], None, True),
        (torch.zeros(3, 4, 2, dtype=torch.uint8), [0, 1, 2], [1, 4, 2], True),
        (torch.full((3, 4, 2), torch.inf), [0, 1, 2], None, False),
        (torch.full((3, 4, 2), 1e300, dtype=torch.float64), [0, 1, 2], None, False),
        (torch.full((3, 4, 2), torch.nan, dtype=torch.float64), [0, 1, 2], None, False),
        (torch.full((3, 4, 2), 1e30, dtype=torch.float64), [0, 1, 2], None, True),
        (torch.zeros(3), [0, 1, 2], [1, 1, 1], False),
        (torch.zeros(3, 4, 2), [0, 1, 3], None, False),
        (torch.zeros(3, 4, 2), [0, -1, 2], None, False),
        (torch.zeros(3, 4, 2), [0, 1, 2], [1, 5, 2], False),
        (torch.zeros(3, 4, 2), [0, 1, 2], [1, 0, 2], False),
    ],
)
def test_a_batch_is_clean_if_no_value_is_wrong(inputs, labels, lengths, clean):
    lengths = None if lengths is None else torch.tensor(lengths)
    assert is_clean((inputs, torch.tensor(labels), lengths), 3, torch.float32) == clean
