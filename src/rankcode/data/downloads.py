"""Downloads of public data sets, checked against published checksums and resumed after interruptions.

A file is received as FILE.part and renamed once its checksum is right; an archive is unpacked beside its folder, which
gets its name once it is complete. So a file or folder with its final name is complete, and an interrupted download is
simply started again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.request import Request, urlopen

from rankcode.progress import Progress

TIMEOUT = 30.0  # seconds without data after which a connection counts as interrupted
TRIES = 5  # connections to one address, each of which resumes where the last one stopped
PAUSE = 1.0  # seconds before the second connection, twice that before the third, and so on
CHUNK = 1 << 18  # bytes read at once


class DownloadError(OSError):
    """A data set could not be downloaded. The message gives the reason and says what to do."""


@dataclass(frozen=True)
class PublishedFile:
    """A published file, and its addresses in the order in which they are tried."""

    name: str
    addresses: tuple[str, ...]
    size: int
    sha256: str


@dataclass(frozen=True)
class DataSet:
    """Files that are kept as they are or, if `contains` lists parts of its content, one archive that is unpacked."""

    files: tuple[PublishedFile, ...]
    contains: tuple[str, ...] = ()
    recordings: int = 0  # .wav files in the folders of the archive


MNIST_PLACES = (  # mirrors first: the publisher's own server refuses most requests
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    "https://storage.googleapis.com/cvdf-datasets/mnist",
    "http://yann.lecun.com/exdb/mnist",
)
MNIST_FILES = {
    "train-images-idx3-ubyte.gz": (9_912_422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
    "train-labels-idx1-ubyte.gz": (28_881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
    "t10k-images-idx3-ubyte.gz": (1_648_877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
    "t10k-labels-idx1-ubyte.gz": (4_542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
}
SPEECH_PLACES = ("https://storage.googleapis.com/download.tensorflow.org/data", "http://download.tensorflow.org/data")


def _at(places: tuple[str, ...], name: str, size: int, sha256: str) -> PublishedFile:
    return PublishedFile(name, tuple(f"{place}/{name}" for place in places), size, sha256)


def _speech(version: str, size: int, sha256: str, recordings: int) -> DataSet:
    file = _at(SPEECH_PLACES, f"speech_commands_{version}.tar.gz", size, sha256)
    return DataSet((file,), ("validation_list.txt", "testing_list.txt", "_background_noise_"), recordings)


DATA_SETS = {
    "mnist": DataSet(tuple(_at(MNIST_PLACES, name, *about) for name, about in MNIST_FILES.items())),
    "speech-commands": _speech(
        "v0.01", 1_489_096_277, "743935421bb51cccdb6bdd152e04c5c70274e935c82119ad7faeec31780d811d", 64_727
    ),
    "speech-commands-v0.02": _speech(
        "v0.02", 2_428_923_189, "af14739ee7dc311471de98f5f9d2c9191b18aedfe957f4a6ff791c709868ff58", 105_835
    ),
}


def data_folder() -> Path:
    """The folder for data sets: the one that the variable RANKCODE_DATA names, or ~/.cache/rankcode."""
    return Path(os.environ.get("RANKCODE_DATA") or "~/.cache/rankcode").expanduser()


def download(name: str, to: str | Path | None = None, progress: bool = True) -> Path:
    """Download a data set into a folder, by default `data_folder() / name`, and return the folder.

    Files that are already complete are not downloaded again. Only one process at a time may use a folder.
    """
    if name not in DATA_SETS:
        raise ValueError(f"there is no data set {name!r} to download: name one of {', '.join(DATA_SETS)}")
    folder = (data_folder() / name if to is None else Path(to).expanduser()).resolve()
    data_set = DATA_SETS[name]
    if data_set.contains:
        _have_archive(data_set, folder, progress)
    else:
        missing = [file for file in data_set.files if not _is_whole(folder / file.name, file)]
        for number, file in enumerate(missing):
            names = ", ".join(other.name for other in missing[number:])
            _fetch(file, folder / file.name, f"put {names} into {folder}", progress)
    return folder


def _have_archive(data_set: DataSet, folder: Path, progress: bool) -> None:
    (file,) = data_set.files
    workplace = folder.with_name(f"{folder.name}.part")
    archive, unpacked = workplace / file.name, workplace / "unpacked"
    if not _is_unpacked(folder, data_set):
        if folder.exists() and any(folder.iterdir()):
            raise FileExistsError(
                f"{folder} is not empty and does not hold all of {file.name}: empty it or name another folder"
            )
        if not _is_whole(archive, file):
            _fetch(file, archive, f"unpack {file.name} into {folder}", progress)
        shutil.rmtree(unpacked, ignore_errors=True)  # the remains of a killed run
        try:
            _unpack(archive, unpacked, progress)
            if folder.exists():
                folder.rmdir()  # it is empty, and Windows does not rename over a folder
            unpacked.rename(folder)
        finally:
            shutil.rmtree(unpacked, ignore_errors=True)  # do not leave a full disk full
    shutil.rmtree(workplace, ignore_errors=True)  # also after a run that was interrupted at this point


def _fetch(file: PublishedFile, path: Path, by_hand: str, progress: bool) -> None:
    """Download a file to `path` from the first address that has it. `by_hand`: what to do if none has."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    reasons = []
    for address in file.addresses:
        begun_with, reason = _size(part), ""
        for attempt in range(TRIES):
            time.sleep(PAUSE * attempt)
            try:
                _receive(address, file, part, progress)
                os.replace(part, path)
                return
            except _Failed as error:
                reason = str(error)
            if _size(part) <= begun_with:  # nothing was received, or it was wrong
                break
        reasons.append(f"{address}: {reason}")
    have = _size(part)
    again = f"download again to continue from {have:,} of {file.size:,} bytes, or " if have else ""
    raise DownloadError(f"cannot download {file.name} ({'; '.join(reasons)}): {again}{by_hand}")


