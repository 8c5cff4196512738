import copy
import json
import math
import random
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import rankcode as rc
from rankcode.data.sources import Arrays, Batch, Generated
from rankcode.saving.run_folder import RunFolder
from rankcode.training import loop
from rankcode.training.distributed import Processes
from rankcode.training.standard_network import standard_network

QUIET = {"device": "cpu", "progress": False}
TASK = rc.tasks.TwoSequence(steps=6, mean=0.3, validation_rows=100)
KEYS = {"batch", "examples", "seconds", "training_seconds", "learning_rate", "training"}  # of every record


def recorded(report):
    """A report as a record holds it: without its confusion matrix."""
    content = json.loads(json.dumps(report.as_dict()))
    assert content.pop("confusion")
    return content


def make_network(inputs: int = 1, outputs: int = 1, readout: nn.Module | None = None, seed: int = 0) -> rc.Network:
    torch.manual_seed(seed)
    return rc.Network(rc.cells.GRU(inputs, 6), outputs, readout)


def easy(rows: int, seed: int = 0):
    """Sequences whose class is their sign."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(2, (rows,), generator=generator)
    return (2 * labels - 1)[:, None, None] + 0.3 * torch.randn(rows, 5, 1, generator=generator), labels


def by_hand(network, batches, objective, config, total):
    """Adam and AdamW as their papers have them, in double precision; and the average after every batch."""
    weights = list(network.parameters())
    first, second = ([torch.zeros_like(weight) for weight in weights] for _ in range(2))
    average, rates = None, []
    for number, batch in enumerate(batches):
        share = number / total
        rate = config.learning_rate
        if config.schedule == "cosine":
            rate = config.learning_rate * (1 + math.cos(math.pi * share)) / 2
        rates.append(rate)
        gradients = torch.autograd.grad(objective(network, *batch)[0], weights)
        norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
        if config.max_grad_norm is not None and norm > config.max_grad_norm:  # PyTorch adds 1e-6 to the norm
            gradients = [gradient * config.max_grad_norm / (norm + 1e-6) for gradient in gradients]
        with torch.no_grad():
            for i, (weight, gradient) in enumerate(zip(weights, gradients, strict=True)):
                if config.optimizer == "adam":
                    gradient = gradient + config.weight_decay * weight
                else:
                    weight -= rate * config.weight_decay * weight
                first[i] = 0.9 * first[i] + 0.1 * gradient
                second[i] = 0.999 * second[i] + 0.001 * gradient**2
                moved = first[i] / (1 - 0.9 ** (number + 1))
                scale = (second[i] / (1 - 0.999 ** (number + 1))).sqrt() + 1e-8
                weight -= rate * moved / scale
        now = [weight.detach().clone() for weight in weights]
        if config.ema_decay is not None and average is not None:
            now = [config.ema_decay * a + (1 - config.ema_decay) * w for a, w in zip(average, now, strict=True)]
        average = now
    return average, rates


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_grad_norm": 0.05},
        {"weight_decay": 0.5},
        {"weight_decay": 0.5, "optimizer": "adamw"},
        {"schedule": "cosine"},
        {"ema_decay": 0.8},
        {"max_grad_norm": 0.05, "weight_decay": 0.5, "optimizer": "adamw", "schedule": "cosine", "ema_decay": 0.8},
    ],
    ids=str,
)
def test_training_is_what_the_equations_say(settings):
    config = rc.Training(
        epochs=3, batch_size=8, learning_rate=0.02, seed=4, finish_with="last", validate_every=1, **settings, **QUIET
    )
    data = Arrays(*easy(20))  # 3 epochs of 8, 8 and 4 rows
    network = make_network().double()
    expected = copy.deepcopy(network)
    history = rc.fit(network, data, rc.AtSpike(0.6, 0.1), config)
    batches = data.batches(8, 4, "cpu")
    average, rates = by_hand(expected, [next(batches) for _ in range(9)], rc.AtSpike(0.6, 0.1), config, 9)
    for weight, by_equation in zip(network.parameters(), average, strict=True):
        torch.testing.assert_close(weight, by_equation, rtol=1e-9, atol=1e-10)
    assert [record["learning_rate"] for record in history.records] == pytest.approx(rates, rel=1e-12)


def test_averaged_weights_are_validated_and_saved_and_checkpoints_hold_both(tmp_path):
    data = SimpleNamespace(train=easy(20), validation=easy(50, seed=1))
    settings = {"epochs": 2, "batch_size": 8, "learning_rate": 0.05, "seed": 4, **QUIET}
    raw, averaged = make_network(), make_network()
    rc.fit(raw, data, rc.AtSpike(0.6), rc.Training(finish_with="last", **settings))
    folder = RunFolder(tmp_path / "run")
    config = rc.Training(ema_decay=0.9, select="loss", folder=str(folder.path), **settings)
    history = rc.fit(averaged, data, rc.AtSpike(0.6), config)

    average, _ = by_hand(make_network(), _first(data.train, 6), rc.AtSpike(0.6), config, 6)
    last = folder.model("last")
    for weight, expected in zip(last.parameters(), average, strict=True):
        torch.testing.assert_close(weight, expected, rtol=1e-4, atol=1e-5)
    report = rc.evaluate(last, data.validation, rc.Threshold(0.6))
    assert history.records[-1]["validation"] == recorded(report)

    best = rc.evaluate(folder.model("best"), data.validation, rc.Threshold(0.6))
    losses = [record["validation"]["loss"] for record in history.records]
    assert best.loss == min(losses) == history.best["validation"]["loss"]
    assert rc.evaluate(averaged, data.validation, rc.Threshold(0.6)) == best

    checkpoint = folder.checkpoint()
    for name, weight in raw.state_dict().items():
        assert torch.equal(checkpoint["network"][name], weight)
        assert torch.equal(checkpoint["average"][f"{name}"], last.state_dict()[name])
        assert not torch.equal(weight, last.state_dict()[name])


def _first(data, count):
    batches = Arrays(*data).batches(8, 4, "cpu")
    return [next(batches) for _ in range(count)]


@pytest.mark.parametrize("finish_with", ["best", "last"])
def test_which_weights_the_network_ends_with(finish_with, tmp_path):
    inputs, labels = easy(40, seed=1)
    data = SimpleNamespace(train=easy(40), validation=(inputs, 1 - labels))  # the more it learns, the worse it does
    settings = {"epochs": 6, "batch_size": 8, "learning_rate": 0.3, "select": "loss"}
    config = rc.Training(finish_with=finish_with, folder=str(tmp_path / "run"), **settings, **QUIET)
    network = make_network()
    history = rc.fit(network, data, rc.AtEnd(-0.5), config)
    assert history.best is not history.records[-1]  # so that it matters
    record = history.best if finish_with == "best" else history.records[-1]
    report = recorded(rc.evaluate(network, data.validation, rc.Never()))
    assert report == record["validation"]
    saved = RunFolder(tmp_path / "run").model(finish_with)
    assert all(torch.equal(a, b) for a, b in zip(saved.parameters(), network.parameters(), strict=True))


def test_beta_changes_at_its_batch():
    values = []

    def beta(progress):
        values.append(rc.Switch((0, 0.4), (0.3, 0.2), (0.7, 0.1))(progress))
        return values[-1]

    rc.fit(make_network(), TASK, rc.AtSpike(0.6, beta), rc.Training(examples=80, batch_size=8, **QUIET))
    assert values == [0.4] * 3 + [0.2] * 4 + [0.1] * 3


def test_mixed_precision_multiplies_in_it_and_keeps_weights_and_states():
    seen = set()

    class Watched(rc.cells.GRU):
        def projections(self, layer, x, hidden):
            products = super().projections(layer, x, hidden)
            if torch.is_grad_enabled():
                seen.add((hidden.dtype, *(product.dtype for product in products)))
            return products

    torch.manual_seed(0)
    network = rc.Network(Watched(1, 6), 1)
    data = SimpleNamespace(train=easy(200), validation=easy(100, seed=1))
    config = rc.Training(epochs=10, batch_size=16, learning_rate=0.02, precision="bfloat16", **QUIET)
    history = rc.fit(network, data, rc.AtSpike(0.8), config)
    assert seen == {(torch.float32, torch.bfloat16, torch.bfloat16)}
    assert {weight.dtype for weight in network.parameters()} == {torch.float32}
    assert history.records[-1]["validation"]["accuracy"] > 0.95


def test_float16_is_refused_on_a_cpu():
    """PyTorch multiplies float16 matrices on a CPU so slowly that training looks stuck."""
    with pytest.raises(
        ValueError, match=r"^precision float16 is for GPUs and very slow on a CPU: use float32 or bfloat16$"
    ):
        rc.fit(make_network(), TASK, rc.AtSpike(0.6), rc.Training(precision="float16", **QUIET))


def test_validation_data_can_be_given_apart_from_the_task(tmp_path):
    train, other = easy(40), easy(30, seed=2)
    config = rc.Training(epochs=2, batch_size=8, folder=str(tmp_path / "run"), **QUIET)
    for kind in (other, DataLoader(TensorDataset(*other), 7), SimpleNamespace(train=train, validation=other)):
        network, task = make_network(), SimpleNamespace(train=train, validation=easy(20, seed=3))
        history = rc.fit(network, task, rc.AtSpike(0.6), replace(config, folder=None), validation=kind)
        assert [record["validation"]["rows"] for record in history.records] == [30, 30]
    history = rc.fit(make_network(), train, rc.AtSpike(0.6), config, validation=other)
    assert history.best["validation"]["rows"] == 30
    resumed = replace(config, resume=True)
    rc.fit(make_network(), train, rc.AtSpike(0.6), resumed, validation=other)
    for wrong in (None, easy(30, seed=4)):
        with pytest.raises(ValueError, match=r"holds a run with other settings: task\.validation"):
            rc.fit(make_network(), train, rc.AtSpike(0.6), resumed, validation=wrong)


def test_a_run_that_is_stopped_after_a_validation_can_be_resumed(tmp_path):
    train, other, seen = easy(40), easy(30, seed=2), []
    config = rc.Training(epochs=4, batch_size=8, folder=str(tmp_path / "run"), **QUIET)

    def stop(model, record):
        seen.append((type(model), record["batch"]))
        return record["batch"] >= 10

    whole, cut = make_network(), make_network()
    rc.fit(whole, train, rc.AtSpike(0.6), replace(config, folder=None), validation=other)
    history = rc.fit(cut, train, rc.AtSpike(0.6), config, validation=other, stop=stop)
    assert seen == [(rc.Network, 5), (rc.Network, 10)] and len(history.records) == 2
    history = rc.fit(make_network(), train, rc.AtSpike(0.6), replace(config, resume=True), validation=other)
    assert [record["batch"] for record in history.records] == [5, 10, 15, 20]
    again = rc.load(tmp_path / "run")
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), whole.parameters(), strict=True))


def test_a_bad_row_is_named_by_its_place_in_the_data():
    inputs, labels = easy(40)
    inputs[23] = torch.nan
    config = rc.Training(epochs=2, batch_size=8, **QUIET)
    with pytest.raises(ValueError, match=r"^inputs hold NaN or infinity in row 23 of the training data, step 1$"):
        rc.fit(make_network(), (inputs, labels), rc.AtSpike(0.8), config)
    validated = SimpleNamespace(train=easy(40), validation=(inputs, labels))
    with pytest.raises(ValueError, match=r"^inputs hold NaN or infinity in row 23 of the data evaluated, step 1$"):
        rc.fit(make_network(), validated, rc.AtSpike(0.8), config)
    loader = DataLoader(TensorDataset(inputs[16:], labels[16:]), batch_size=8)
    with pytest.raises(ValueError, match=r"^inputs hold NaN or infinity in row 7 of training batch 0, step 1$"):
        rc.fit(make_network(), loader, rc.AtSpike(0.8), config)


def test_a_loss_that_is_no_number_ends_the_run():
    config = rc.Training(examples=80, batch_size=8, learning_rate=3e37, validate_every=3, **QUIET)
    with pytest.raises(FloatingPointError, match=r"^the loss is no longer a number at batch \d+: lower learning_rate"):
        rc.fit(make_network(), TASK, rc.AtEnd(), config)


@pytest.mark.parametrize("objective", [rc.AtSpike(0.6), rc.AtEnd(), rc.EveryStep(), rc.UntilSpike(0.6)], ids=str)
def test_what_a_record_holds(objective):
    network = make_network(seed=3)
    settings = {"examples": 50, "batch_size": 8, "validate_every": 3, "learning_rate": 0.1, "schedule": "constant"}
    config = rc.Training(finish_with="last", first_spike_threshold=0.55, **settings, **QUIET)
    records = rc.fit(network, TASK, objective, config).records
    assert [(record["batch"], record["examples"]) for record in records] == [(3, 24), (6, 48), (7, 56)]
    assert [record["learning_rate"] for record in records] == [0.1] * 3
    seconds = [record["seconds"] for record in records]
    assert 0 < seconds[0] <= seconds[1] <= seconds[2]
    for record in records:
        assert record.keys() == {*KEYS, "validation", "first_spike"}
        assert set(record["training"]) == {"loss", "accuracy", "mean_steps"}
        for part in ("validation", "first_spike"):
            histogram = record[part]["steps_histogram"]
            assert sum(histogram) == record[part]["rows"] == 100
            mean = sum(steps * rows for steps, rows in enumerate(histogram, 1)) / 100
            assert mean == pytest.approx(record[part]["mean_steps"])
    last = records[-1]
    conventional = isinstance(objective, rc.AtEnd | rc.EveryStep)
    assert last["validation"] == recorded(rc.evaluate(network, TASK.validation, objective.rule))
    spike = rc.evaluate(network, TASK.validation, rc.Threshold(0.55 if conventional else 0.6))
    assert last["first_spike"] == recorded(spike)
    assert (last["first_spike"] != last["validation"]) == conventional
    assert (last["validation"]["mean_steps"] == 6) == conventional


def test_training_means_are_those_of_the_batches_since_the_last_record():
    """Before it learns anything: a rate so small that no weight moves."""
    network, data = make_network(), Arrays(*easy(21))
    history = rc.fit(network, data, rc.AtSpike(0.55), rc.Training(epochs=2, batch_size=8, learning_rate=1e-12, **QUIET))
    expected = rc.evaluate(network, data, rc.Threshold(0.55))
    for number, record in enumerate(history.records, 1):
        assert record["examples"] == 21 * number  # the partial batch counts for what it is
        for name in ("loss", "accuracy", "mean_steps"):
            assert record["training"][name] == pytest.approx(getattr(expected, name), rel=1e-5)


def test_without_validation_data_the_last_weights_are_kept(tmp_path):
    network, folder = make_network(), RunFolder(tmp_path / "run")
    config = rc.Training(epochs=4, batch_size=8, folder=str(folder.path), **QUIET)
    history = rc.fit(network, easy(30), rc.AtSpike(0.6), config)
    assert history.best is None
    assert all(record.keys() == KEYS for record in history.records)
    for name in ("best", "last"):
        for saved, weight in zip(folder.model(name).parameters(), network.parameters(), strict=True):
            assert torch.equal(saved, weight)
    assert not torch.equal(network.readout.bias, make_network().readout.bias)


def test_the_callers_random_state_and_mode_are_left_alone_and_do_not_matter():
    results = []
    start = make_network(readout=nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 1))).eval()
    for seed in (1, 2):
        network = copy.deepcopy(start)
        torch.manual_seed(seed)
        before = torch.get_rng_state(), random.getstate(), str(np.random.get_state())
        loader = DataLoader(TensorDataset(*easy(160)), 16, shuffle=True)
        rc.fit(network, loader, rc.AtSpike(0.8), rc.Training(epochs=1, **QUIET))
        after = torch.get_rng_state(), random.getstate(), str(np.random.get_state())
        assert torch.equal(before[0], after[0]) and before[1:] == after[1:]
        assert not network.training
        results.append(network.state_dict())
    for name, weight in results[0].items():
        assert torch.equal(weight, results[1][name])


def test_another_seed_is_another_run():
    weights = []
    for seed in (0, 1):
        network = make_network()
        rc.fit(network, TASK, rc.AtEnd(), rc.Training(examples=16, seed=seed, **QUIET))
        weights.append(network.readout.weight.detach())
    assert not torch.equal(*weights)


def test_a_threshold_that_does_not_suit_the_network_is_named_before_training():
    with pytest.raises(ValueError, match=r"^threshold 0.3 is outside \[0.5, 1\]"):
        rc.fit(make_network(), TASK, rc.AtEnd(), rc.Training(first_spike_threshold=0.3, **QUIET))


def test_a_rank_coded_network_learns_to_answer_early_and_right():
    task = rc.tasks.TwoSequence(validation_rows=1_000)
    torch.manual_seed(0)
    network = rc.Network(rc.cells.LSTM(1, 32), 1)
    config = rc.Training(
        examples=16_000, batch_size=64, learning_rate=0.005, validate_every=50, finish_with="last", **QUIET
    )
    records = rc.fit(network, task, rc.AtSpike(0.9), config).records
    steps = [record["validation"]["mean_steps"] for record in records]
    assert steps[0] > 25
    assert steps[-1] < 18
    assert records[-1]["validation"]["accuracy"] > 0.87
    assert records[-1]["validation"]["fired"] > 0.9


def test_gradients_that_are_left_from_before_do_not_count():
    data = easy(40)
    results = []
    for before in (False, True):
        network = make_network()
        if before:
            rc.AtSpike(0.6)(network, *next(Arrays(*data).batches(8, 0, "cpu"))[:2])[0].backward()
        rc.fit(network, data, rc.AtSpike(0.6), rc.Training(epochs=1, batch_size=8, **QUIET))
        results.append(network.state_dict())
    for name, weight in results[0].items():
        assert torch.equal(weight, results[1][name])


@pytest.mark.parametrize("labels", [lambda x: x > 0, lambda x: (x > 0).int(), lambda x: (x > 0).numpy()])
def test_labels_of_any_whole_type_are_taken_also_when_they_are_not_checked(labels, monkeypatch):
    from rankcode.training import plan

    monkeypatch.setattr(plan, "CHECKED_BATCHES", 2)

    def generate(rows, generator):
        inputs = torch.randn(rows, 4, 1, generator=generator)
        return Batch(inputs, labels(inputs.mean((1, 2))))

    rc.fit(make_network(), Generated(generate), rc.AtSpike(0.6), rc.Training(examples=64, batch_size=8, **QUIET))


def test_rows_that_bring_a_front_end_leave_it_with_the_network():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(60) % 2
    config = rc.Training(epochs=30, batch_size=16, learning_rate=0.03, **QUIET)
    network = make_network(outputs=2)
    for mean in (0, 50):
        values = mean + labels[:, None] + 0.1 * torch.randn(60, 6, generator=generator)
        task = rc.tasks.OwnData.of(values.numpy(), labels.numpy())
        splits = SimpleNamespace(train=task.train, validation=task.validation)
        history = rc.fit(network, splits, rc.AtSpike(0.7), config)
        assert network.front_end == task.front_end
        assert history.best["validation"]["accuracy"] == 1
        assert [each.label for each in rc.predict(network, values.numpy())] == [str(label) for label in labels.tolist()]


def test_a_bad_row_in_the_share_of_a_process_is_named_by_its_place_in_the_data():
    source, config, group = Arrays(*easy(40)), rc.Training(batch_size=10, **QUIET), Processes(rank=1, count=3)
    index = source.index(2, 10, config.seed)
    share, _ = group.share(Batch(index[:, None, None], index))
    name = loop._names(source, config, 2, group)
    assert [name(row) for row in range(3)] == [f"row {row} of the training data" for row in share.labels.tolist()]
    fewer = loop._names(source, rc.Training(batch_size=13, **QUIET), 3, group)  # one row is left for three processes
    assert fewer(0) == f"row {int(source.index(3, 13, config.seed)[0])} of the training data"


@pytest.mark.parametrize(
    ("cell", "hidden_size", "threshold", "epochs", "learning_rate"),
    [("conv-lstm", 6, 0.95, 6, 0.02), ("lif", 128, 1.0, 10, 0.01)],
)
def test_digits_are_learned(cell, hidden_size, threshold, epochs, learning_rate):
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    torch.manual_seed(1)
    task, objective = rc.tasks.TemporalDigits(flat=cell == "lif"), rc.AtSpike(threshold, beta=0.2)
    network = standard_network(task, cell, hidden_size)
    settings = {"epochs": epochs, "learning_rate": learning_rate, "batch_size": 64, "validate_every": 200}
    rc.fit(network, task, objective, rc.Training(**settings, **QUIET))
    assert rc.evaluate(network, task, objective.rule).accuracy > 0.9
