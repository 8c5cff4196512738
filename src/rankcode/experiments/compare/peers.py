"""Methods of aeon and tslearn. Run as a script, `python peers.py METHOD REQUEST.npz`, by a Python that has them
installed: they need an older numpy than rankcode, so nothing of rankcode is imported here. Writes the answers as JSON.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

NUM_TREES = 50  # of each forest
NUM_DRCIF_TREES = 20  # with 200, the default of aeon, a small set takes minutes and a large one hours
FOLDS = 3
THRESHOLDS = np.linspace(0, 1, 101)
CLUSTERS, SHARPNESS = (1, 2, 4), (1.0, 100.0)  # settings of the non-myopic method; one cluster can always be fitted


def teaser(data: Any) -> Iterator[dict[str, Any]]:
    """TEASER on the forests of its default, with fewer trees. It has no α: every α gets the same answers."""
    from aeon.classification.early_classification import TEASER
    from aeon.classification.interval_based import DrCIFClassifier

    begun = time.process_time()
    steps = data["train"].shape[1]
    points = [point for point in (round(steps / part) for part in range(1, 21)) if point >= 8]  # as its default does
    classifier = TEASER(
        DrCIFClassifier(n_estimators=NUM_DRCIF_TREES), classification_points=points, random_state=data["seed"]
    )
    classifier.fit(channels_first(data["train"]), data["train_labels"])
    fitted = time.process_time()
    labels, _ = classifier.predict(channels_first(data["test"]))
    done = time.process_time()
    for alpha in data["alphas"]:
        yield answers(alpha, labels, classifier.state_info[:, 3], fitted - begun, done - fitted)


def probability_threshold(data: Any) -> Iterator[dict[str, Any]]:
    """aeon's probability threshold on time series forests; for each α, the threshold that cross-validation chooses."""
    from aeon.classification.early_classification import ProbabilityThresholdEarlyClassifier
    from aeon.classification.interval_based import TimeSeriesForestClassifier
    from sklearn.model_selection import StratifiedKFold

    x, y, test = channels_first(data["train"]), data["train_labels"], channels_first(data["test"])
    names = np.unique(y)

    def fitted(rows: np.ndarray) -> Any:
        forest = TimeSeriesForestClassifier(n_estimators=NUM_TREES)
        return ProbabilityThresholdEarlyClassifier(forest, random_state=data["seed"]).fit(x[rows], y[rows])

    def probabilities(classifier: Any, series: np.ndarray) -> np.ndarray:
        points = zip(classifier._classification_points, classifier.estimators_, strict=True)
        return np.stack([estimator.predict_proba(series[:, :, :point]) for point, estimator in points])

    begun = time.process_time()
    folds = max(2, min(FOLDS, int(np.unique(y, return_counts=True)[1].min())))
    held_out: Any = None
    for rows, others in StratifiedKFold(folds, shuffle=True, random_state=data["seed"]).split(x[:, 0], y):
        found = probabilities(fitted(rows), x[others])
        held_out = np.zeros((len(found), len(x), len(names))) if held_out is None else held_out
        held_out[:, others] = found
    classifier = fitted(np.arange(len(x)))
    points = np.array(classifier._classification_points)
    done = time.process_time()
    tried = curve(held_out, points, names[held_out.argmax(2)] == y, x.shape[2])
    now = time.process_time()
    found = probabilities(classifier, test)
    seconds = time.process_time() - now
    right, earliness = curve(found, points, names[found.argmax(2)] == data["test_labels"], x.shape[2])
    majority = np.unique(data["test_labels"], return_counts=True)[1].max() / len(test)
    below = area(right, earliness, majority)
    for alpha in data["alphas"]:
        threshold = float(THRESHOLDS[(1 - tried[0] + alpha * tried[1]).argmin()])
        place = first(found, threshold)
        labels = names[found[place, np.arange(len(test))].argmax(1)]
        yield answers(alpha, labels, points[place], done - begun, seconds, below)


