"""`rankcode reproduce`."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from rankcode.cli.messages import say
from rankcode.cli.options import Device
from rankcode.cli.output_files import check_writable
from rankcode.experiments import EXPERIMENTS, experiment


@dataclass(frozen=True)
class Reproduce:
    """Reproduce figures and tables of the paper: train what is missing, draw, and show the paper's numbers beside ours.

    For example:

        rankcode reproduce fig2
        rankcode reproduce all --scale smoke
        rankcode reproduce defaults --data FOLDER
    """

    name: Annotated[
        str,
        Parameter(help=f"Which: all, {', '.join(EXPERIMENTS)}; or defaults, the study of the default settings."),
    ]
    _: KW_ONLY
    scale: Literal["smoke", "quick", "paper"] = "quick"
    """smoke: seconds, to check that it runs; quick: minutes on two cores; paper: the paper's own scale, on a GPU."""
    data: str | None = None
    """Folder that holds mnist and speech-commands, or ucr for defaults. Default: RANKCODE_DATA."""
    folder: str | None = None
    """Where figures, numbers and trained networks are kept. Default: results/reproduction at the paper's scale,
    otherwise runs/reproduction-SCALE."""
    page: str | None = None
    """The page to write; only a page that this command wrote is replaced. Default: docs/reproduction.md for
    results/reproduction, otherwise reproduction.md in the folder."""
    device: Device = "auto"
    progress: bool = True
    """Show progress."""

    def run(self) -> None:
        from rankcode.experiments.defaults import compare
        from rankcode.experiments.page import AUTHOR, write_page, written
        from rankcode.experiments.reproduction import Reproduction

        if self.name not in ("all", "defaults", *EXPERIMENTS):
            names = f"all, {', '.join(EXPERIMENTS)}, defaults"
            raise ValueError(f"there is no figure or table {self.name!r}: choose from {names}")
        kept = "results/reproduction"
        folder = self.folder or (kept if self.scale == "paper" else f"runs/reproduction-{self.scale}")
        page = Path(self.page or ("docs/reproduction.md" if folder == kept else f"{folder}/reproduction.md"))
        check_writable(page, AUTHOR, "--page")
        place = Reproduction(self.scale, Path(folder), self.data, self.device, self.progress)
        if self.name == "defaults":
            output = place.folder / "defaults.json"
            print(compare(place, output))
            return say(f"wrote {output}")
        names = tuple(EXPERIMENTS) if self.name == "all" else (self.name,)
        for name in names:
            place.check_scale(name)
        for name in names:
            module = experiment(name)
            result = module.reproduce(place)
            made = place.write(name, module.TITLE, result)
            write_page(place.folder, page)
            say(f"{module.TITLE}: {made}")
            for number in result.numbers:
                paper = "" if number.paper is None else f"  (paper: {written(number.paper, number.unit)})"
                say(f"  {number.what}: {written(number.ours, number.unit) or '-'}{paper}")
        say(f"wrote {page}")
