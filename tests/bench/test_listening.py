"""Always-on listening: tracks, policies, and what counts as found."""

from itertools import pairwise

import numpy as np
import pytest
import torch

import rankcode as rc
from rankcode.bench import listening
from rankcode.bench.listening import DEFAULTS, Outputs, Policy, best, detections, lasting, measure_listening, outputs_of
from rankcode.bench.listening_tracks import LOUDNESS, NOISE_LEVELS, RATE, Track, Word, make_tracks
from spoken_words import TONES, spoken_words


@pytest.fixture(scope="module")
def tracks(tmp_path_factory):
    return make_tracks(spoken_words(tmp_path_factory.mktemp("words"), count=30), "test")


@pytest.fixture(scope="module")
def network():
    """It tells the tones by the bands that are loud, and knows them at once."""
    torch.manual_seed(0)
    network = rc.Network(rc.cells.GRU(8, 16), 4)
    network.front_end = rc.Audio((-5.0,) * 8, (3.0,) * 8, rc.LogMel(n_mels=8), context=0)
    network.label_names = ("yes", "no", "unknown", "silence")
    rows, labels = [], []
    for label, hertz in enumerate(TONES.values()):
        for number in range(60):
            tone = 0.1 * np.sin(2 * np.pi * (hertz + number) * np.arange(8000) / RATE)
            rows.append(network.front_end.read(tone + 0.003 * np.random.default_rng(number).normal(size=8000)).values)
            labels.append(label)
    for number in range(60):
        noise = 10.0 ** -(number % 5) * np.random.default_rng(number).normal(size=8000)
        rows.append(network.front_end.read(noise.clip(-1, 1)).values)
        labels.append(3)
    inputs, _ = network.front_end(torch.stack(rows))
    training = rc.Training(epochs=20, learning_rate=0.01, batch_size=32, progress=False)
    rc.fit(network, (inputs, torch.tensor(labels)), rc.EveryStep(), training)
    return network


def test_the_tracks(tracks, tmp_path):
    keywords, others, noise = (tracks[name] for name in ("keywords", "other words", "noise"))
    assert {word.word for word in keywords.words} == set(TONES) and {word.word for word in others.words} == {"bird"}
    assert sum(word.word != "bird" for word in keywords.words) == 60 and not noise.words
    for track in (keywords, others):
        assert {round(word.end - word.begin, 9) for word in track.words} == {0.5}
        gaps = [after.begin - before.end for before, after in pairwise(track.words)]
        assert min(gaps) >= 0 and 0.1 < max(gaps) <= 1.0 + 1e-3
    first = keywords.words[0]
    sound = keywords.samples[round(RATE * first.begin) : round(RATE * first.end)][1600:]
    assert 10 * np.log10(np.square(sound).mean()) == pytest.approx(LOUDNESS, abs=0.1)  # no noise in the first minute
    minute = keywords.samples[60 * RATE :]
    words = [word for word in keywords.words if word.level == 1 and word.end < 119]
    pause = next((a.end, b.begin) for a, b in pairwise(words) if b.begin - a.end > 0.3)
    silent = minute[round(RATE * (pause[0] - 60)) : round(RATE * (pause[1] - 60))]
    assert 10 * np.log10(np.square(silent).mean()) == pytest.approx(LOUDNESS - NOISE_LEVELS[1], abs=1.0)
    again = make_tracks(spoken_words(tmp_path, count=30), "test")
    assert all(np.array_equal(again[name].samples, track.samples) for name, track in tracks.items())


def test_a_listener_fires_where_the_measurement_says(network, tracks):
    """Every step of a track by the real listener, and by the batches of the measurement."""
    for name, track in tracks.items():
        part = Track(track.samples[: 20 * RATE])
        listener = rc.Listener(network, threshold=0.8)
        expected = [(each.steps, each.label) for each in listener.push(part.samples)]
        score = listening.policies(2)[0].score(outputs_of(network, part))[:, :2]
        found = detections(lasting(score, DEFAULTS["patience"]), 0.8, DEFAULTS["refractory"])
        heard = [(step, network.label_names[label]) for step, label in found]
        assert [each for each in heard if each[0] <= listener.steps] == expected
        assert len(expected) > 5 or name != "keywords"


def test_recall_and_false_alarms(network, tracks):
    points = [point for point in best(measure_listening(network, tracks)) if point.policy == "listener"]
    chosen = max(points, key=lambda point: point.recall)
    assert chosen.recall > 0.8 and chosen.noise_alarms <= 1 and chosen.word_alarms <= 10 and 0.1 < chosen.delay < 0.8


def test_what_is_found_and_what_is_a_false_alarm():
    """Keywords at 1 and 3 seconds, another word at 5: found, missed and a false alarm, by hand."""
    words = (Word("yes", 1.0, 1.5, 0), Word("no", 3.0, 3.5, 0), Word("bird", 5.0, 5.5, 0))
    silence = np.zeros(3600 * RATE // 60, np.float32)
    tracks = {"keywords": Track(silence, words), "other words": Track(silence), "noise": Track(silence)}
    found = {
        "keywords": [(1.4, "yes"), (1.9, "yes"), (4.1, "no"), (5.3, "yes")],
        "other words": [(9.0, "no")],
        "noise": [],
    }
    point = listening._point(Policy("by hand", lambda _: silence, 1), 0.5, tracks, found, ["yes", "no"])
    assert point.recall == 0.5 and point.recall_by_level[0] == 0.5 and point.delay == pytest.approx(0.4)
    assert point.wrong_words == pytest.approx(3 * 60) and point.word_alarms == pytest.approx(60)
    assert point.noise_alarms == 0 and not point.reaches_goal


def test_patience_and_refractory_time():
    score = np.zeros((40, 2))
    score[5:9, 0], score[12:30, 1], score[35:39, 1] = 0.9, 0.95, 0.8
    assert detections(lasting(score, 1), 0.85, 1) == [(6, 0), (13, 1)]
    assert detections(lasting(score, 5), 0.7, 1) == [(17, 1)]
    assert detections(lasting(score, 1), 0.7, 10) == [(6, 0), (16, 1), (36, 1)]  # the second is still there at step 16
    score[9:12, 1], score[30:35, 1] = 0.9, 0.9
    assert detections(lasting(score, 1), 0.7, 1) == [(6, 0), (10, 1)]  # one class after the other, without a gap


def test_a_copy_that_starts_anew_in_silence():
    steps = 4 * listening.STAGGER
    staggered = np.zeros((listening.COPIES, steps, 3), np.float32)
    staggered[..., 0] = np.arange(listening.COPIES)[:, None]  # tells the age
    staggered[1, : steps // 2, -1] = 1.0
    score = listening._from_silence(Outputs(staggered, np.zeros((steps, 3), np.float32)))
    assert score[:: listening.STAGGER, 0].tolist() == [0, 1, 0, 1]
