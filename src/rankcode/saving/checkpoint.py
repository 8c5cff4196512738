"""checkpoint.pt: the state of a run between two batches, from which it continues.

The file is a line with a checksum, and what `torch.save` writes. The checksum is compared before anything is read, so
the entries are not checked one by one.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import torch

from rankcode.data.sources import digest
from rankcode.saving.description import content_of, damaged
from rankcode.saving.files import write_whole

HEADER = b"rankcode checkpoint "


def write_checkpoint(file: Path, content: dict[str, Any]) -> None:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    write_whole(file, _first_line(buffer.getvalue()) + buffer.getvalue())


def read_checkpoint(file: Path) -> dict[str, Any]:
    with open(file, "rb") as opened, content_of(file):
        try:
            first_line, saved = opened.readline(), opened.read()
            if first_line != _first_line(saved):
                raise ValueError
            return torch.load(io.BytesIO(saved), map_location="cpu", weights_only=True)
        except Exception:
            raise damaged("it is cut short, or its content does not match its checksum") from None


def is_checkpoint(file: Path) -> bool:
    return file.is_file() and file.read_bytes().startswith(HEADER)


def _first_line(saved: bytes) -> bytes:
    return HEADER + digest([saved]).encode() + b"\n"
