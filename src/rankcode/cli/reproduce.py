"""`rankcode reproduce`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rankcode.experiments import EXPERIMENTS, experiment


@dataclass(frozen=True)
class Reproduce:
    """Make figures and tables of the paper: train what is not yet trained, draw, and set its numbers beside ours."""

    name: str
    """Which: all, or one of fig1, fig2, fig3, table1, fig4 … fig10."""
    scale: Literal["smoke", "quick", "paper"] = "quick"
    """smoke: seconds, to see that it runs; quick: minutes on two cores; paper: the paper's own, on a GPU."""
    data: str | None = None
    """Folder that holds mnist and speech-commands. Default: RANKCODE_DATA."""
    folder: str | None = None
    """Where figures, numbers and trained networks are kept. Default: results/reproduction at the paper's scale, else
    runs/reproduction-SCALE."""
    page: str | None = None
    """The page that is made of them. Default: docs/reproduction.md for results/reproduction, else one in the folder."""
    device: str = "auto"
    """cpu, cuda, cuda:N; auto takes a GPU where there is one."""
    progress: bool = True
    """Show progress."""

    def run(self) -> None:
        from rankcode.experiments.page import write_page, written
        from rankcode.experiments.reproduction import Reproduction

        if self.name != "all" and self.name not in EXPERIMENTS:
            raise ValueError(f"there is no figure or table {self.name!r}: choose from all, {', '.join(EXPERIMENTS)}")
        if self.scale not in ("smoke", "quick", "paper"):
            raise ValueError(f"scale must be smoke, quick or paper, not {self.scale!r}")
        kept = "results/reproduction"
        folder = self.folder or (kept if self.scale == "paper" else f"runs/reproduction-{self.scale}")
        page = self.page or ("docs/reproduction.md" if folder == kept else f"{folder}/reproduction.md")
        place = Reproduction(self.scale, Path(folder), self.data, self.device, self.progress)
        names = tuple(EXPERIMENTS) if self.name == "all" else (self.name,)
        for name in names:
            place.check_scale(name)
        for name in names:
            module = experiment(name)
            result = module.reproduce(place)
            print(f"{module.TITLE}: {place.write(name, module.TITLE, result)}")
            for number in result.numbers:
                paper = "" if number.paper is None else f"  (paper: {written(number.paper, number.unit)})"
                print(f"  {number.what}: {written(number.ours, number.unit) or '-'}{paper}")
            write_page(place.folder, Path(page))
        print(f"wrote {page}")
