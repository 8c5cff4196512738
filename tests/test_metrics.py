import math

import pytest
import torch

import rankcode as rc
from rankcode import cells
from rankcode.metrics import area, cost, harmonic_mean
from test_rules import network_of


def test_harmonic_mean_and_cost_by_hand():
    assert harmonic_mean(0.9, 0.4) == pytest.approx(2 * 0.9 * 0.6 / 1.5)
    assert harmonic_mean(1, 0) == 1
    assert harmonic_mean(0.8, 1) == 0 and harmonic_mean(0, 0.3) == 0 and harmonic_mean(0, 1) == 0
    assert cost(0.9, 0.4, 0.5) == pytest.approx(0.1 + 0.2)
    assert cost(1, 0, 10) == 0


def test_area_by_hand():
    # Budgets below 0.2: the majority, 0.5. From 0.2: 0.7. From 0.5: still 0.7, the point there is worse.
    # From 0.6: 0.9 up to 1.
    points = {0.6: 0.9, 0.2: 0.7, 0.5: 0.6}
    expected = 0.2 * 0.5 + 0.4 * 0.7 + 0.4 * 0.9
    assert area(list(points), list(points.values()), 0.5) == pytest.approx(expected)
    assert area([], [], 0.3) == pytest.approx(0.3)
    assert area([1.0], [0.9], 0.3) == pytest.approx(0.3)
    assert area([0.25], [0.2], 0.6) == pytest.approx(0.25 * 0.6 + 0.75 * 0.2)  # a point worse than the majority
    assert area([0.5, 0.5], [0.6, 0.8], 0.5) == pytest.approx(0.65)


def example():
    """Four rows at θ = 0.8: fires at 2 of 4, right; fires at 1 of 4, wrong; fires at 3 of 3, right; never, wrong."""
    low, zero, one = [0.6, 0.4], [0.9, 0.1], [0.2, 0.8]
    rows = [[low, zero, one, one], [zero, one, one, one], [low, low, one, zero], [low, low, zero, one]]
    inputs = torch.tensor(rows, dtype=torch.float64).log()
    inputs[2, 2] += 1e-9 * torch.tensor([-1, 1])  # clear of rounding at θ itself
    labels, lengths = torch.tensor([0, 1, 1, 1]), torch.tensor([4, 4, 3, 2])
    return network_of(2).double(), (inputs, labels, lengths)


@pytest.mark.parametrize("rows", [1, 3, 1024])
def test_a_report_by_hand(rows):
    network, data = example()
    report = rc.evaluate(network, data, rc.Threshold(0.8), alpha=0.25, batch_size=rows)
    assert report.rows == 4
    assert report.accuracy == pytest.approx(0.5)
    assert report.mean_steps == pytest.approx((2 + 1 + 3 + 2) / 4)
    earliness = (2 / 4 + 1 / 4 + 1 + 1) / 4
    assert report.earliness == pytest.approx(earliness)
    assert report.harmonic_mean == pytest.approx(2 * 0.5 * (1 - earliness) / (0.5 + 1 - earliness))
    assert (report.alpha, report.cost) == pytest.approx((0.25, 0.5 + 0.25 * earliness))
    assert report.fired == pytest.approx(0.75)
    assert report.loss == pytest.approx(-sum(map(math.log, (0.9, 0.1, 0.8, 0.4))) / 4)
    assert report.steps_histogram == (1, 2, 1)
    assert report.confusion == ((1, 0), (2, 1))
    zero, one = report.classes
    assert (zero.label, zero.rows, zero.accuracy, zero.mean_steps, zero.fired) == (0, 1, 1, 2, 1)
    assert (one.label, one.rows) == (1, 3)
    assert (one.accuracy, one.mean_steps, one.fired) == pytest.approx((1 / 3, 2, 2 / 3))
    assert report.as_dict()["classes"][1]["rows"] == 3
    assert "accuracy 50.00 %" in str(report)


def test_a_curve_by_hand():
    network, data = example()
    curve = rc.tradeoff(network, data, [0.8, 0.5])
    assert curve.thresholds == (0.5, 0.8)
    assert curve.accuracy == pytest.approx((1 / 4, 1 / 2))  # at 0.5 every row answers class 0 at once
    assert curve.mean_steps == pytest.approx((1, 2))
    assert curve.fired == pytest.approx((1, 0.75))
    early, late = (1 / 4 + 1 / 4 + 1 / 3 + 1 / 2) / 4, (2 / 4 + 1 / 4 + 1 + 1) / 4
    assert curve.earliness == pytest.approx((early, late))
    assert curve.majority == 0.75
    assert curve.area == pytest.approx(early * 0.75 + (late - early) * 0.25 + (1 - late) * 0.5)
    assert curve.as_dict()["area"] == curve.area


