"""`EarlyClassifier`: scikit-learn's contract around networks that learn when to answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
except ImportError:
    raise ImportError("EarlyClassifier needs scikit-learn: pip install 'rankcode[sklearn]'") from None
from sklearn.utils import check_random_state, compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from rankcode.data.dataframes import is_long_frame, rows_of_frame
from rankcode.data.series import SUSPICIOUS, Columns
from rankcode.decision import Decision
from rankcode.inference import decide
from rankcode.metrics import Curve, tradeoff
from rankcode.rules import Never, Rule
from rankcode.saving.model_file import save
from rankcode.saving.run_folder import load
from rankcode.stopping import Wish
from rankcode.streaming import Stream, StreamPool
from rankcode.training.series_model import LabelledSeries, ModelName, fit_series

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NOT_FINITE = "row {} of X holds NaN or infinity: fill in missing values, or leave the row out"


class EarlyClassifier(ClassifierMixin, BaseEstimator):
    """Classifies series, and answers each as early as it can.

    Give one of `accuracy`, `mean_steps`, `cost_per_step` and `alpha`, or none of them for `alpha=0.2`.

    Parameters
    ----------
    accuracy : float, share of right answers that is wanted, as early as possible
    mean_steps : float, steps that may be read on average, as accurately as possible
    cost_per_step : float, what reading one step costs, where a wrong answer costs 1
    alpha : float, what reading a whole row costs, where a wrong answer costs 1
    model : "auto", "kernels" (random kernels and ridge regression, for small sets), "recurrent" (a GRU) or "ensemble"
        (both, their log-probabilities weighted)
    class_weight : dict, "balanced" or None
    channels_first : bool, True if arrays are [rows, channels, steps], as in aeon, False if they are [rows, steps,
        channels]; by default, as False, but an error if there are five times as many channels as steps
    random_state : int, RandomState or None
    verbose : bool, show progress

    Attributes
    ----------
    classes_ : the labels
    network_ : the fitted `rankcode.Network`, with its front end and its rule
    model_ : "kernels", "recurrent" or "ensemble"
    columns_ : which columns of a frame were read; None for arrays
    tuning_ : what the rule promises on new data: accuracy with an interval, and steps; with `accuracy` or `mean_steps`
        also the curve that it was chosen from. Not loaded from a file
    baseline_ : accuracies of the majority class and of the nearest neighbour on the training rows
    """

    def __init__(
        self,
        *,
        accuracy: float | None = None,
        mean_steps: float | None = None,
        cost_per_step: float | None = None,
        alpha: float | None = None,
        model: ModelName = "auto",
        class_weight: dict | str | None = None,
        channels_first: bool | None = None,
        random_state: Any = None,
        verbose: bool = False,
    ):
        self.accuracy = accuracy
        self.mean_steps = mean_steps
        self.cost_per_step = cost_per_step
        self.alpha = alpha
        self.model: Any = model
        self.class_weight = class_weight
        self.channels_first = channels_first
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None, validation: Any = None) -> EarlyClassifier:
        """Fit to series X: [rows, steps], [rows, steps, channels], or a list of arrays of unequal length.

        X may also be a frame of pandas or polars in long form, with columns id, time and values (docs/data.md). Then
        `y` is the name of its label column, a pandas Series indexed by id, or labels in order of first appearance.

        `validation=(X, y)`: rows to fit the rule to, instead of left-out predictions for the training rows.
        """
        wish = Wish(self.accuracy, self.mean_steps, self.cost_per_step, self.alpha)
        values, lengths, y = self._series(X, y, reset=True)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        weights = _check_sample_weight(sample_weight, labels, dtype=np.float64, ensure_non_negative=True)
        weighting: Any = self.class_weight
        if weighting is not None:
            weights = weights * compute_class_weight(weighting, classes=self.classes_, y=y)[labels]
        if not (weights > 0).any():
            raise ValueError("all sample weights are 0")
        used = torch.from_numpy(np.flatnonzero(weights > 0))
        present = np.unique(labels[used])
        if len(present) < 2:
            raise ValueError(
                f"the data has only one class, {str(self.classes_[present][0])!r}: there is nothing to tell apart"
            )
        self.classes_, labels = self.classes_[present], np.searchsorted(present, labels)
        train = LabelledSeries(values, lengths, torch.from_numpy(labels).long()).rows(used)
        held = None
        if validation is not None:
            held_values, held_lengths, held_y = self._series(*validation, reset=False)
            number = {label: place for place, label in enumerate(self.classes_.tolist())}
            if unknown := [label for label in held_y.tolist() if label not in number]:
                raise ValueError(f"the label {unknown[0]!r} of the validation data is not in the training data")
            held = LabelledSeries(held_values, held_lengths, torch.tensor([number[each] for each in held_y.tolist()]))
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        names = tuple(str(each) for each in self.classes_)
        found = fit_series(train, names, wish, self.model, torch.from_numpy(weights)[used], held, seed, self.verbose)
        self.network_, self.tuning_, self.model_ = found.network, found.tuning, found.model
        if self.columns_ is not None:
            front_end: Any = self.network_.front_end
            self.network_.front_end = front_end.reading(self.columns_)
        self.baseline_ = {"majority": found.majority, "nearest neighbour": found.nearest_neighbour}
        return self

    def decide(self, X: Any) -> Decision:
        """For each row: the number of its label in `classes_`, the steps read, whether it fired, all probabilities."""
        return self._decide(X)

    def predict(self, X: Any) -> np.ndarray:
        """The label of each row, as early as the rule allows."""
        return self.predict_early(X)[0]

    def predict_early(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """The label of each row, and how many steps were read for it."""
        decision = self.decide(X)
        return self.classes_[decision.label.numpy()], decision.steps.numpy()

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of every class at the answer, [rows, classes]."""
        return self.decide(X).probabilities.double().numpy()

    def predict_full(self, X: Any) -> np.ndarray:
        """The label of each row after its last step."""
        return self.classes_[self._decide(X, Never()).label.numpy()]

    def stream(self) -> Stream:
        """A live row: push a step [channels] or a chunk [steps, channels], and get the decision that `decide` gives for
        the whole row as soon as there is one; its label is `classes_[decision.label]`. NaN is a missing value."""
        check_is_fitted(self)
        return Stream(self.network_)

    def pool(self, capacity: int = 1024) -> StreamPool:
        """Up to `capacity` live rows, advanced together."""
        check_is_fitted(self)
        return StreamPool(self.network_, capacity=capacity)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The share of right answers."""
        if is_long_frame(X):
            check_is_fitted(self)
            _, y, _ = rows_of_frame(X, y, self.columns_)
        return super().score(X, y, sample_weight)

    def tradeoff(self, X: Any, y: Any) -> Curve:
        """Accuracy against steps read, a point for each threshold on the largest probability."""
        check_is_fitted(self)
        values, lengths, y = self._series(X, y, reset=False)
        labels = torch.from_numpy(np.searchsorted(self.classes_, y))
        return tradeoff(self.network_, (self._inputs(values), labels, lengths))

    def plot(self, X: Any, y: Any = None, rows: Sequence[int] | None = None) -> Figure:
        """Draw rows of X, the class probabilities below each, and when and why it was answered.

        `rows` are indices into X, by default one or two for each label of `y` or, without it, for each answer.
        `classifier.plot(X, y).savefig("answers.png")` writes the picture to a file.
        """
        from rankcode.plots.answers import plot_answers, some_of_each

        check_is_fitted(self)
        values, lengths, y = self._series(X, y, reset=False)
        chosen = rows
        if chosen is None:
            chosen = some_of_each((self.predict(X) if y is None else y).tolist())
        names = None if y is None else [str(y[row]) for row in chosen]
        return plot_answers(self.network_, [values[row, : int(lengths[row])] for row in chosen], names)

    def save(self, path: str | Path) -> None:
        """Write the network, its rule and its labels to a .safetensors file, which `rankcode predict` reads as well."""
        check_is_fitted(self)
        save(self.network_, path)

    @classmethod
    def load(cls, path: str | Path) -> EarlyClassifier:
        """A classifier from a file. Labels are those of the file, as text."""
        loaded = cls()
        loaded.network_ = load(path)
        loaded.classes_ = np.array(loaded.network_.label_names)
        loaded.channels_, loaded._any_length = loaded.network_.cell.input_size, True
        front_end: Any = loaded.network_.front_end
        loaded.columns_ = Columns(front_end.label_column, False, values=front_end.channel_names)
        return loaded

    def _decide(self, X: Any, rule: Rule | None = None) -> Decision:
        check_is_fitted(self)
        values, lengths, _ = self._series(X, None, reset=False)
        return Decision(*(part.cpu() for part in decide(self.network_, self._inputs(values), lengths, rule)))

    def _inputs(self, values: torch.Tensor) -> torch.Tensor:
        front_end: Any = self.network_.front_end
        return front_end(values)[0].float().to(next(self.network_.parameters()).device)

    def _series(self, X: Any, y: Any, reset: bool) -> tuple[torch.Tensor, torch.Tensor, Any]:
        """X as [rows, steps, channels], padded, the lengths, and y as an array."""
        if reset:
            self.columns_, self._any_length = None, False
        if is_long_frame(X):
            rows, y, columns = rows_of_frame(X, y, self.columns_)
            if reset:
                self.columns_ = columns
            return self._rows(rows, y, reset)
        if isinstance(X, list | tuple) and any(np.ndim(row) == 2 or len(row) != len(X[0]) for row in X if np.ndim(row)):
            self._check_layout({np.shape(row) for row in X if np.ndim(row) == 2})
            return self._rows(X, y, reset, bool(self.channels_first))
        if not reset and (self._any_length or isinstance(X, list | tuple)) and np.ndim(X) in (2, 3) and len(X):
            return self._rows(X, y, reset, bool(self.channels_first))
        checks: dict[str, Any] = {
            "X": X,
            "dtype": "numeric",
            "allow_nd": True,
            "reset": reset,
            "ensure_all_finite": False,
        }
        if y is None:
            X = validate_data(self, **checks)
        else:
            X, y = validate_data(self, y=y, **checks)
        values = torch.tensor(X, dtype=torch.float64)
        for (row,) in (~values.isfinite().flatten(1).all(1)).nonzero()[:1].tolist():
            raise ValueError(NOT_FINITE.format(row))
        if values.dim() == 2:
            values = values[:, :, None]
        elif values.dim() != 3:
            raise ValueError(f"X must have shape [rows, steps] or [rows, steps, channels], not {list(values.shape)}")
        else:
            self._check_layout({tuple(values.shape[1:])})
            if self.channels_first:
                values = values.transpose(1, 2).contiguous()
        self._check_channels(values.shape[2], reset)
        return values, torch.full((len(values),), values.shape[1]), y

    def _rows(
        self, X: Any, y: Any, reset: bool, channels_first: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor, Any]:
        """A list of rows of unequal length, each [steps] or [steps, channels]."""
        rows = []
        for number, row in enumerate(X):
            row = np.asarray(row, dtype=np.float64)
            row = row[:, None] if row.ndim == 1 else row.T if channels_first else row
            if row.ndim != 2 or len(row) == 0:
                raise ValueError(f"row {number} of X must be [steps] or [steps, channels], not empty")
            if not np.isfinite(row).all():
                raise ValueError(NOT_FINITE.format(number))
            rows.append(torch.from_numpy(np.ascontiguousarray(row)))
        if len({row.shape[1] for row in rows}) > 1:
            raise ValueError("the rows of X have different numbers of channels")
        self._check_channels(rows[0].shape[1], reset)
        if y is not None and len(y := np.asarray(y)) != len(rows):
            raise ValueError(f"X has {len(rows)} rows and y {len(y)} labels")
        if reset:
            self.n_features_in_, self._any_length = rows[0].shape[1], True
        lengths = torch.tensor([len(row) for row in rows])
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), lengths, y

    def _check_layout(self, shapes: set[tuple[int, ...]]) -> None:
        """An error if rows of these shapes, [steps, channels], may well be [channels, steps] and nobody has said so."""
        if self.channels_first is None and shapes and all(steps * SUSPICIOUS <= values for steps, values in shapes):
            steps, values = min(shapes)
            raise ValueError(
                f"X has {steps} step{'s' * (steps > 1)} of {values} values if it is [rows, steps, channels]: if it is "
                f"[rows, channels, steps], give channels_first=True, otherwise channels_first=False"
            )

    def _check_channels(self, channels: int, reset: bool) -> None:
        if reset:
            self.channels_ = channels
        elif channels != self.channels_:
            raise ValueError(f"X has {channels} channels, and the classifier was fitted to {self.channels_}")
