"""The demo: two networks learn the 2-sequence problem, one with rank coding, one conventionally.

It prints a comparison and writes a page that shows when each one answers.
"""

from __future__ import annotations

import html
import io
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from multiprocessing import get_context
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import torch

from rankcode import cells
from rankcode.experiments.run_records import share_read
from rankcode.inference import decide, trace
from rankcode.metrics import evaluate, tradeoff
from rankcode.network import Network
from rankcode.objectives import AtEnd, AtSpike
from rankcode.progress import Progress
from rankcode.rules import FireAt, Never, Threshold
from rankcode.saving.files import write_whole
from rankcode.saving.run_folder import RunFolder
from rankcode.tasks import TwoSequence
from rankcode.training.loop import Training, fit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

THRESHOLD = 0.95
PAGE = Path(__file__).with_name("demo.html")
OBJECTIVES = {"rank-coded": AtSpike(THRESHOLD), "conventional": AtEnd()}


def compare(folder: Path, examples: int, hidden_size: int, test_rows: int, seed: int) -> Path:
    """Train both networks, print a table that compares them, and return the page."""
    from rankcode import plots  # fails now rather than after training

    torch.set_num_threads(1)  # networks this small are fastest on one
    task = TwoSequence(test_rows=test_rows)
    print(f"Two LSTMs of {hidden_size} units learn from {examples:,} noisy sequences of {task.steps}")
    print("steps to tell whether a sequence has a positive or a negative mean.")
    _train_side_by_side(folder, examples, hidden_size, seed)
    runs = {name: RunFolder(folder / name) for name in OBJECTIVES}
    networks = {name: run.model("last") for name, run in runs.items()}
    histories = {name: run.records() for name, run in runs.items()}

    print("\ncomparing …")
    rows = _compare(task, networks, histories)
    batch = next(task.test.scan(200, "cpu"))
    shown = _telling_examples(networks["rank-coded"], batch.inputs)
    figures = {
        "examples": plots.plot_examples(
            batch.inputs[shown],
            [task.label_names[label] for label in batch.labels[shown].tolist()],
            {name: trace(network, batch.inputs[shown]) for name, network in networks.items()},
            THRESHOLD,
        ),
        "spike_times": plots.plot_spike_times(histories),
        "tradeoff": plots.plot_tradeoff(
            {name: tradeoff(network, task) for name, network in networks.items()}, task.limit_curves(), "Test sequences"
        ),
    }
    numbers = {"examples_count": f"{examples:,}", "units": hidden_size, "steps": task.steps}
    page = folder / "report.html"
    write_whole(page, _page(rows, figures, numbers).encode())
    print(_table(rows))
    return page


def _train(folder: Path, name: str, examples: int, hidden_size: int, seed: int) -> None:
    """Train one of the two networks; runs in its own process."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    config = Training(
        examples=examples,
        batch_size=64,
        learning_rate=0.005,
        schedule="cosine",
        max_grad_norm=1.0,
        ema_decay=0.99,
        validate_every=max(1, examples // 64 // 60),
        finish_with="last",
        seed=seed,
        device="cpu",
        folder=str(folder / name),
        progress=False,
    )
    fit(Network(cells.LSTM(1, hidden_size), outputs=1), TwoSequence(), OBJECTIVES[name], config)


def _train_side_by_side(folder: Path, examples: int, hidden_size: int, seed: int) -> None:
    """Train both networks at once, and show one line of progress for them."""
    with ProcessPoolExecutor(len(OBJECTIVES), get_context("spawn")) as pool:
        trainings = [pool.submit(_train, folder, name, examples, hidden_size, seed) for name in OBJECTIVES]
        with Progress(examples) as bar:
            waiting = set(trainings)
            while waiting:
                waiting = wait(waiting, timeout=0.5, return_when=FIRST_EXCEPTION).not_done
                latest = {name: RunFolder(folder / name).records()[-1:] for name in OBJECTIVES}
                done = min((record["examples"] for records in latest.values() for record in records), default=0)
                if all(latest.values()) and bar.due(done):
                    texts = [f"{name} {_at_first_spike(record)}" for name, (record,) in latest.items()]
                    bar.show(min(done, examples), ", ".join(texts))
        for training in trainings:
            training.result()


def _at_first_spike(record: dict[str, Any]) -> str:
    report = record["first_spike"]
    return f"{100 * report['accuracy']:.1f} % at step {report['mean_steps']:.1f}"


def _compare(
    task: TwoSequence, networks: dict[str, Network], histories: dict[str, list[dict[str, Any]]]
) -> list[dict[str, str]]:
    """The comparison: one row of a table for each way of answering."""
    coded, conventional = networks["rank-coded"], networks["conventional"]
    early = evaluate(coded, task, Threshold(THRESHOLD))
    same = max(1, round(early.mean_steps))
    ways = [
        ("rank-coded", "first spike", early),
        ("conventional", "first spike", evaluate(conventional, task, Threshold(THRESHOLD))),
        ("conventional", f"at step {same}", evaluate(conventional, task, FireAt(same))),
        ("conventional", "at the end", evaluate(conventional, task, Never())),
    ]
    return [
        {
            "network": name,
            "answers": way,
            "accuracy": f"{100 * report.accuracy:.2f} %",
            "mean steps read": f"{report.mean_steps:.1f} of {task.steps}",
            "training computed": f"{100 * share_read(histories[name], task.steps):.0f} %",
        }
        for name, way, report in ways
    ]


def _telling_examples(network: Network, inputs: torch.Tensor) -> list[int]:
    """Four rows, from one that is answered early to one that is answered last."""
    order = decide(network, inputs, rule=Threshold(THRESHOLD)).steps.argsort(stable=True)
    return order[torch.linspace(0, len(order) - 1, 4).long()].tolist()


def _table(rows: list[dict[str, str]]) -> str:
    widths = {column: max(len(column), *(len(row[column]) for row in rows)) for column in rows[0]}
    lines = [rows[0], ["─" * width for width in widths.values()], *(row.values() for row in rows)]
    return "\n".join("  ".join(f"{cell:<{w}}" for cell, w in zip(line, widths.values(), strict=True)) for line in lines)


def _page(rows: list[dict[str, str]], figures: dict[str, Figure], numbers: dict[str, Any]) -> str:
    """One HTML page that needs no other file."""
    head = "".join(f"<th>{html.escape(column)}</th>" for column in rows[0])
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row.values())}</tr>" for row in rows)
    table = _wide(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
    pictures = {name: _wide(_svg(figure)) for name, figure in figures.items()}
    return Template(PAGE.read_text(encoding="utf-8")).substitute(pictures, table=table, **numbers)


def _wide(content: str) -> str:
    """A part of the page that scrolls sideways where the screen is narrow."""
    return f'<div class="wide">{content}</div>'


def _svg(figure: Figure) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg")
    return buffer.getvalue()[buffer.getvalue().index("<svg") :]
