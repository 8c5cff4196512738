"""`rankcode data`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rankcode.data.downloads import download


@dataclass(frozen=True)
class Data:
    """Download a data set from its publisher: checked, and resumed where it was cut off."""

    name: Literal["mnist", "speech-commands", "speech-commands-v0.02"]
    """Which: mnist is 11 MB, speech-commands (v0.01) 1.5 GB, speech-commands-v0.02 2.4 GB."""
    to: str | None = None
    """Folder to put it into. Default: NAME in the folder that RANKCODE_DATA names, or in ~/.cache/rankcode."""

    def run(self) -> None:
        print(f"{self.name} is in {download(self.name, self.to)}")
