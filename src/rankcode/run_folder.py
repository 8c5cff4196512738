"""The folder of a training run: config.json, metrics.jsonl, checkpoint.pt, best and last model, a plot.

Every file but metrics.jsonl is written whole or not at all. A run that was cut off goes on from its
checkpoint; lines of metrics.jsonl written after that checkpoint are dropped and written again.
"""

from __future__ import annotations

import io
import json
import pickle
import platform
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rankcode.model_file import load, save, write_whole
from rankcode.network import Network

FORMAT = 1


class RunFolder:
    def __init__(self, path: str | Path):
        self.path = Path(path)

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """A run folder that exists, checked."""
        folder = cls(path)
        folder.config()
        return folder

    def config(self) -> dict[str, Any]:
        file = self.path / "config.json"
        if not file.is_file():
            raise FileNotFoundError(f"{self.path} is not a run folder: it has no config.json")
        try:
            config = json.loads(file.read_text())
            found = config["format"]
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{file} is damaged: it is not the configuration of a run") from None
        if found != FORMAT:
            raise ValueError(
                f"{self.path} was written in format {found}, this version of rankcode reads format {FORMAT}"
            )
        return config

    def begin(self, config: dict[str, Any], resume: bool) -> dict[str, Any] | None:
        """Make the folder, or take up the run in it: the checkpoint to go on from, or None to start."""
        config = json.loads(json.dumps(config))
        if (self.path / "config.json").exists():
            if not resume:
                raise ValueError(f"{self.path} holds a run already: resume it, or choose another folder")
            written = self.config()
            for part, settings in config.items():
                if written.get(part) != settings:
                    raise ValueError(f"{self.path} holds a run of another {part}: {_difference(written[part], settings)}")
            return self.checkpoint()
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise ValueError(f"{self.path} exists and is not a run folder: choose another")
        self.path.mkdir(parents=True, exist_ok=True)
        content = {"format": FORMAT, "versions": versions(), **config}
        write_whole(self.path / "config.json", json.dumps(content, indent=2).encode() + b"\n")
        return None

    def checkpoint(self) -> dict[str, Any] | None:
        """The latest checkpoint, or None before the first. metrics.jsonl is cut back to it."""
        file = self.path / "checkpoint.pt"
        if not file.exists():
            write_whole(self.path / "metrics.jsonl", b"")
            return None
        try:
            checkpoint = torch.load(file, map_location="cpu", weights_only=True)
            batch = checkpoint["batch"]
        except (RuntimeError, EOFError, KeyError, TypeError, pickle.UnpicklingError):
            raise ValueError(f"{file} is damaged or cut short: the run cannot go on from it") from None
        kept = [record for record in self.records() if record["batch"] <= batch]
        write_whole(self.path / "metrics.jsonl", b"".join(_line(record) for record in kept))
        return checkpoint

    def write_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        buffer = io.BytesIO()
        torch.save(checkpoint, buffer)
        write_whole(self.path / "checkpoint.pt", buffer.getvalue())

    def records(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl; a last line that was cut short is left out."""
        file = self.path / "metrics.jsonl"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        try:
            return [json.loads(line) for line in lines if line.endswith("\n")]
        except ValueError:
            raise ValueError(f"{file} is damaged: a line of it is not JSON") from None

    def write_record(self, record: dict[str, Any]) -> None:
        with open(self.path / "metrics.jsonl", "ab") as file:
            file.write(_line(record))

    def write_model(self, name: str, network: Network) -> None:
        save(network, self.path / f"{name}.safetensors")

    def write_plot(self) -> None:
        """training.png, where matplotlib is installed."""
        if find_spec("matplotlib") is not None:
            from rankcode.plots import plot_training

            plot_training(self.records(), self.path / "training.png")

    def model(self, name: str = "best", network: Network | None = None) -> Network:
        return load(self.path / f"{name}.safetensors", network)


def versions() -> dict[str, str]:
    try:
        own = version("rankcode")
    except PackageNotFoundError:  # run from a source tree that is not installed
        own = "source"
    return {"rankcode": own, "torch": torch.__version__, "numpy": np.__version__, "python": platform.python_version()}


def _line(record: dict[str, Any]) -> bytes:
    return json.dumps(record).encode() + b"\n"


def _difference(written: Any, wanted: Any) -> str:
    if isinstance(written, dict) and isinstance(wanted, dict):
        for key in sorted(written.keys() | wanted.keys()):
            if written.get(key) != wanted.get(key):
                return f"{key} is {written.get(key)!r} there and {wanted.get(key)!r} here"
    return f"{written!r} there and {wanted!r} here"
