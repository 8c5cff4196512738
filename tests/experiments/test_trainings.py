"""The trainings have the paper's settings, and what is measured on them is right."""

import math
from types import SimpleNamespace

import pytest
import torch

from rankcode import cells
from rankcode.experiments.reproduction import Reproduction
from rankcode.experiments.trainings import mnist, speech, spiking, spotting, two_sequence
from rankcode.network import Network
from rankcode.objectives import AtEnd, AtSpike
from rankcode.rules import FireAt, Never, Threshold
from rankcode.tasks import Spotting, TemporalMNIST

PLACE = Reproduction("paper", data="somewhere")


def has(part, **settings):
    assert {name: getattr(part, name) for name in settings} == settings


def test_spotting_and_two_sequence():
    for trainings, examples in ((spotting, 1_500_000), (two_sequence, 2_000_000)):
        settings = trainings.settings(PLACE)
        for setting in settings.values():
            assert setting.network().cell.hidden_size == 125 and setting.network().activation == "sigmoid"
            has(setting.training, examples=examples, finish_with="last")
            if not setting.name.endswith("own"):
                has(setting.training, batch_size=128, learning_rate=0.0003, max_grad_norm=None, schedule="constant")
        has(settings["rank-coded-own"].training, learning_rate=0.002, schedule="cosine", ema_decay=0.999)
        assert settings["conventional"].objective == AtEnd()
    assert spotting.settings(PLACE)["rank-coded"].objective == AtSpike(0.95, beta=0.0)
    assert spotting.settings(PLACE)["rank-coded-own"].objective == AtSpike(0.95, beta=0.05)
    for theta in two_sequence.THRESHOLDS:
        assert two_sequence.settings(PLACE)[f"rank-coded-{theta:g}"].objective == AtSpike(theta)


def test_mnist():
    settings = mnist.settings(PLACE)
    lstm, conv = settings["lstm-rank-coded"], settings["conv-lstm-20-fast"]
    assert lstm.task == TemporalMNIST("somewhere/mnist", flat=True) and conv.task == TemporalMNIST("somewhere/mnist")
    has(lstm.training, learning_rate=0.001, schedule="constant", epochs=50, weight_decay=0.1, select="harmonic_mean")
    has(conv.training, epochs=25, weight_decay=0.3)
    assert (lstm.network().cell.hidden_size, conv.network().cell.hidden_channels) == (340, 20)
    assert settings["conv-lstm-10-fast"].network().cell.hidden_channels == 10
    for setting in (lstm, conv):
        assert (setting.objective.rule.threshold, setting.objective.beta) == (0.95, 0.1)
    assert settings["lstm-fast"].objective.beta == 0.165
    assert sum(part.numel() for part in settings["own"].network().parameters()) < 500_000
    switch = settings["conv-lstm-20-switch"].objective.beta
    assert (switch(0.0), switch(0.24), switch(0.25), switch(0.99)) == (0.4, 0.4, 0.1, 0.1)
    assert all(setting.name == f"mnist-{name}" for name, setting in settings.items())


def test_spiking():
    setting = spiking.settings(PLACE)["rank-coded"]
    has(setting.training, batch_size=400, learning_rate=0.001)
    network, threshold = setting.network(), setting.objective.rule.threshold
    first, second, dense, top = network.cell.cells
    assert (first.hidden_channels, second.hidden_channels, dense.hidden_size, top.hidden_size) == (32, 32, 128, 10)
    for cell in network.cell.cells:
        has(cell, threshold=0.5, decay=0.2, surrogate_width=0.5)
    assert network.activation == "membrane" and threshold == 0.5


def test_speech():
    assert speech.betas(PLACE) == (0.0, 0.2, 0.3, 0.4)
    setting = speech.of(PLACE, speech.Run(speech.RANK_CODED, 0.2), augment=True)
    network = setting.network()
    has(setting.training, batch_size=512, learning_rate=0.001, max_grad_norm=0.25, epochs=300, ema_decay=0.999)
    assert setting.task.augment and setting.name.endswith("augmented")
    assert (network.cell.hidden_size, network.outputs) == (128, 11)
    assert [tuple(part.weight.shape) for part in network.readout[::2]] == [(32, 128), (11, 32)]


