"""Opening data files. A named pipe or a device is refused: reading one could block or continue forever."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from rankcode.data.sources import BadData


def open_file(path: str | Path) -> BinaryIO:
    """A data file, opened for reading in binary mode."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {path}") from None
    if stat.S_ISDIR(mode):
        raise BadData(f"{path} is a folder, not a file")
    if not stat.S_ISREG(mode):
        raise BadData(f"{path} is not a regular file, but a pipe or a device")
    return open(path, "rb")
