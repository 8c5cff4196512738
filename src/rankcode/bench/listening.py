"""Always-on listening: how many keywords are found, and how many false alarms are there in an hour?

Measured on the tracks of `listening_tracks`, over thresholds, for the policy of `rankcode.Listener` and for others that
were tried. The probabilities of every copy of the network are computed once for each track, many copies in a batch;
every policy and threshold is applied to them afterwards. A keyword is found if it is detected between the beginning of
its recording and half a second after the end.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rankcode.bench.listening_tracks import NOISE_LEVELS, Track
from rankcode.engines.run import read_steps
from rankcode.inference import inference
from rankcode.network import Network
from rankcode.streaming import Listener
from rankcode.streaming.listener import NOT_KEYWORDS, evidence

THRESHOLDS = (*(each / 100 for each in range(30, 90, 5)), *(each / 200 for each in range(180, 199)), 0.995, 0.998)
AFTER_SECONDS = 0.5  # after the end of a recording, in which its word may still be detected
LONG = 3000  # steps: a minute of sound
BATCH = 256  # copies of the network that run together
MAX_NOISE_ALARMS, MAX_WORD_ALARMS = 1, 10  # an hour, the goal

DEFAULTS: dict[str, Any] = {
    name: parameter.default for name, parameter in inspect.signature(Listener).parameters.items()
}
STAGGER = DEFAULTS["stagger"]
COPIES = 6  # computed; a listener has fewer by default
Heard = dict[str, list[tuple[float, str]]]  # by track, seconds and words of the detections


class Outputs(NamedTuple):
    """Class probabilities of copies of a network at every step of a track."""

    staggered: np.ndarray  # [copies, steps, classes], by age: the copy that started last comes first
    long: np.ndarray  # [steps, classes], of one copy that reads LONG steps and starts anew


@dataclass(frozen=True)
class Policy:
    """How probabilities become detections: what is compared with θ, and for how many steps it has to stay above."""

    name: str
    score: Callable[[Outputs], np.ndarray]  # [steps, classes]
    patience: int


@dataclass(frozen=True)
class Point:
    """A policy at a threshold."""

    policy: str
    patience: int
    threshold: float
    recall: float
    recall_by_level: tuple[float, ...]  # as NOISE_LEVELS
    noise_alarms: float  # false alarms in an hour of noise and silence
    word_alarms: float  # in an hour of other words
    wrong_words: float  # in an hour of keywords among other words: other words, wrong keywords, and second detections
    delay: float  # mean seconds from the beginning of a recording, about a second long, to the detection

    @property
    def reaches_goal(self) -> bool:
        return self.noise_alarms <= MAX_NOISE_ALARMS and self.word_alarms <= MAX_WORD_ALARMS


def policies(unknown: int | None) -> list[Policy]:
    """That of the Listener first, then those that were tried. `unknown` is the class of other words."""

    def shares(probabilities: np.ndarray) -> np.ndarray:
        return evidence(torch.from_numpy(probabilities), unknown).numpy()

    def mean_of(first: int, last: int) -> Callable[[Outputs], np.ndarray]:
        return lambda outputs: shares(outputs.staggered[first:last].mean(0))

    def agreeing(count: int) -> Callable[[Outputs], np.ndarray]:
        return lambda outputs: np.sort(shares(outputs.staggered), 0)[-count]

    warm, copies, patience = DEFAULTS["warm_up"] // STAGGER, DEFAULTS["copies"], DEFAULTS["patience"]
    found = [Policy("listener", mean_of(warm, copies), count) for count in (patience, 1, 3, 8)]
    found += [Policy("probability", lambda outputs: outputs.staggered[warm:copies].mean(0), patience)]
    found += [Policy("mean, no warm-up", mean_of(0, copies), patience)]
    found += [Policy("mean, longer", mean_of(warm, COPIES), patience)]
    found += [Policy(f"{count} of {COPIES} copies agree", agreeing(count), patience) for count in (1, 2, 3)]
    found += [Policy("anew every minute", lambda outputs: shares(outputs.long), count) for count in (1, patience)]
    return [*found, Policy("anew in silence", lambda outputs: shares(_from_silence(outputs)), patience)]


def _from_silence(outputs: Outputs) -> np.ndarray:
    """One copy, started anew at multiples of STAGGER: where it hears silence (the last class), or at its full age."""
    staggered, score, age = outputs.staggered, outputs.long.copy(), 0
    for begin in range(0, len(score), STAGGER):
        score[begin : begin + STAGGER] = staggered[age, begin : begin + STAGGER]
        silent = score[begin : begin + STAGGER][-1, -1] >= 0.5
        age = 0 if silent or age + 1 == COPIES else age + 1
    return score


def outputs_of(network: Network, track: Track) -> Outputs:
    """What each copy of the network answers at every step."""
    front_end: Any = network.front_end
    inputs = front_end(front_end.read(torch.from_numpy(track.samples)).values[None])[0][0]  # [steps, features]
    steps, length = len(inputs), STAGGER * COPIES
    staggered = np.zeros((COPIES, steps, network.num_classes), np.float32)
    padded = torch.cat([inputs, inputs[-1:].expand(length, -1)])
    with inference(network):
        for first in range(0, steps, BATCH * STAGGER):
            starts = range(first, min(first + BATCH * STAGGER, steps), STAGGER)
            answers = _probabilities(network, torch.stack([padded[start : start + length] for start in starts]))
            for start, rows in zip(starts, answers.unflatten(1, (COPIES, STAGGER)).numpy(), strict=True):
                for age, row in enumerate(rows):
                    begin = start + age * STAGGER
                    staggered[age, begin : begin + STAGGER] = row[: max(0, steps - begin)]
        long = _probabilities(network, pad_sequence(inputs.split(LONG), batch_first=True))
    return Outputs(staggered, long.flatten(0, 1)[:steps].numpy())


def _probabilities(network: Network, inputs: Tensor) -> Tensor:
    """[rows, steps, classes] of whole sequences, without states."""
    features, _ = read_steps(network, inputs, network.initial_state(len(inputs)))
    return network.logits(features.flatten(0, 1)).softmax(-1).unflatten(0, inputs.shape[:2])


def lasting(score: np.ndarray, patience: int) -> np.ndarray:
    """The smallest value of the last `patience` steps, of each class; 0 where there are not as many."""
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(score, ((patience - 1, 0), (0, 0))), patience, 0)
    return windows.min(-1)


def detections(score: np.ndarray, threshold: float, refractory: int) -> list[tuple[int, int]]:
    """Steps, counted from 1, and classes at which a listener with this lasting score fires."""
    labels = np.where(score.max(1) >= threshold, score.argmax(1), -1)  # -1: none
    begins = np.flatnonzero(np.r_[True, labels[1:] != labels[:-1]])
    found: list[tuple[int, int]] = []
    last, reported = -refractory, -1
    for begin, end in zip(begins.tolist(), [*begins[1:].tolist(), len(labels)], strict=True):
        label, step = int(labels[begin]), max(begin, last + refractory)
        if label == -1:
            reported = -1
        elif label != reported and step < end:
            found.append((step + 1, label))
            last, reported = step, label
    return found


def measure_listening(network: Network, tracks: dict[str, Track]) -> list[Point]:
    """Recall and false alarms of every policy over thresholds."""
    names = network.label_names or ()
    if not {word.word for word in tracks["keywords"].words} & set(names):
        raise ValueError("no class of the network is a word of the tracks")
    outputs = {name: outputs_of(network, track) for name, track in tracks.items()}
    keywords = [label for label, name in enumerate(names) if name not in NOT_KEYWORDS]
    seconds = [network.front_end.heard(torch.tensor([step]), torch.tensor([1 << 40])).item() / 1000 for step in (1, 2)]  # type: ignore[union-attr]
    points = []
    for policy in policies(names.index("unknown") if "unknown" in names else None):
        scores = {name: lasting(policy.score(each)[:, keywords], policy.patience) for name, each in outputs.items()}
        for threshold in THRESHOLDS:
            found = {
                name: [
                    (seconds[0] + (step - 1) * (seconds[1] - seconds[0]), names[keywords[label]])
                    for step, label in detections(score, threshold, DEFAULTS["refractory"])
                ]
                for name, score in scores.items()
            }
            points.append(_point(policy, threshold, tracks, found, [names[label] for label in keywords]))
    return points


def _point(policy: Policy, threshold: float, tracks: dict[str, Track], found: Heard, keywords: list[str]) -> Point:
    track = tracks["keywords"]
    begins = [word.begin for word in track.words]
    delays: dict[int, float] = {}  # of the keywords that were found
    for second, label in found["keywords"]:
        last = int(np.searchsorted(begins, second, "right")) - 1
        for place in range(last, max(-1, last - 2), -1):
            word = track.words[place]
            if word.word == label and second <= word.end + AFTER_SECONDS and place not in delays:
                delays[place] = second - word.begin
                break
    wanted = [place for place, word in enumerate(track.words) if word.word in keywords]
    by_level = [
        [place in delays for place in wanted if track.words[place].level == n] for n in range(len(NOISE_LEVELS))
    ]
    return Point(
        policy.name,
        policy.patience,
        threshold,
        len(delays) / len(wanted),
        tuple(float(np.mean(each)) if each else float("nan") for each in by_level),
        len(found["noise"]) / tracks["noise"].hours,
        len(found["other words"]) / tracks["other words"].hours,
        (len(found["keywords"]) - len(delays)) / track.hours,
        float(np.mean(list(delays.values()))) if delays else float("nan"),
    )


def best(points: Iterable[Point]) -> list[Point]:
    """Of each policy, the threshold with the highest recall among those that reach the goal."""
    found: dict[tuple[str, int], Point] = {}
    for point in points:
        key = point.policy, point.patience
        if point.reaches_goal and (key not in found or point.recall > found[key].recall):
            found[key] = point
    return list(found.values())


def listening_table(points: Iterable[Point]) -> str:
    """The best threshold of each policy as text."""
    levels = "".join(f"{'no noise' if level is None else f'{level} dB':>9}" for level in NOISE_LEVELS)
    lines = [
        f"{'policy':<24} {'steps':>5} {'θ':>6} {'recall':>7}{levels} {'alarms/h: noise':>16} {'words':>6} {'delay':>7}"
    ]
    for point in best(points):
        recalls = "".join(f"{value:>9.1%}" for value in point.recall_by_level)
        lines.append(
            f"{point.policy:<24} {point.patience:>5} {point.threshold:>6.3f} {point.recall:>7.1%}{recalls} "
            f"{point.noise_alarms:>16.1f} {point.word_alarms:>6.1f} {1000 * point.delay:>4.0f} ms"
        )
    return "\n".join(lines)
