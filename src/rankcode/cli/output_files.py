"""Files that a command writes: a file that something else wrote is never replaced."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

from rankcode.saving.files import whole_file, write_whole, writing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEAD = 1000  # bytes at the start of a file in which it says what wrote it


class OutputFiles:
    """OUTPUT.json and OUTPUT.png of a command. Both say what wrote them; only such files are replaced."""

    def __init__(self, output: str, command: str):
        self.stem, self.author = output.removesuffix(".json").removesuffix(".png"), f"rankcode {command}"
        if not Path(self.stem).name or self.stem.endswith(("/", "\\")) or Path(self.stem).is_dir():
            raise ValueError(f"--output {output} is a folder: give the name of the files too, such as {command}")
        self.json, self.png = Path(f"{self.stem}.json"), Path(f"{self.stem}.png")
        for path in (self.json, self.png):
            check_writable(path, self.author, "--output")

    def write(self, content: dict[str, Any], figure: Figure) -> None:
        write_whole(self.json, json.dumps({"written by": self.author, **content}, indent=2).encode() + b"\n")
        write_picture(self.png, figure, self.author)


class Picture:
    """A PNG file of a command, given as --plot. It says what wrote it; only such a file is replaced."""

    def __init__(self, path: str, command: str):
        self.path, self.author = Path(path), f"rankcode {command}"
        if self.path.suffix.lower() != ".png":
            raise ValueError(f"--plot takes the name of a .png file, not {path!r}")
        check_writable(self.path, self.author, "--plot")
        import_module("rankcode.plots")  # raises if matplotlib is missing, before anything is computed

    def write(self, figure: Figure) -> None:
        write_picture(self.path, figure, self.author)


def write_picture(path: Path, figure: Figure, author: str) -> None:
    with whole_file(path) as picture:
        figure.savefig(picture, format="png", dpi=150, metadata={"Software": author})


def check_writable(path: Path, author: str, option: str) -> None:
    """Make the folder of a file. Raise if the file cannot be written, or exists without `author` near its beginning."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder: choose another {option}")
    if path.parent.is_file():
        raise ValueError(f"{path.parent} is a file, not a folder: choose another {option}")
    if path.exists():
        with open(path, "rb") as file:
            if author.encode() not in file.read(HEAD):
                raise ValueError(f"{path} exists, and this command did not write it: choose another {option}")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=path.parent).close()
