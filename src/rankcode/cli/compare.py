"""`rankcode compare`."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from rankcode.cli.messages import say, suggestion


@dataclass(frozen=True)
class Compare:
    """Compare our early classifiers with others, on the same splits and seeds.

    Writes each result to results.jsonl as soon as it is known, then ranks.png and table.md. A comparison that was
    stopped continues where it stopped.

    For example:

        rankcode compare --data ucr --methods kernels recurrent every-step
        rankcode compare --data ucr --seeds 1 --peers-python peers/bin/python
    """

    _: KW_ONLY
    data: str
    """Folder with a folder or a file for each data set; each has a training and a test split."""
    methods: tuple[str, ...] = ()
    """Methods to compare. Default: all but auto, which is the same as kernels for fewer than 2,000 rows."""
    sets: tuple[str, ...] = ()
    """Names of the sets. Default: all in the folder."""
    seeds: int = 3
    """Number of seeds, from 0 on."""
    alphas: tuple[float, ...] = (0.1, 0.5, 1.0)
    """Costs of reading a whole row; a wrong answer costs 1."""
    output: str = "compare"
    """Folder for the results."""
    peers_python: str | None = None
    """Python of an environment that has aeon and tslearn (pip install 'rankcode[compare]'). Default: this one."""
    time_limit: float = 3600
    """Seconds that a method of aeon or tslearn may take for one set and seed."""
    progress: bool = True
    """Show progress."""

    def run(self) -> None:
        from rankcode.experiments.compare.methods import methods
        from rankcode.experiments.compare.report import write_report
        from rankcode.experiments.compare.running import compare, sets_in

        if self.seeds < 1 or not self.alphas or min(self.alphas) < 0:
            raise ValueError("--seeds must be at least 1, and --alphas at least 0")
        known = methods(self.peers_python, self.time_limit)
        for name in self.methods:
            if name not in known:
                close = suggestion(name, known) or f"choose from {', '.join(known)}"
                raise ValueError(f"there is no method {name!r}: {close}")
        chosen = {name: known[name] for name in self.methods or known if name != "auto" or self.methods}
        sets = sets_in(Path(self.data))
        names = {path.stem for path in sets}
        for name in self.sets:
            if name not in names:
                raise ValueError(f"there is no set {name!r} in {self.data}: {suggestion(name, names)}".rstrip(": "))
        sets = [path for path in sets if not self.sets or path.stem in self.sets]
        folder = Path(self.output)
        records = compare(sets, chosen, range(self.seeds), self.alphas, folder, self.progress)
        print(write_report(records, folder))
        say(f"wrote results.jsonl, ranks.png and table.md in {folder}")
