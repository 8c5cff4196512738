"""Writes docs/reproduction.md from the numbers.json of every figure."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from rankcode.experiments import EXPERIMENTS
from rankcode.saving.files import write_whole

AUTHOR = "Written by `rankcode reproduce`"  # marks the page, so that no other file is replaced by it
HEAD = f"""<!-- {AUTHOR}. -->

# The paper, reproduced

Rank coding: Jeffares, Guo, Stenetorp and Moraitis, *Spike-inspired rank coding for fast and accurate recurrent neural
networks*, ICLR 2022. This page shows its figures and tables, with the paper's numbers beside ours.
`rankcode reproduce all --scale paper` makes it from the runs in `results/reproduction`, and trains those that are
missing.

No model is selected on test data: each section uses the last model of each run or, where stated, the best one on
validation data. Times are steps read, counted from 1; sequences that never fire count with their full length. Where the
paper counts differently, both numbers are given. Tables show means over seeds ± their standard deviation; a number
without ± is from one seed. Figures show the first seed. Several runs shared the GPU, so training times are not
comparable; `rankcode bench` measures time (`results/bench`).
"""
SCALES = {
    "smoke": " (only to show that the code runs: the numbers mean nothing)",
    "quick": " (small networks, short training)",
    "paper": "",
}


def write_page(folder: Path, page: Path) -> None:
    """Write one section for each figure that has numbers."""
    files = {name: folder / name / "numbers.json" for name in EXPERIMENTS}
    made = {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}
    beside = Path(os.path.relpath(folder, page.parent))
    sections = [HEAD, *(section(name, found, beside) for name, found in made.items())]
    if missing := [name for name in EXPERIMENTS if name not in made]:
        sections.append(f"Not made yet: {', '.join(missing)}.\n")
    page.parent.mkdir(parents=True, exist_ok=True)
    write_whole(page, "\n".join(sections).encode())


def section(name: str, found: dict[str, Any], folder: Path) -> str:
    scale = found["scale"]
    made = f"Made by `rankcode reproduce {name} --scale {scale}`{SCALES[scale]}. {data_line(found['data'])}".rstrip()
    lines = [f"## {found['title']}", "", made, "", found["text"], ""]
    if found["figure"]:
        lines += [f"![{found['title']}]({(folder / name / f'{name}.png').as_posix()})", ""]
    lines += ["| | paper | ours | |", "|---|---|---|---|"]
    for number in found["numbers"]:
        paper, ours = written(number["paper"], number["unit"]), written(number["ours"], number["unit"])
        if number["spread"] is not None:
            ours += f" ± {number['spread']:.2f}"
        lines.append(f"| {number['what']} | {paper} | {ours} | {number['note']} |")
    return "\n".join(lines) + "\n"


def data_line(data: list[dict[str, Any]]) -> str:
    """The test data of a figure, in a sentence."""
    parts = []
    for each in data:
        fingerprint = f", fingerprint `{each['fingerprint']}`" if "fingerprint" in each else ", generated"
        parts.append(f"{each['task']}, {each['rows']:,} test rows{fingerprint}")
    return f"Data: {'; '.join(parts)}." if parts else ""


def written(value: float | str | None, unit: str) -> str:
    """A number with its unit; the empty string for None and NaN."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return value if isinstance(value, str) else f"{value:.2f} {unit}".strip()
