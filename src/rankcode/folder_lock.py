"""One process at a time in a folder. The system lets go of the lock when a process ends, however it does."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # on Windows, where nobody is kept out
    fcntl = None


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
