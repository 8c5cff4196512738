"""Sound files: finding them in folders, and reading their samples in blocks.

Every format that libsndfile reads is accepted, at any sample rate, with any number of channels. A recording is never
in memory as a whole: `sound_blocks` yields a few seconds at a time.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from rankcode.data.open_file import open_file
from rankcode.data.sources import BadData

SUFFIXES = (".wav", ".flac", ".ogg", ".opus", ".mp3", ".aiff", ".aif", ".au")
BLOCK = 1 << 18  # samples read at once: 16 s at 16 kHz, 1 MB
MIN_SAMPLE_RATE, MAX_SAMPLE_RATE = 1_000, 1_000_000  # Hz; a rate outside is a damaged header
MAX_HOURS = 24  # of one recording: a small compressed file can hold days of silence
MAX_CHUNKS = 1_000  # of a WAV or AIFF file before its samples; real files have fewer than ten
UNKNOWN_LENGTH = 0x7FFFF000  # programs that write to a pipe cannot know the length: nearly 2³¹ or nearly 2³²


def folders(folder: Path) -> list[Path]:
    """The folders in a folder, without hidden ones, in order of name."""
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def sound_files(folder: str | Path) -> Iterator[str]:
    """The sound files in a folder and in its subfolders, relative to it, in order of name, without hidden ones.

    Only the names of one folder at a time are in memory.
    """
    with os.scandir(folder) as found:
        entries = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in found if entry.name[0] != "."]
    # With the slash after folders, this is the order of the whole names.
    for name in sorted(f"{name}/" if is_folder else name for name, is_folder in entries):
        if name.endswith("/"):
            yield from (name + inside for inside in sound_files(os.path.join(folder, name)))
        elif name.lower().endswith(SUFFIXES) and os.path.isfile(os.path.join(folder, name)):
            yield name


def sound_blocks(path: str | Path, rate: int = 16_000) -> Iterator[np.ndarray]:
    """The samples of a file in blocks: float32 in −1…1, channels averaged, at `rate` samples per second."""
    with open_file(path) as file:
        own_rate, blocks = _blocks_of(file, path)
        if not MIN_SAMPLE_RATE <= own_rate <= MAX_SAMPLE_RATE:
            raise BadData(f"{path} has an impossible sample rate: {own_rate:,} Hz")
        total = 0
        for block in _resampled(blocks, own_rate, rate):
            if not np.isfinite(block).all():
                raise BadData(f"{path} holds NaN or infinity")
            total += len(block)
            if total > MAX_HOURS * 3600 * rate:
                raise BadData(f"{path} is longer than {MAX_HOURS} hours: split it into shorter recordings")
            yield block
        if total == 0:  # or a few samples at a high rate, which resample to none
            raise BadData(f"{path} holds no samples")


class _Chunk(NamedTuple):
    """Where the samples of a file are, as its header announces them."""

    start: int
    length: int | None  # bytes; None: the header does not say
    form: tuple[int, ...] = ()  # of a WAV: format, channels, rate, bytes per second, block, bits


def _blocks_of(file: BinaryIO, path: str | Path) -> tuple[int, Iterator[np.ndarray]]:
    """The sample rate of a file, and its samples in blocks."""
    size = os.fstat(file.fileno()).st_size
    if size == 0:
        raise BadData(f"{path} is empty")
    start, length, form = _sound_chunk(file) or _Chunk(0, None)
    if length is not None and start + length > size:
        raise BadData(f"{path} is cut short: {length:,} bytes of sound announced, {max(0, size - start):,} there")
    if _lacks_last_page(file, size):
        raise BadData(f"{path} is cut short: it has no last page")
    # A WAV of 16-bit samples in one channel, by far the most common file, needs no package.
    if form and (form[0], form[1], form[5]) == (1, 1, 16):
        return form[2], _plain_blocks(file, start, (size - start if length is None else length) // 2)
    return _any_format(file, path)


def _plain_blocks(file: BinaryIO, start: int, count: int) -> Iterator[np.ndarray]:
    file.seek(start)
    for first in range(0, count, BLOCK):
        content = file.read(2 * min(BLOCK, count - first))
        yield np.frombuffer(content, "<i2").astype(np.float32) / 32768


def _any_format(file: BinaryIO, path: str | Path) -> tuple[int, Iterator[np.ndarray]]:
    try:
        import soundfile
    except ImportError:
        raise ImportError(f"reading {path} needs soundfile: pip install 'rankcode[audio]'") from None
    os.lseek(file.fileno(), 0, os.SEEK_SET)
    try:  # the descriptor, as soundfile prints a traceback if a method of a file object raises
        with _muted():
            sound = soundfile.SoundFile(file.fileno(), closefd=False)
    except soundfile.LibsndfileError as error:
        raise BadData(f"{path} is not sound that can be read: {error.error_string.rstrip('.')}") from None

    def blocks() -> Iterator[np.ndarray]:
        total = 0
        with sound:
            while True:
                try:
                    with _muted():
                        block = sound.read(max(1, BLOCK // sound.channels), dtype="float32", always_2d=True)
                except soundfile.LibsndfileError as error:
                    reason = error.error_string.rstrip(".")
                    raise BadData(f"{path} is cut short or damaged: {reason}") from None
                if len(block) == 0:
                    break
                total += len(block)
                with np.errstate(invalid="ignore", over="ignore"):  # `sound_blocks` says that it is not finite
                    mono = block.mean(1)
                yield mono
            # The length of an MP3 is an estimate; 2⁶² and more stand for an unknown length.
            if total < sound.frames < 2**62 and sound.format != "MP3":
                raise BadData(f"{path} is cut short: {sound.frames:,} samples announced, {total:,} there")

    return sound.samplerate, blocks()


@contextmanager
def _muted() -> Iterator[None]:
    """Without standard error, to which libsndfile's MP3 decoder writes notes on damaged frames. In the main thread
    only: while others read, it shows their progress there."""
    try:
        kept = os.dup(2) if threading.current_thread() is threading.main_thread() else None
    except OSError:  # there is none
        kept = None
    if kept is None:
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _resampled(blocks: Iterator[np.ndarray], own_rate: int, rate: int) -> Iterator[np.ndarray]:
    """The blocks at another rate, band-limited; the same samples however the recording is cut into blocks."""
    if own_rate == rate:
        yield from blocks
        return
    try:
        import soxr
    except ImportError:
        raise ImportError("changing the sample rate needs soxr: pip install 'rankcode[audio]'") from None
    stream = soxr.ResampleStream(own_rate, rate, 1, dtype="float32")
    for block in blocks:
        yield stream.resample_chunk(block)
    yield stream.resample_chunk(np.empty(0, np.float32), last=True)


# What headers announce: libsndfile reads a file that was cut short without an error


def _sound_chunk(file: BinaryIO) -> _Chunk | None:
    """The samples of a WAV, AIFF, AU or MP3 file; None where the header of the file does not say."""
    file.seek(0)
    start = file.read(12)
    if start[:4] in (b"RIFF", b"RF64") and start[8:] == b"WAVE":
        return _chunk_named(b"data", file, "<", streamed=start[4:8] == bytes(4))
    if start[:4] == b"FORM" and start[8:] in (b"AIFF", b"AIFC"):
        return _chunk_named(b"SSND", file, ">", streamed=False)
    if start[:4] == b".snd" and len(start) == 12:
        offset, length = struct.unpack(">II", start[4:])
        return _Chunk(offset, None if length >= UNKNOWN_LENGTH else length)
    return _mp3_stream(file, start)


def _chunk_named(wanted: bytes, file: BinaryIO, order: str, streamed: bool) -> _Chunk | None:
    """The chunk of this name. `streamed`: the file announces that it was written to a pipe."""
    form, long_length, at = (), None, 12
    for _ in range(MAX_CHUNKS):
        file.seek(at)
        head = file.read(8 + 24)
        if len(head) < 8:
            return None
        name, length = struct.unpack_from(f"{order}4sI", head)
        at += 8
        if name == b"fmt " and len(head) >= 24:
            form = struct.unpack_from("<HHIIHH", head, 8)
        if name == b"ds64" and len(head) >= 24:  # of a WAV of more than 4 GB
            (long_length,) = struct.unpack_from("<Q", head, 16)
        if name == wanted:
            if length >= UNKNOWN_LENGTH:
                return _Chunk(at, long_length, form)
            return _Chunk(at, None if streamed and length == 0 else length, form)
        at += length + length % 2
    return None


def _mp3_stream(file: BinaryIO, start: bytes) -> _Chunk | None:
    """The frames of an MP3 file whose first frame says how many bytes they have."""
    at = 0
    if start[:3] == b"ID3" and len(start) >= 10:  # a tag: its size has 7 bits per byte
        at = 10 + sum(byte << shift for byte, shift in zip(start[6:10], (21, 14, 7, 0), strict=True))
    file.seek(at)
    frame = file.read(4 + 36 + 16)
    if len(frame) < 4 or frame[0] != 0xFF or frame[1] & 0xE0 != 0xE0:
        return None
    for name in (b"Xing", b"Info"):
        found = frame.find(name)
        if found >= 0 and found + 16 <= len(frame):
            flags, *values = struct.unpack_from(">III", frame, found + 4)
            if flags & 2:  # the number of bytes, after the number of frames where bit 0 announces that
                return _Chunk(at, values[flags & 1])
    return None


def _lacks_last_page(file: BinaryIO, size: int) -> bool:
    """Whether this is an Ogg file (Vorbis, Opus) whose last page is missing or incomplete."""
    file.seek(0)
    if file.read(4) != b"OggS":
        return False
    file.seek(max(0, size - (1 << 17)))  # a page has less than 2¹⁶ bytes
    end = file.read()
    page = end[end.rfind(b"OggS") :]
    segments = page[26] if len(page) > 26 else 255
    whole = len(page) >= 27 + segments + sum(page[27 : 27 + segments])
    return not (whole and page[5] & 4)  # the flag of the last page
