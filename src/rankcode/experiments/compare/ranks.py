"""Which method is best over many sets: mean ranks, and which differences are significant.

On each set, methods are ranked by cost, the best 1; equals share their mean rank. A set that a method cannot read
counts only for the others. Pairs are tested with Wilcoxon's signed-rank test over the sets that both have, with Holm's
correction for the number of pairs, as Benavoli, Corani, Mangili (JMLR 2016) advise instead of Nemenyi's test: whether
two methods differ does not depend on which others are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from statistics import fmean
from typing import Any

from scipy.stats import rankdata, wilcoxon

SIGNIFICANCE = 0.05
Costs = dict[str, dict[str, float]]  # by method and set


def means_at(records: Iterable[dict[str, Any]], alpha: float, column: str = "cost") -> Costs:
    """Means over seeds, of the costs or of another column."""
    found: dict[str, dict[str, list[float]]] = {}
    for record in records:
        if record["alpha"] == alpha and record.get(column) is not None:
            found.setdefault(record["method"], {}).setdefault(record["set"], []).append(record[column])
    return {name: {each: fmean(values) for each, values in sets.items()} for name, sets in found.items()}


def finished(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records of the sets on which every method has been run at every α, whether it could read them or not. An
    unfinished comparison ranks methods on these."""
    run: dict[str, set[tuple[str, float]]] = {}
    for record in records:
        run.setdefault(record["set"], set()).add((record["method"], record["alpha"]))
    everything = set().union(*run.values())
    return [record for record in records if run[record["set"]] == everything]


def sets_of(costs: Costs) -> list[str]:
    """The sets on which some method has a cost."""
    return sorted(set().union(*costs.values()))


def mean_ranks(costs: Costs) -> dict[str, float]:
    """The mean rank of each method over its sets, the best first."""
    ranks: dict[str, list[float]] = {name: [] for name in costs}
    for each in sets_of(costs):
        names = [name for name in costs if each in costs[name]]
        for name, rank in zip(names, rankdata([round(costs[name][each], 9) for name in names]), strict=True):
            ranks[name].append(float(rank))
    means = {name: fmean(values) for name, values in ranks.items()}
    return dict(sorted(means.items(), key=lambda item: item[1]))


def different(costs: Costs) -> set[frozenset[str]]:
    """The pairs of methods whose costs differ significantly."""
    values = {}
    for first, second in combinations(costs, 2):
        both = sorted(costs[first].keys() & costs[second].keys())
        differences = [costs[first][each] - costs[second][each] for each in both]
        nothing = not any(differences)
        values[frozenset((first, second))] = 1.0 if nothing else float(wilcoxon(differences).pvalue)  # type: ignore[attr-defined]
    found = set()
    for number, pair in enumerate(sorted(values, key=lambda each: values[each])):
        if values[pair] > SIGNIFICANCE / (len(values) - number):
            break
        found.add(pair)
    return found


def groups(ranks: dict[str, float], apart: set[frozenset[str]]) -> list[list[str]]:
    """The longest runs of methods, in the order of their ranks, in which no two differ significantly."""
    names, found = list(ranks), []
    for begin in range(len(names)):
        end = begin + 1
        while end < len(names) and not any(frozenset((names[end], each)) in apart for each in names[begin:end]):
            end += 1
        if end - begin > 1 and not (found and names[end - 1] in found[-1]):
            found.append(names[begin:end])
    return found