NETWORKS = {
    "softmax": (lambda: rc.Network(cells.GRU(3, 5), 4), [0.3, 0.45, 0.6, 0.75, 0.9, 0.97, 1.0]),
    "sigmoid": (lambda: rc.Network(cells.LSTM(3, 5), 1), [0.5, 0.6, 0.75, 0.9, 0.97, 1.0]),
    "membranes": (lambda: rc.Network(cells.LIF(3, 4, emits="membranes"), 4), [0.2, 0.7, 1.3, 2.0, 3.0]),
}


def firing_network(kind):
    """A network whose rows fire at different steps, and thresholds."""
    torch.manual_seed(7)
    make, thresholds = NETWORKS[kind]
    network = make()
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if "bias" not in name:
                parameter.normal_(std=2.0 if "readout" in name else 0.8)
    return network, thresholds


def assert_same_point(curve, k, report):
    for name in ("accuracy", "mean_steps", "earliness", "fired"):
        assert getattr(curve, name)[k] == pytest.approx(getattr(report, name), abs=1e-12), name


@pytest.mark.filterwarnings("ignore:threshold 0.*every row fires at its first step")
@pytest.mark.parametrize("rows", [7, 1024])
@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("mixed", [True, False])
def test_one_pass_gives_what_each_threshold_gives(kind, mixed, rows):
    network, thresholds = firing_network(kind)
    lengths = torch.randint(1, 10, (50,)) if mixed else None
    data = (torch.randn(50, 9, 3), torch.randint(network.num_classes, (50,)), lengths)
    data = data if mixed else data[:2]
    curve = rc.tradeoff(network, data, thresholds, batch_size=rows)
    assert len(set(curve.mean_steps)) >= 4 and len(set(curve.accuracy)) >= 2
    for k, threshold in enumerate(thresholds):
        report = rc.evaluate(network, data, rc.Threshold(threshold), batch_size=rows)
        assert_same_point(curve, k, report)
        assert sum(report.steps_histogram) == report.rows == 50
        assert sum(each.rows for each in report.classes) == 50
    assert curve.majority == pytest.approx(data[1].bincount().max().item() / 50)
    assert curve.area == pytest.approx(area(curve.earliness, curve.accuracy, curve.majority))


def test_one_pass_reads_no_further_than_the_largest_threshold():
    network, (inputs, labels, lengths) = example()
    steps = rc.decide(network, inputs, lengths, rc.Threshold(0.8)).steps
    changed = torch.where((torch.arange(4) < steps[:, None])[..., None], inputs, torch.nan)
    expected = rc.tradeoff(network, (inputs, labels, lengths), [0.5, 0.7, 0.8])
    assert rc.tradeoff(network, (changed, labels, lengths), [0.5, 0.7, 0.8]) == expected


@pytest.mark.parametrize("kind", NETWORKS)
def test_the_curve_of_a_network_whose_rule_lets_some_classes_fire(kind):
    network, thresholds = firing_network(kind)
    data = (torch.randn(50, 9, 3), torch.randint(network.num_classes, (50,)))
    free = rc.tradeoff(network, data, thresholds)
    network.rule = rc.StepThresholds([0.9, 0.8], classes=(1,))
    curve = rc.tradeoff(network, data, thresholds)
    assert curve.fired != free.fired
    for k, threshold in enumerate(thresholds):
        assert_same_point(curve, k, rc.evaluate(network, data, rc.Threshold(threshold, classes=(1,))))
    assert rc.tradeoff(network, data, thresholds, classes=range(network.num_classes)) == free
    network.rule = None
    assert rc.tradeoff(network, data, thresholds, classes=[1]) == curve
    with pytest.raises(ValueError, match="class 9"):
        rc.tradeoff(network, data, thresholds, classes=[9])


@pytest.mark.parametrize("threshold", [0.0, -1.0, 1.2, math.nan])
def test_a_curve_refuses_bad_thresholds(threshold):
    network, data = example()
    with pytest.raises(ValueError, match="threshold"):
        rc.tradeoff(network, data, [0.5, threshold])


def test_what_is_refused():
    network, data = example()
    with pytest.raises(ValueError, match="at least one threshold"):
        rc.tradeoff(network, data, [])
    for call in (rc.evaluate, rc.tradeoff):
        with pytest.raises(ValueError, match="no data"):
            call(network, [])
        with pytest.raises(ValueError, match="label of row 1"):
            call(network, (data[0], torch.tensor([0, 2, 0, 0])))
        bad = data[0].clone()
        bad[2:] = torch.nan
        with pytest.raises(ValueError, match=r"NaN .* in row 2 of the data evaluated, step 1"):
            call(network, (bad, data[1]), batch_size=2)
        with pytest.raises(ValueError, match="no test split"):
            call(network, type("Task", (), {"train": data, "name": "mine"})())
