"""`rankcode demo`."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from rankcode.cli.messages import say
from rankcode.experiments.demo import compare
from rankcode.saving.run_folder import free_folder


@dataclass(frozen=True)
class Demo:
    """Train a rank-coded and a conventional network side by side, and write a page that compares them.

    For example:

        rankcode demo --examples 20000
    """

    _: KW_ONLY
    folder: str | None = None
    """Where the runs and the page are kept. Default: runs/demo, or the next free name."""
    examples: int = 96_000
    """Sequences that each network is trained on."""
    hidden_size: int = 32
    """LSTM units of each network."""
    test_rows: int = 50_000
    """New sequences that both are tested on."""
    seed: int = 0
    """Seed of the weights and of the data."""

    def run(self) -> None:
        if min(self.examples, self.hidden_size, self.test_rows) < 1 or self.seed < 0:
            raise ValueError("--examples, --hidden-size and --test-rows must be at least 1, and --seed at least 0")
        folder = Path(self.folder) if self.folder else free_folder(Path("runs/demo"))
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ValueError(f"{folder} exists and is not an empty folder: choose another --folder")
        page = compare(folder, self.examples, self.hidden_size, self.test_rows, self.seed)
        say(f"The page {page} compares them. Both runs are kept beside it, in {folder}.")
