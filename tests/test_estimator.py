"""EarlyClassifier keeps scikit-learn's contract, and answers early."""

import pickle

import numpy as np
import pandas
import polars
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import estimator_checks_generator

import rankcode as rc
from live_networks import pooled, streamed
from rankcode.training import plan


def series(rows=40, steps=50, seed=0, channels=None):
    """Two classes that differ from a third of the length on."""
    random = np.random.default_rng(seed)
    y = np.arange(rows) % 2
    t = np.arange(steps)
    x = np.sin(t / 4 * (1 + y[:, None] * (t > steps // 3)) + random.uniform(0, 6, (rows, 1)))
    x = x + 0.2 * random.standard_normal((rows, steps))
    if channels is not None:
        x = np.stack([x] + [random.standard_normal((rows, steps)) for _ in range(channels - 1)], 2)
    return x, np.where(y == 0, "slow", "fast")


@pytest.fixture(scope="module")
def fitted():
    x, y = series()
    return rc.EarlyClassifier(random_state=0).fit(x, y)


@pytest.fixture(scope="module")
def ensemble():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "MIN_UPDATES", 150)
        patch.setattr(plan, "DEFAULT_EPOCHS", 1)
        return rc.EarlyClassifier(model="ensemble", random_state=0).fit(*series(80))


@pytest.fixture(params=["fitted", "ensemble"])
def either(request):
    return request.getfixturevalue(request.param)


CHECKS = {check.func.__name__: check for _, check in estimator_checks_generator(rc.EarlyClassifier())}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CHECKS)
def test_the_contract_of_scikit_learn(name):
    CHECKS[name](rc.EarlyClassifier())


def test_it_answers_early_and_right(fitted):
    x, y = series(100, seed=1)
    labels, steps = fitted.predict_early(x)
    assert (labels == y).mean() > 0.95 and steps.mean() < 40
    assert fitted.score(x, y) == (labels == y).mean()
    assert (fitted.predict_full(x) == y).mean() > 0.95
    decision = fitted.decide(x)
    assert (fitted.classes_[decision.label.numpy()] == labels).all()
    np.testing.assert_allclose(fitted.predict_proba(x).sum(1), 1)
    assert fitted.model_ == "kernels" and fitted.baseline_["majority"] == 0.5
    low, high = fitted.tuning_.interval
    assert low <= (labels == y).mean() <= high
    curve = fitted.tradeoff(x, y)
    assert curve.accuracy[-1] > 0.95 and curve.mean_steps[0] < curve.mean_steps[-1]


@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_live_rows_get_the_decisions_of_whole_rows(either, kind):
    x = series(30, seed=2)[0].astype(kind)
    expected = either.decide(x)
    assert len(expected.steps.unique()) > 3
    stream, together = either.stream(), pooled(either.pool(capacity=30), x, [range(x.shape[1])] * 30)
    for row, values in enumerate(x):
        alone = streamed(stream, values)
        stream.reset()
        for found in (alone, together[row]):
            assert [part.item() for part in found[:3]] == [part[row].item() for part in expected[:3]]
            np.testing.assert_allclose(found.probabilities[0], expected.probabilities[row], rtol=0, atol=1e-6)
    assert either.classes_[alone.label] == either.predict(x[-1:])
    with pytest.raises(NotFittedError):
        rc.EarlyClassifier().stream()


def test_an_ensemble_by_name(ensemble):
    x, y = series(100, seed=1)
    assert ensemble.model_ == "ensemble" and ensemble.score(x, y) > 0.9 and ensemble.tuning_.rows == 16
    assert (ensemble.predict_full(x) == y).mean() > 0.95
    curve = ensemble.tradeoff(x, y)
    assert curve.accuracy[-1] > 0.95 and curve.mean_steps[0] < curve.mean_steps[-1]
    assert ensemble.plot(x, y).axes


def test_wishes():
    x, y = series(steps=30)
    eager = rc.EarlyClassifier(alpha=3.0, random_state=0).fit(x, y)
    exact = rc.EarlyClassifier(accuracy=0.95, random_state=0).fit(x, y)
    assert eager.tuning_.expected.mean_steps < exact.tuning_.expected.mean_steps
    assert exact.tuning_.expected.accuracy >= 0.95
    assert rc.EarlyClassifier(mean_steps=12, random_state=0).fit(x, y).tuning_.expected.mean_steps <= 12


def test_unequal_lengths_and_channels():
    x, y = series(channels=2)
    rows = [row[: 30 + number % 21] for number, row in enumerate(x)]
    classifier = rc.EarlyClassifier(random_state=0).fit(rows, y)
    labels, steps = classifier.predict_early(rows)
    assert (labels == y).mean() > 0.9 and (steps <= [len(row) for row in rows]).all()
    assert classifier.predict([row[:7] for row in rows]).shape == (40,)
    whole = rc.EarlyClassifier(random_state=0).fit(x, y)
    aeon = rc.EarlyClassifier(channels_first=True, random_state=0).fit(x.transpose(0, 2, 1), y)
    np.testing.assert_array_equal(whole.predict_proba(x), aeon.predict_proba(x.transpose(0, 2, 1)))


def test_saved_and_loaded(either, tmp_path):
    x, _ = series(20, seed=2)
    either.save(tmp_path / "model.safetensors")
    loaded = rc.EarlyClassifier.load(tmp_path / "model.safetensors")
    for one, other in zip(either.predict_early(x), loaded.predict_early(x), strict=True):
        np.testing.assert_array_equal(one, other)
    again = pickle.loads(pickle.dumps(either))
    np.testing.assert_array_equal(again.predict_proba(x), either.predict_proba(x))
    predicted = rc.predict(rc.load(tmp_path / "model.safetensors"), x)
    assert [each.label for each in predicted] == either.predict(x).tolist()


def test_inside_scikit_learn():
    x, y = series(30, 24)
    pipeline = make_pipeline(FunctionTransformer(lambda part: part * 2), rc.EarlyClassifier(random_state=0))
    assert cross_val_score(pipeline, x, y, cv=3).mean() > 0.8
    search = GridSearchCV(rc.EarlyClassifier(random_state=0), {"alpha": [0.1, 1.0]}, cv=2).fit(x, y)
    assert search.best_params_["alpha"] in (0.1, 1.0)
    assert clone(rc.EarlyClassifier(accuracy=0.9)).accuracy == 0.9


def test_weights_of_classes_and_validation_data():
    x, y = series(60, 30)
    few = np.concatenate([np.flatnonzero(y == "slow"), np.flatnonzero(y == "fast")[:4]])
    noisy = x + np.random.default_rng(0).standard_normal(x.shape)
    plain = rc.EarlyClassifier(alpha=0.0, random_state=0).fit(noisy[few], y[few])
    balanced = rc.EarlyClassifier(alpha=0.0, class_weight="balanced", random_state=0).fit(noisy[few], y[few])
    rare = [each.predict_proba(noisy)[:, 0].mean() for each in (plain, balanced)]
    assert rare[1] > rare[0]
    other, labels = series(50, 30, seed=3)
    tuned = rc.EarlyClassifier(accuracy=0.9, random_state=0).fit(x, y, validation=(other, labels))
    assert tuned.tuning_.rows == 50
    with pytest.raises(ValueError, match="'huge' of the validation data"):
        rc.EarlyClassifier().fit(x, y, validation=(other[:1], ["huge"]))


def test_a_recurrent_network_can_be_asked_for(few_updates):
    x, y = series(40)
    classifier = rc.EarlyClassifier(model="recurrent", random_state=0).fit(x[:, :12], y)
    assert classifier.model_ == "recurrent" and classifier.predict(x[:, :12]).shape == (40,)
    assert isinstance(classifier.network_.cell, rc.cells.GRU)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: (x, np.full(40, "one")), "only one class, 'one':"),
        (lambda x, y: (x, np.array(["once"] + ["often"] * 39)), "'once' has a single row"),
        (lambda x, y: (np.where((x > 1) & (np.arange(40) > 2)[:, None], np.nan, x), y), "row 3 of X holds NaN"),
        (lambda x, y: ([*x[:39], x[39][:9] + np.inf], y), "row 39 of X holds NaN"),
        (lambda x, y: (np.full_like(x, 7.0), y), "every channel is constant"),
        (lambda x, y: ([*x[:39], x[39][:0]], y), "row 39 of X"),
        (lambda x, y: ([x[0][:, None], *[np.zeros((9, 2))] * 39], y), "different numbers of channels"),
        (lambda x, y: (x, y[:39]), "inconsistent numbers of samples"),
        (lambda x, y: (np.zeros((4, 3, 2, 2)), y[:4]), "shape"),
    ],
)
def test_bad_input_is_one_clear_error(change, message):
    with pytest.raises(ValueError, match=message):
        rc.EarlyClassifier().fit(*change(*series()))


