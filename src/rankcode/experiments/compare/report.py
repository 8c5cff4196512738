"""What a comparison found: a picture of mean ranks, and tables in Markdown."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure

from rankcode.experiments.compare.ranks import different, finished, groups, mean_ranks, means_at, sets_of
from rankcode.plots.style import BLUE, DARK
from rankcode.saving.files import write_whole

OURS = ("kernels", "recurrent", "auto")
COLUMNS = {  # and the digits that are shown
    "cost": 4, "accuracy": 3, "earliness": 3, "harmonic_mean": 3, "area": 3, "fit_seconds": 1, "milliseconds": 2,
}  # fmt: skip


def write_report(records: Sequence[dict[str, Any]], folder: Path) -> str:
    """Write ranks.png and table.md into a folder, and return the table."""
    text, picture = tables(records), io.BytesIO()
    plot_ranks(finished(records)).savefig(picture, format="png", dpi=150)
    write_whole(folder / "ranks.png", picture.getvalue())
    write_whole(folder / "table.md", text.encode())
    return text


def tables(records: Sequence[dict[str, Any]]) -> str:
    """For each α, the means over sets of each method's means over seeds; the costs on each set; what is missing."""
    alphas, ranked = sorted({record["alpha"] for record in records}), finished(records)
    parts = [*(summary(ranked, alpha) for alpha in alphas), *(by_set(records, alpha) for alpha in alphas)]
    if unfinished := {record["set"] for record in records} - {record["set"] for record in ranked}:
        parts.append(f"Not ranked, because not every method has been run: {', '.join(sorted(unfinished))}.")
    return "\n\n".join([*parts, *missing(records)]) + "\n"


def summary(records: Sequence[dict[str, Any]], alpha: float) -> str:
    means = {column: means_at(records, alpha, column) for column in COLUMNS}
    lines = [
        f"| α = {alpha:g} | mean rank | cost | accuracy | earliness | harmonic mean | area | fit (s) | ms a case "
        "| sets | seeds |",
        "|---" * 11 + "|",
    ]
    for name, rank in mean_ranks(means["cost"]).items():
        by_column = [(means[column].get(name), digits) for column, digits in COLUMNS.items()]
        cells = ["" if sets is None else f"{fmean(sets.values()):.{digits}f}" for sets, digits in by_column]
        seeds = len({r["seed"] for r in records if r["method"] == name and r["alpha"] == alpha and "cost" in r})
        lines.append(f"| {name} | {rank:.2f} | {' | '.join(cells)} | {len(means['cost'][name])} | {seeds} |")
    return "\n".join(lines)


def by_set(records: Sequence[dict[str, Any]], alpha: float) -> str:
    """The cost of every method on every set; the lowest in bold."""
    costs = means_at(records, alpha)
    names = list(mean_ranks(costs))
    lines = [f"| cost at α = {alpha:g} | {' | '.join(names)} |", "|---" * (1 + len(names)) + "|"]
    for each in sets_of(costs):
        own = [costs[name].get(each) for name in names]
        least = min(value for value in own if value is not None)
        cells = ["–" if v is None else f"**{v:.3f}**" if v <= least + 1e-9 else f"{v:.3f}" for v in own]
        lines.append(f"| {each} | {' | '.join(cells)} |")
    return "\n".join(lines)


def missing(records: Sequence[dict[str, Any]]) -> list[str]:
    """What a method could not read, or where it failed: a list in Markdown, or nothing."""
    found = {
        f"- {record['method']} on {record['set']}: {reason} (seed {record['seed']})"
        for record in records
        if (reason := record.get("left_out") or record.get("error"))
    }
    return ["Without a result:\n\n" + "\n".join(sorted(found))] if found else []


def plot_ranks(records: Sequence[dict[str, Any]]) -> Figure:
    """Mean ranks at each α, the best on the left; a bar joins methods that do not differ significantly."""
    alphas = sorted({record["alpha"] for record in records if "cost" in record})
    count = max((len(means_at(records, alpha)) for alpha in alphas), default=2)
    rows = (count + 1) // 2
    figure = Figure(figsize=(9, len(alphas) * (1.1 + 0.3 * rows)), layout="constrained")
    for axes, alpha in zip(figure.subplots(len(alphas), squeeze=False)[:, 0], alphas, strict=True):
        costs = means_at(records, alpha)
        ranks = mean_ranks(costs)
        joined = groups(ranks, different(costs))
        depth = 0.35 * (len(joined) + 1)  # below the bars come the names
        low, high = 1, max(2, len(ranks))
        axes.set(xlim=(low - 0.45 * high, high + 0.45 * high), ylim=(-depth - 0.55 * rows - 0.2, 1.0))
        axes.axis("off")
        axes.set_title(f"cost at α = {alpha:g}: mean rank over {len(sets_of(costs))} sets", loc="left", fontsize=11)
        axes.plot([low, high], [0, 0], color=DARK, lw=1.2)
        for rank in range(low, high + 1):
            axes.plot([rank, rank], [0, 0.15], color=DARK, lw=1.2)
            axes.text(rank, 0.25, str(rank), ha="center", va="bottom", fontsize=9)
        for number, (name, rank) in enumerate(ranks.items()):
            left = number < (len(ranks) + 1) // 2
            line = number if left else len(ranks) - 1 - number
            y, x = -depth - 0.55 * line, low - 0.1 * high if left else high + 0.1 * high
            colour, weight = (BLUE, "bold") if name in OURS else (DARK, "normal")
            axes.plot([rank, rank, x], [0, y, y], color=colour, lw=0.9)
            style = {"va": "center", "color": colour, "weight": weight}
            if left:
                axes.text(x - 0.05, y, f"{name}  {rank:.2f}", ha="right", **style)
            else:
                axes.text(x + 0.05, y, f"{rank:.2f}  {name}", ha="left", **style)
        for number, names in enumerate(joined):
            y = -0.35 * (number + 0.6)
            axes.plot([ranks[names[0]] - 0.06, ranks[names[-1]] + 0.06], [y, y], color=DARK, lw=4, alpha=0.75)
    return figure
