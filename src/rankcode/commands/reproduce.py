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
    folder: str = "results/reproduction"
    """Where figures, numbers and trained networks are kept."""
    page: str = "docs/reproduction.md"
    """The page that is made of them."""
    device: str = "auto"
    """cpu, cuda, cuda:N; auto takes a GPU where there is one."""
    progress: bool = True
    """Show progress."""

    def run(self) -> None:
        from rankcode.experiments.page import write_page
        from rankcode.experiments.reproduction import Reproduction

        if self.name != "all" and self.name not in EXPERIMENTS:
            raise ValueError(f"there is no figure or table {self.name!r}: choose from all, {', '.join(EXPERIMENTS)}")
        if self.scale not in ("smoke", "quick", "paper"):
            raise ValueError(f"scale must be smoke, quick or paper, not {self.scale!r}")
        place = Reproduction(self.scale, Path(self.folder), self.data, self.device, self.progress)
        for name in EXPERIMENTS if self.name == "all" else (self.name,):
            module = experiment(name)
            result = module.reproduce(place)
            folder = place.write(name, module.TITLE, result)
            print(f"{module.TITLE}: {folder}")
            for number in result.numbers:
                paper = "" if number.paper is None else f"  (paper {number.paper})"
                ours = "-" if number.ours is None else f"{number.ours:.2f}"
                print(f"  {number.what}: {ours} {number.unit}{paper}")
            write_page(place.folder, Path(self.page))
        print(f"wrote {self.page}")
