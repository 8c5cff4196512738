"""The methods that are compared, each a class, in a table by name."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from rankcode.data import Batch
from rankcode.data.series import Series
from rankcode.estimator import EarlyClassifier
from rankcode.inference import decide
from rankcode.metrics import tradeoff
from rankcode.objectives import AtEnd, EveryStep, Objective, UntilSpike
from rankcode.stopping import tune
from rankcode.tasks import OwnData
from rankcode.training import Training, fit
from rankcode.training.recipes import recipe
from rankcode.training.standard_network import standard_network


class Answers(NamedTuple):
    """The answers of a method for the test rows, at one α."""

    alpha: float
    labels: np.ndarray  # [rows], str
    steps: np.ndarray  # [rows], steps read
    fit_seconds: float  # of CPU time, which other work on the machine hardly changes
    predict_seconds: float  # of CPU time, for all test rows at once
    area: float | None  # under the curve of accuracy against earliness, over thresholds


class CannotReadError(ValueError):
    """The method cannot read this data: the set is left out of its results."""


@dataclass
class Method(ABC):
    """A method on one set with one seed. `fit` does all that is independent of α, and `tune` the rest."""

    train: Series
    test: Series
    seed: int

    def answers(self, alphas: Sequence[float]) -> Iterator[Answers]:
        begun = time.process_time()
        self.fit()
        fitted, area = time.process_time() - begun, None
        for number, alpha in enumerate(alphas):
            begun = time.process_time()
            self.tune(alpha)
            tuned = time.process_time()
            labels, steps = self.predict()
            done = time.process_time()
            area = area if number else self.area()
            yield Answers(alpha, np.asarray(labels), np.asarray(steps), fitted + tuned - begun, done - tuned, area)

    def fit(self) -> None:
        return  # unless a method has something to do

    @abstractmethod
    def tune(self, alpha: float) -> None: ...

    @abstractmethod
    def predict(self) -> tuple[Any, Any]:
        """Labels and steps read of the test rows."""

    def area(self) -> float | None:
        return None


@dataclass
class Estimator(Method):
    """`EarlyClassifier`, fitted for each α."""

    model: str

    def tune(self, alpha: float) -> None:
        self.classifier = EarlyClassifier(alpha=alpha, model=self.model, random_state=self.seed)  # type: ignore[arg-type]
        self.classifier.fit(self.train.rows(), np.array(self.train.labels))

    def predict(self) -> tuple[Any, Any]:
        return self.classifier.predict_early(self.test.rows())

    def area(self) -> float:
        return self.classifier.tradeoff(self.test.rows(), np.array(self.test.labels)).area


@dataclass
class Recurrent(Method):
    """The GRU of the default recipe. A fifth of the training rows selects its weights and its rule."""

    objective: Objective
    kind: Any  # of the rule, for `tune`

    def fit(self) -> None:
        self.task = task_of(self.train, self.test, self.seed)
        settings = recipe("default", len(self.train.labels))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            self.network = standard_network(self.task, settings.cell, settings.hidden_size)
        fit(self.network, self.task, self.objective, Training(seed=self.seed, device="cpu", progress=False))

    def tune(self, alpha: float) -> None:
        self.network.rule = tune(self.network, self.task, alpha=alpha, kind=self.kind).rule

    def predict(self) -> tuple[Any, Any]:
        inputs, _, lengths = whole(self.task.test)
        decision = decide(self.network, inputs, lengths)
        return np.array(self.task.label_names)[decision.label.numpy()], decision.steps.numpy()

    def area(self) -> float:
        return tradeoff(self.network, self.task).area


@dataclass
class Peer:
    """A method of another library, run for all α at once by a separate Python that has the library."""

    train: Series
    test: Series
    seed: int
    name: str
    python: str
    time_limit: float

    def answers(self, alphas: Sequence[float]) -> Iterator[Answers]:
        if len({*self.train.lengths, *self.test.lengths}) > 1:
            raise CannotReadError("reads rows of one length only")
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "request.npz"
            np.savez(
                file,
                alphas=alphas,
                seed=self.seed,
                train=np.stack(self.train.rows()),  # [rows, steps, channels]
                test=np.stack(self.test.rows()),
                train_labels=self.train.labels,
                test_labels=self.test.labels,
            )
            command = [self.python, str(Path(__file__).with_name("peers.py")), self.name, str(file)]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=self.time_limit)
            except subprocess.TimeoutExpired:
                raise TimeoutError(f"took more than {self.time_limit:g} s") from None
        lines = done.stdout.splitlines()
        if done.returncode != 0 or not lines:
            reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
            advice = ": install rankcode[compare] there" if "No module named" in reason else ""
            raise RuntimeError(f"{self.python}: {reason}{advice}")
        for each in json.loads(lines[-1]):
            yield Answers(**{**each, "labels": np.array(each["labels"]), "steps": np.array(each["steps"])})


def task_of(train: Series, test: Series, seed: int) -> OwnData:
    """The set as a task, a fifth of the training rows set aside for validation."""
    return OwnData.of(train.rows(), train.labels, test=(test.rows(), test.labels), split_seed=seed)


def whole(source: Any) -> Batch:
    """All rows of a source as one batch on the CPU."""
    return next(source.scan(source.size, torch.device("cpu")))


def lengths_of(rows: Batch) -> torch.Tensor:
    return torch.full((len(rows.inputs),), rows.inputs.shape[1]) if rows.lengths is None else rows.lengths


def methods(peers_python: str | None = None, time_limit: float = 3600) -> dict[str, Callable[..., Any]]:
    """Every method by name: a function of the training rows, the test rows and a seed."""
    from rankcode.experiments.compare.checkpoint_cost import CheckpointCost
    from rankcode.experiments.compare.earliness_reward import Elects

    peer = partial(Peer, python=peers_python or sys.executable, time_limit=time_limit)
    return {
        "kernels": partial(Estimator, model="kernels"),
        "auto": partial(Estimator, model="auto"),
        "recurrent": partial(Recurrent, objective=UntilSpike(0.95), kind="auto"),
        "every-step": partial(Recurrent, objective=EveryStep(), kind="threshold"),
        "conventional": partial(Recurrent, objective=AtEnd(), kind="threshold"),
        "elects": Elects,
        "checkpoint-cost": CheckpointCost,
        **{name: partial(peer, name=name) for name in ("teaser", "probability-threshold", "non-myopic")},
    }
