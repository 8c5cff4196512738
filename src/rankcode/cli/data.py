"""`rankcode data`."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal

from rankcode.cli.messages import say
from rankcode.data.downloads import download


@dataclass(frozen=True)
class Data:
    """Download a public data set and check it; an interrupted download continues.

    For example:

        rankcode data mnist
        rankcode data speech-commands --to /data/speech
    """

    name: Literal["mnist", "speech-commands", "speech-commands-v0.02"]
    """Data set: mnist is 11 MB, speech-commands (v0.01) 1.5 GB, speech-commands-v0.02 2.4 GB."""
    _: KW_ONLY
    to: str | None = None
    """Folder to put it into. Default: NAME in the folder that RANKCODE_DATA names, or in ~/.cache/rankcode."""

    def run(self) -> None:
        say(f"{self.name} is in {download(self.name, self.to)}")
