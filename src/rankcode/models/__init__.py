"""The pretrained networks that ship with rankcode: `rankcode.load("speech-commands")`. Each has a card beside it."""

from __future__ import annotations

from pathlib import Path

NAMES = ("speech-commands",)


def model_path(name: str | Path) -> Path:
    """The model file of a pretrained network; any other name, or one that is a file or folder here, is a path."""
    path = Path(name)
    if str(name) in NAMES and not path.exists():
        return Path(__file__).parent / f"{name}.safetensors"
    return path