class _Failed(Exception):  # noqa: N818 (never shown to the user)
    """The connection was interrupted, or the address has another file."""


@contextmanager
def _network() -> Iterator[None]:
    """Errors of the connection, but not of the disk, as _Failed."""
    try:
        yield
    except (OSError, HTTPException) as error:
        raise _Failed(str(error) or type(error).__name__) from None


def _receive(address: str, file: PublishedFile, part: Path, progress: bool) -> None:
    """Receive the missing bytes over one connection, all of them if the server cannot send a part, and check them."""
    done = _size(part)
    if done < file.size:
        request = Request(address, headers={"User-Agent": "rankcode", "Range": f"bytes={done}-"})
        with _network():
            response = urlopen(request, timeout=TIMEOUT)
        with response:
            done = done if response.status == 206 else 0
            # Checked before the first byte, so that a login page does not overwrite the bytes received.
            announced, expected = response.headers.get("Content-Length"), file.size - done
            if announced not in (None, str(expected)):
                raise _Failed(f"{announced} bytes announced, {expected} expected")
            with open(part, "ab" if done else "wb") as out, Progress(file.size, progress, done) as bar:
                while done < file.size:
                    with _network():
                        chunk = response.read1(min(CHUNK, file.size - done))
                    if not chunk:
                        raise _Failed(f"ended after {done:,} of {file.size:,} bytes")
                    out.write(chunk)
                    done += len(chunk)
                    if bar.due(done):
                        bar.show(done, f"{file.name}  {done / 1e6:,.1f} of {file.size / 1e6:,.1f} MB")
    if (found := _sha256(part)) != file.sha256:
        part.unlink()
        raise _Failed(f"sha256 {found}, expected {file.sha256}")


def _unpack(archive: Path, folder: Path, progress: bool) -> None:
    size, number = _size(archive), 0
    with open(archive, "rb") as packed, Progress(size, progress) as bar:
        with tarfile.open(fileobj=packed, mode="r:gz") as members:
            # Set here because extract() of Python 3.11.3 has no such argument.
            members.extraction_filter = getattr(tarfile, "data_filter", None)
            for number, member in enumerate(members, 1):
                members.extract(member, folder)
                done = min(packed.tell(), size - 1)  # reading is ahead of unpacking
                if bar.due(done):
                    bar.show(done, f"unpacking {archive.name}  {number:,} files")
        bar.show(size, f"unpacking {archive.name}  {number:,} files")


def _is_whole(path: Path, file: PublishedFile) -> bool:
    return path.is_file() and _sha256(path) == file.sha256


def _is_unpacked(folder: Path, data_set: DataSet) -> bool:
    return all((folder / name).exists() for name in data_set.contains) and (
        sum(1 for _ in folder.glob("*/*.wav")) >= data_set.recordings
    )


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
