"""Atomic writes, and locks on folders."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # on Windows, where folders are not locked
    fcntl = None


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that at any moment it is the old one or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(part, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def alone_in(folder: Path, wait: bool) -> Iterator[None]:
    """Make the folder, and keep others out. Where one is in it already: wait, or raise BlockingIOError."""
    folder.mkdir(parents=True, exist_ok=True)
    if fcntl is None:
        yield
        return
    lock = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise
        except OSError:
            pass  # a file system without locks
        try:
            yield
        finally:
            with suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_UN)  # processes that were forked may still have the folder open
    finally:
        os.close(lock)
