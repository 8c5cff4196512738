"""The options that a sweep varies, and the combinations that a search tries: all, random ones, or promising ones."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

DIGITS = 4  # of numbers that are drawn from a range
MAX_TRIES = 100  # draws without a new combination: then there is probably none left


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, whole ones if both ends are; log-uniform if `low` is above 0, else uniform."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError(f"a range goes from a number to a larger one, such as 1e-4..1e-2, not {self}")

    def __str__(self) -> str:
        return f"{self.low}..{self.high}"

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def logarithmic(self) -> bool:
        return self.low > 0

    def draw(self, random: np.random.Generator) -> float:
        high = self.high + 1 if self.whole else self.high
        if self.logarithmic:
            value = math.exp(random.uniform(math.log(self.low), math.log(high)))
        else:
            value = random.uniform(self.low, high)
        return min(math.floor(value), self.high) if self.whole else self.rounded(value)

    def rounded(self, value: float) -> float:
        """With as many digits as one can read: more make no difference to a run. Whole numbers stay what they are."""
        return min(max(float(f"{value:.{DIGITS}g}"), self.low), self.high) if not self.whole else value


Space = dict[str, "list[Any] | Range"]


def read_space(over: Mapping[str, Any]) -> Space:
    """The values of each option: a list, one value, or a range as text, such as "1e-4..1e-2"."""
    if not over:
        raise ValueError("name at least one option to sweep over, such as beta=[0, 0.1]")
    return {name: _values(name, given) for name, given in over.items()}


def _values(name: str, given: Any) -> list[Any] | Range:
    if isinstance(given, Range):
        return given
    if isinstance(given, str) and ".." in given:
        try:
            return Range(*(_number(end) for end in given.split("..")))
        except (ValueError, TypeError):
            raise ValueError(f"{name} has the range {given!r}, not one such as 1e-4..1e-2") from None
    values = [given] if isinstance(given, str) or not isinstance(given, Iterable) else list(given)
    if not values:
        raise ValueError(f"{name} has no values to sweep over")
    return list(dict.fromkeys(values))


def _number(text: str) -> float:
    return int(text) if text.strip().lstrip("+-").isdigit() else float(text)


def grid(space: Space) -> Iterator[dict[str, Any]]:
    """Every combination, the last option varying fastest."""
    for name, values in space.items():
        if isinstance(values, Range):
            raise ValueError(
                f"a grid needs values, and {name} has the range {values}: choose random or bayesian search"
            )
    for combination in itertools.product(*space.values()):  # type: ignore[arg-type]
        yield dict(zip(space, combination, strict=True))


def random_combinations(space: Space, seed: int) -> Iterator[dict[str, Any]]:
    """Combinations in random order: endless where there is a range, else each of them once."""
    random = np.random.default_rng(seed)
    if not has_range(space):
        combinations = list(grid(space))
        yield from (combinations[place] for place in random.permutation(len(combinations)))
        return
    while True:
        yield {
            name: values.draw(random) if isinstance(values, Range) else values[int(random.integers(len(values)))]
            for name, values in space.items()
        }


def has_range(space: Space) -> bool:
    return any(isinstance(values, Range) for values in space.values())


class Trial(NamedTuple):
    """A combination that was tried. `value`: how good it is, the larger, the better; None while that is not known."""

    options: dict[str, Any]
    value: float | None


def suggestions(space: Space, trials: list[Trial], seed: int) -> Iterator[dict[str, Any]]:
    """Combinations that promise a large value, by Optuna's tree-structured Parzen estimator.

    They depend on the arguments alone, so a sweep that was killed continues without any state of Optuna.
    """
    import optuna
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
    from optuna.trial import TrialState, create_trial

    optuna.logging.set_verbosity(optuna.logging.WARNING)

    def distribution(values: list[Any] | Range) -> Any:
        if not isinstance(values, Range):
            return CategoricalDistribution(values)
        kind: Any = IntDistribution if values.whole else FloatDistribution
        return kind(values.low, values.high, log=values.logarithmic)

    distributions = {name: distribution(values) for name, values in space.items()}
    sampler = optuna.samplers.TPESampler(seed=seed + len(trials), constant_liar=True, n_startup_trials=8)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for options, value in trials:
        state = TrialState.RUNNING if value is None else TrialState.COMPLETE
        study.add_trial(create_trial(params=options, distributions=distributions, value=value, state=state))
    for _ in range(MAX_TRIES):
        params = study.ask(distributions).params
        yield {
            name: values.rounded(params[name]) if isinstance(values, Range) else params[name]
            for name, values in space.items()
        }