def test_two_wishes_at_once_are_an_error():
    with pytest.raises(ValueError, match="one quantity, not 2"):
        rc.EarlyClassifier(accuracy=0.9, mean_steps=4).fit(*series())


def test_a_constant_channel_is_no_trouble():
    x, y = series(channels=3)
    x[:, :, 2] = 7.0
    assert rc.EarlyClassifier(random_state=0).fit(x, y).score(x, y) > 0.9


def test_the_picture_of_answers(fitted):
    pytest.importorskip("matplotlib")
    x, y = series(6, seed=2)
    labels, steps = fitted.predict_early(x)

    def titles(figure):
        found = [" ".join(axes.get_title(loc="left").split()) for axes in figure.axes]
        return [title for title in found if title]

    said = [f"answered {labels[row]} after {steps[row]} of 50 steps (true: {y[row]})" for row in range(6)]
    assert titles(fitted.plot(x, y)) == [said[1], said[3], said[0], said[2]]  # two of each class, fast before slow
    assert titles(fitted.plot(x, y, rows=[5])) == [said[5]]
    unequal = [row[: 50 - 3 * number] for number, row in enumerate(x)]
    assert " of 41 steps" in titles(fitted.plot(unequal, rows=[3]))[0]


@pytest.mark.parametrize("frame_of", [pandas.DataFrame, polars.DataFrame], ids=["pandas", "polars"])
def test_frames_in_long_form(frame_of, tmp_path):
    x, y = series(24, 30, channels=2)
    steps = x.shape[1]
    ids = np.repeat(np.arange(len(x))[::-1], steps)  # those of the Series below are in another order
    table = {"id": ids, "time": np.tile(np.arange(steps), len(x)), "a": x[:, :, 0].ravel(), "b": x[:, :, 1].ravel()}
    arrays = rc.EarlyClassifier(random_state=0).fit(x, y)
    named = frame_of(table | {"kind": np.repeat(y, steps)})
    by_name = rc.EarlyClassifier(random_state=0, channels_first=True).fit(named, "kind")
    in_order = rc.EarlyClassifier(random_state=0).fit(frame_of(table), y, validation=(named, "kind"))
    indexed = pandas.Series(y[::-1])
    by_id = rc.EarlyClassifier(random_state=0).fit(frame_of(table), indexed)
    expected = arrays.predict_proba(x)
    shuffled = frame_of(dict(reversed(table.items())))
    by_name.save(tmp_path / "model.safetensors")
    loaded = rc.EarlyClassifier.load(tmp_path / "model.safetensors")
    for classifier in (by_name, by_id, loaded):
        np.testing.assert_array_equal(classifier.predict_proba(shuffled), expected)
    np.testing.assert_array_equal(by_name.predict_proba(named), expected)
    np.testing.assert_array_equal(in_order.predict(shuffled), arrays.predict(x))
    score = arrays.score(x, y)
    assert by_name.score(named, "kind") == by_name.score(shuffled, y) == by_id.score(shuffled, indexed) == score > 0.9
    assert by_name.columns_.values == ("a", "b") and arrays.columns_ is None
    with pytest.raises(ValueError, match="it has no column 'b'"):
        by_name.predict(frame_of({name: table[name] for name in ("id", "time", "a")}))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_network_that_was_moved_to_a_gpu_gives_the_same_answers(fitted):
    x, y = series(100, seed=1)
    expected, curve = fitted.decide(x), fitted.tradeoff(x, y)
    moved = pickle.loads(pickle.dumps(fitted))
    moved.network_.cuda()
    found = moved.decide(x)
    for part, same in zip(found[:3], expected[:3], strict=True):
        assert torch.equal(part, same)
    torch.testing.assert_close(found.probabilities, expected.probabilities)
    assert (moved.predict_full(x) == fitted.predict_full(x)).all()
    assert moved.tradeoff(x, y).accuracy == curve.accuracy
    assert moved.plot(x, y).axes


