"""docs/reproduction.md, from the numbers.json of every figure."""

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
networks*, ICLR 2022. Its figures and tables, the paper's numbers beside ours; `rankcode reproduce all` makes this page.
No model is selected on test data: a section has the last model of each training, or, where it says so, the best one on
validation data. Times are steps read, from 1, with sequences that never fire counted in full; where the paper counts
otherwise, both are given. Tables have means over seeds, with ± their standard deviation, or, without ±, one seed;
pictures have the first. Seconds of training are no measure of speed: several trainings shared the machine, not always
as many. What early answers save in time was measured apart and is in `results/reproduction/README.md`.
"""
SCALES = {
    "smoke": "smoke, to see that it runs: what it says here means nothing.",
    "quick": "quick: small networks, short trainings.",
    "paper": "paper.",
}


def write_page(folder: Path, page: Path) -> None:
    """One section for each figure that there are numbers of."""
    sections = [HEAD]
    for name in EXPERIMENTS:
        file = folder / name / "numbers.json"
        if file.exists():
            sections.append(section(name, json.loads(file.read_text()), Path(os.path.relpath(folder, page.parent))))
    missing = [name for name in EXPERIMENTS if not (folder / name / "numbers.json").exists()]
    if missing:
        sections.append(f"Not made yet: {', '.join(missing)}.\n")
    page.parent.mkdir(parents=True, exist_ok=True)
    write_whole(page, "\n".join(sections).encode())


def section(name: str, found: dict[str, Any], folder: Path) -> str:
    lines = [f"## {found['title']}", "", f"Scale: {SCALES[found['scale']]} {found['text']}", ""]
    if found.get("figure", True):
        lines += [f"![{found['title']}]({(folder / name / f'{name}.png').as_posix()})", ""]
    lines += ["| | paper | ours | |", "|---|---|---|---|"]
    for number in found["numbers"]:
        paper, ours = written(number["paper"], number["unit"]), written(number["ours"], number["unit"])
        if number["spread"] is not None:
            ours += f" ± {number['spread']:.2f}"
        lines.append(f"| {number['what']} | {paper} | {ours} | {number['note']} |")
    return "\n".join(lines) + "\n"


def written(value: float | str | None, unit: str) -> str:
    """A number of the paper or of ours, with its unit; nothing where there is none."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return value if isinstance(value, str) else f"{value:.2f} {unit}".strip()
