"""Atomic writes, and locks on folders."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # on Windows, where folders are not locked
    fcntl = None

FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Name the file that cannot be written, and say what to do."""
    try:
        yield
    except OSError as error:
        advice = "free some space" if error.errno in FULL else "choose a folder that can be written to"
        named = type(error)(f"{path} cannot be written: {error.strerror or error}; {advice}")
        named.errno = error.errno
        raise named from None


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that at any moment it is the old one or the new one, never incomplete."""
    with whole_file(path) as file:
        file.write(content)


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which gets its name only when it is complete."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with writing(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(part, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
        finally:
            with suppress(OSError):
                part.unlink(missing_ok=True)


@contextmanager
def alone_in(folder: Path, wait: bool) -> Iterator[None]:
    """Make the folder and lock it. While another process holds the lock: wait, or raise BlockingIOError."""
    with writing(folder):
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
        yield
    finally:
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_UN)  # forked processes may still have the folder open
        os.close(lock)