def test_series_of_any_length_are_read_after_fitting_to_unequal_ones():
    x, y = series()
    rows = [row[: 30 + number % 20] for number, row in enumerate(x)]
    classifier = rc.EarlyClassifier(random_state=0).fit(rows, y)
    expected = classifier.predict([x[0], x[1][:20]]).tolist()
    for same in ([x[0]], x[:1], [x[0].tolist()], x[:1, :, None]):
        assert classifier.predict(same).tolist() == expected[:1]
    for same in ([x[1][:20]], x[1:2, :20]):
        assert classifier.predict(same).tolist() == expected[1:]
    assert classifier.score(list(x[:2]), y[:2]) == classifier.score([x[0], x[1][:, None]], y[:2])
    square = rc.EarlyClassifier(random_state=0).fit(x, y)
    assert square.predict(list(x[:2, :30])).shape == (2,)
    with pytest.raises(ValueError, match="expecting"):
        square.predict(x[:2, :30])  # an array of another shape, as in scikit-learn


def test_arrays_that_look_like_channels_first_are_refused_until_the_layout_is_given():
    x, y = series()
    turned = np.stack([x, x, x], 1)  # [rows, channels, steps]
    for given in (turned, list(turned)):
        with pytest.raises(ValueError, match=r"3 steps of \d+ values .* give channels_first=True"):
            rc.EarlyClassifier().fit(given, y)
        fitted = rc.EarlyClassifier(channels_first=True, random_state=0).fit(given, y)
        assert fitted.channels_ == 3 and fitted.predict(given[:2]).shape == (2,)
    assert rc.EarlyClassifier(channels_first=False).fit(turned, y).channels_ == x.shape[1]