def non_myopic(data: Any) -> Iterator[dict[str, Any]]:
    """tslearn's non-myopic classifier; for each α, the settings that two-fold cross-validation chooses."""
    from sklearn.model_selection import StratifiedKFold
    from tslearn.early_classification import NonMyopicEarlyClassifier

    x, y, steps = data["train"], data["train_labels"], data["train"].shape[1]

    def fitted(rows: Any, clusters: int) -> Any:
        try:
            return NonMyopicEarlyClassifier(clusters, random_state=data["seed"]).fit(x[rows], y[rows])
        except ValueError:  # a cluster of one row cannot be split
            return None

    def cost(alpha: float, clusters: int, sharpness: float) -> float:
        if None in tried[clusters]:
            return np.inf
        found = []
        for (_, others), classifier in zip(folds, tried[clusters], strict=True):
            classifier.set_params(lamb=sharpness, cost_time_parameter=alpha / steps)
            found.append(classifier.early_classification_cost(x[others], y[others]))
        return float(np.mean(found))

    begun = time.process_time()
    folds = list(StratifiedKFold(2, shuffle=True, random_state=data["seed"]).split(y, y))
    whole = {clusters: fitted(np.arange(len(x)), clusters) for clusters in CLUSTERS}
    tried = {clusters: [fitted(rows, clusters) for rows, _ in folds] for clusters in CLUSTERS}
    usable = [each for each in CLUSTERS if whole[each] is not None]
    if not usable:
        raise ValueError("its clusters have too few rows")
    fitting = time.process_time() - begun
    for alpha in data["alphas"]:
        begun = time.process_time()
        settings = [(clusters, sharpness) for clusters in usable for sharpness in SHARPNESS]
        clusters, sharpness = min(settings, key=lambda each, now=alpha: cost(now, *each))
        done = time.process_time()
        classifier = whole[clusters].set_params(lamb=sharpness, cost_time_parameter=alpha / steps)
        labels, read = classifier.predict_class_and_earliness(data["test"])
        yield answers(alpha, labels, read, fitting + done - begun, time.process_time() - done)


def curve(probabilities: np.ndarray, points: np.ndarray, right: np.ndarray, length: int) -> tuple[Any, Any]:
    """Accuracy and earliness at each threshold."""
    rows = np.arange(right.shape[1])
    places = [first(probabilities, threshold) for threshold in THRESHOLDS]
    return (
        np.array([right[place, rows].mean() for place in places]),
        np.array([points[place].mean() / length for place in places]),
    )


def first(probabilities: np.ndarray, threshold: float) -> np.ndarray:
    """The first point at which the largest probability reaches the threshold, or else the last, [rows]."""
    reached = probabilities.max(2) >= threshold
    reached[-1] = True
    return reached.argmax(0)


def area(right: np.ndarray, earliness: np.ndarray, majority: float) -> float:
    """As `rankcode.metrics.area`, which cannot be imported here."""
    order = np.lexsort((right, earliness))
    e, a = np.append(earliness[order], 1.0), np.maximum.accumulate(right[order])
    return float(majority * e[0] + (a * np.diff(e)).sum())


def channels_first(series: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(series.transpose(0, 2, 1), dtype=np.float64)


def answers(
    alpha: float, labels: Any, steps: Any, fit_seconds: float, predict_seconds: float, below: float | None = None
) -> dict[str, Any]:
    return {
        "alpha": float(alpha),
        "labels": [str(each) for each in labels],
        "steps": [int(each) for each in steps],
        "fit_seconds": fit_seconds,
        "predict_seconds": predict_seconds,
        "area": below,
    }


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    request = dict(np.load(sys.argv[2]))
    request["seed"] = int(request["seed"])
    chosen = {"teaser": teaser, "probability-threshold": probability_threshold, "non-myopic": non_myopic}
    print(json.dumps(list(chosen[sys.argv[1]](request))))
