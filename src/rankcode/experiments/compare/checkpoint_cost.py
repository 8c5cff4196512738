"""A classifier for each checkpoint, and a backward regression of the cost of waiting.

After the idea of Bilski, Jastrzębska: "CALIMERA: A new early time series classification method" (Information Processing
& Management 2023), written without its code: features of random convolution kernels, a calibrated ridge classifier at
each checkpoint, and, from the last checkpoint to the first, a kernel regression of the gain from waiting.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LogisticRegression, RidgeClassifierCV
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from rankcode.cells import RandomKernels
from rankcode.data import Batch
from rankcode.experiments.compare.methods import Method, lengths_of, whole
from rankcode.metrics import area
from rankcode.tasks import OwnData
from rankcode.training.fit_kernels import features_at

NUM_CHECKPOINTS = 20
NUM_COUNTS = 6000  # half of them on inputs, as in MiniRocket, and half on differences
FOLDS = 3
PENALTIES = np.logspace(-3, 3, 10)
THRESHOLDS = np.linspace(0, 1, 101)


class CheckpointCost(Method):
    def fit(self) -> None:
        rows = self.train.rows(), self.train.labels
        task = OwnData.of(*rows, validation=rows, test=(self.test.rows(), self.test.labels))
        train, self.test_rows = whole(task.train), whole(task.test)
        self.names, labels, last = np.array(task.label_names), train.labels.numpy(), train.inputs.shape[1]
        self.checkpoints = sorted({max(1, round(k * last / NUM_CHECKPOINTS)) for k in range(1, NUM_CHECKPOINTS + 1)})
        self.cell = RandomKernels.for_length(train.inputs.shape[2], last, NUM_COUNTS)
        weights, generator = torch.ones(len(labels), dtype=torch.float64), torch.Generator().manual_seed(self.seed)
        self.cell.draw(train.inputs, lengths_of(train), weights, generator)
        smallest = int(np.bincount(labels).min())
        folds = StratifiedKFold(max(2, min(FOLDS, smallest)), shuffle=True, random_state=self.seed)
        self.classifiers, held_out = [], []
        for features in self._features(train):
            ridge = make_pipeline(StandardScaler(), RidgeClassifierCV(PENALTIES))
            apart = columns(cross_val_predict(ridge, features, labels, cv=folds, method="decision_function"))
            calibration = LogisticRegression(max_iter=1000).fit(apart, labels)
            self.classifiers.append((ridge.fit(features, labels), calibration))
            held_out.append(calibration.predict_proba(apart))
        self.held_out = np.stack(held_out)  # [checkpoints, rows, classes]
        # Earliness of answers at each checkpoint, [checkpoints, rows].
        self.reached = np.minimum(1.0, np.array(self.checkpoints)[:, None] / lengths_of(train).numpy())

    def tune(self, alpha: float) -> None:
        cost = 1 - self.held_out.max(2) + alpha * self.reached  # [checkpoints, rows]
        value, self.regressions = cost[-1], []
        for now, features in zip(cost[-2::-1], self.held_out[-2::-1], strict=True):
            regression = KernelRidge(kernel="rbf").fit(features, value - now)
            value = np.where(regression.predict(features) >= 0, now, value)
            self.regressions.insert(0, regression)

    def predict(self) -> tuple[Any, Any]:
        self.probabilities = np.stack(
            [
                calibration.predict_proba(columns(ridge.decision_function(features)))
                for (ridge, calibration), features in zip(self.classifiers, self._features(self.test_rows), strict=True)
            ]
        )
        pairs = zip(self.regressions, self.probabilities[:-1], strict=True)
        return self._answers(np.stack([regression.predict(each) >= 0 for regression, each in pairs]))

    def area(self) -> float:
        confidence, right, earliness = self.probabilities[:-1].max(2), [], []
        lengths = lengths_of(self.test_rows).numpy()
        for threshold in THRESHOLDS:
            labels, steps = self._answers(confidence >= threshold)
            right.append(float(np.mean(labels == np.array(self.test.labels))))
            earliness.append(float(np.mean(steps / lengths)))
        return area(earliness, right, float(np.bincount(self.test_rows.labels.numpy()).max() / len(lengths)))

    def _answers(self, fires: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Labels and steps, if rows fire at these checkpoints [checkpoints − 1, rows] or end."""
        lengths = lengths_of(self.test_rows).numpy()
        ended = np.array(self.checkpoints)[:, None] >= lengths
        place = (np.concatenate([fires, np.ones_like(fires[:1])]) | ended).argmax(0)
        labels = self.probabilities[place, np.arange(len(place))].argmax(1)
        return self.names[labels], np.minimum(np.array(self.checkpoints)[place], lengths)

    def _features(self, rows: Batch) -> Any:
        for features in features_at(self.cell, rows.inputs, lengths_of(rows), self.checkpoints):
            yield features[:, : self.cell.group_sizes[0]].double().numpy()


def columns(decisions: Any) -> np.ndarray:
    """Decision values [rows, values]: two classes have one."""
    return decisions[:, None] if decisions.ndim == 1 else decisions