def test_the_release_of_speech_commands_is_told_by_its_size():
    def sized(*sizes):
        train, validation, test = (SimpleNamespace(size=size) for size in sizes)
        return SimpleNamespace(train=train, validation=validation, test=test)

    assert speech.release(sized(51_088, 6_798, 6_835)) == " v0.01"
    assert speech.release(sized(84_843, 9_981, 11_005)) == " v0.02"
    assert speech.release(sized(1_000, 20, 3)) == ", 1,000 training, 20 validation and 3 test recordings"


def test_times_without_sound_are_steps():
    assert speech.heard({"mean_steps": 30.0, "milliseconds": None}) == 300.0
    assert speech.heard({"mean_steps": 30.0, "milliseconds": 512.5}) == 512.5


def test_share_of_the_frame():
    report = {"fired": 0.5, "mean_steps": 6.0}  # half silent, read to step 10: the others spike at step 2, counted as 1
    assert mnist.share_of_frame(report, 10) == pytest.approx(0.1)
    assert mnist.share_of_frame({"fired": 0.0, "mean_steps": 10.0}, 10) == 1.0


def first_window(values, length):
    """The step that completes the first run of equal values, 0 where there is none."""
    ends = (end for end in range(length, len(values) + 1) if len(set(values[end - length : end])) == 1)
    return next(ends, 0)


@pytest.mark.parametrize(("steps", "length"), [(25, 5), (10, 3), (6, 6)])
def test_the_earliest_step_is_that_of_brute_force(steps, length):
    inputs, labels, _ = Spotting(steps=steps, run_length=length).draw(300, torch.Generator().manual_seed(4))
    positive, earliest = spotting.earliest_steps(inputs, length)
    assert torch.equal(positive.long(), labels)
    assert earliest.tolist() == [first_window(row, length) for row in inputs[..., 0].tolist()]


def test_a_window_ends_where_a_run_becomes_long_enough_and_once_for_each_run():
    inputs = torch.tensor([0, 0, 0, 0, 1, 1, 1, 0, 1, 0, 0, 0.0])[None, :, None]
    assert spotting.window_ends(inputs, 3)[0].nonzero().flatten().tolist() == [2, 6, 11]


def test_examples_are_of_both_classes_and_in_order():
    inputs = spotting.examples(Spotting(), positive=9, negative=6)
    positive, earliest = spotting.earliest_steps(inputs, 5)
    assert positive.tolist() == [True] * 9 + [False] * 6
    assert earliest[:9].tolist() == sorted(earliest[:9].tolist())


def test_an_ideal_observer_reads_what_the_exact_limit_says():
    task = Spotting(test_rows=20_000)
    assert spotting.ideal_steps(task, 0.95) == pytest.approx(task.limit(0.95).steps, abs=0.2)
    assert spotting.ideal_steps(Spotting(test_rows=50), 1.0) <= 25


def constant(answer, task):
    """A network that always says the same, as if it were trained."""
    network = Network(cells.LSTM(1, 4), outputs=1)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
        network.readout.bias.fill_(answer)
    setting = SimpleNamespace(task=task)
    return SimpleNamespace(setting=setting, model=lambda name: network, device=torch.device("cpu"))


def test_spike_times_are_counted_from_the_earliest_step():
    task = Spotting(test_rows=400)
    inputs, _, _ = next(task.test.scan(400, "cpu"))
    positive, earliest = spotting.earliest_steps(inputs, 5)
    found = spotting.measure_spike_times(constant(9.0, task), FireAt(10))
    assert found["negative share of first spikes"] == 0
    assert sum(found["share of positive sequences"]) == pytest.approx(1)
    for delay in (0, 2, 99):
        expected = (earliest[positive] == 10 - delay).double().mean().item()
        assert spotting.share_at(found, delay) == pytest.approx(expected)
    assert spotting.mean_delay(found) == pytest.approx((10 - earliest[positive]).double().mean().item())


def test_negative_spikes_have_no_delay_and_silence_no_share():
    task = Spotting(test_rows=50)
    found = spotting.measure_spike_times(constant(-9.0, task), Threshold(0.95))
    assert found["negative share of first spikes"] == 1 and found["delay of positive spikes"] == []
    assert math.isnan(spotting.mean_delay(found))
    silent = spotting.measure_spike_times(constant(-9.0, task), Never())
    assert silent["negative share of first spikes"] is None
