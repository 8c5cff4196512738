"""Downloads of public data sets, checked against published checksums and resumed after interruptions.

A file is received as FILE.part and renamed once its checksum is right; an archive is unpacked beside its folder, which
gets its name once it is complete. So a file or folder with its final name is complete, and an interrupted download is
simply started again.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import tarfile
import time
import zlib
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from rankcode.progress import Progress

TIMEOUT = 30.0  # seconds without a byte after which a connection counts as interrupted
TRIES = 5  # connections to one address, each of which resumes the last
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
    content_sha256: str = ""  # of the content of a .gz: a copy that was compressed again is accepted too


@dataclass(frozen=True)
class DataSet:
    """Files that are kept as they are or, if `contains` lists parts of its content, one archive that is unpacked."""

    files: tuple[PublishedFile, ...]
    contains: tuple[str, ...] = ()
    recordings: int = 0  # .wav files in the folders of the archive


def _digits(name: str, size: int, sha256: str, content_sha256: str) -> PublishedFile:
    # The mirrors come first: the publisher's own server refuses most requests.
    places = (
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        "https://storage.googleapis.com/cvdf-datasets/mnist",
        "http://yann.lecun.com/exdb/mnist",
    )
    return PublishedFile(name, tuple(f"{place}/{name}" for place in places), size, sha256, content_sha256)


def _speech(version: str, size: int, sha256: str, recordings: int) -> DataSet:
    name = f"speech_commands_{version}.tar.gz"
    places = ("https://storage.googleapis.com/download.tensorflow.org/data", "http://download.tensorflow.org/data")
    file = PublishedFile(name, tuple(f"{place}/{name}" for place in places), size, sha256)
    return DataSet((file,), ("validation_list.txt", "testing_list.txt", "_background_noise_"), recordings)


DATA_SETS = {
    "mnist": DataSet(
        (
            _digits(
                "train-images-idx3-ubyte.gz",
                9_912_422,
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            ),
            _digits(
                "train-labels-idx1-ubyte.gz",
                28_881,
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            ),
            _digits(
                "t10k-images-idx3-ubyte.gz",
                1_648_877,
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            ),
            _digits(
                "t10k-labels-idx1-ubyte.gz",
                4_542,
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
                "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            ),
        )
    ),
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
    if DATA_SETS[name].contains:
        _have_archive(DATA_SETS[name], folder, progress)
    else:
        _have_files(DATA_SETS[name], folder, progress)
    return folder


def _have_files(data_set: DataSet, folder: Path, progress: bool) -> None:
    missing = [file for file in data_set.files if not _is_whole(folder / file.name, file)]
    for number, file in enumerate(missing):
        names = ", ".join(
            f"{other.name} (the one there is damaged)" if (folder / other.name).exists() else other.name
            for other in missing[number:]
        )
        _fetch(file, folder / file.name, f"put {names} into {folder}", progress)


def _have_archive(data_set: DataSet, folder: Path, progress: bool) -> None:
    (file,) = data_set.files
    workplace = folder.with_name(f"{folder.name}.part")
    archive, unpacked = workplace / file.name, workplace / "unpacked"
    if not _is_unpacked(folder, data_set):
        if folder.exists() and not (folder.is_dir() and next(folder.iterdir(), None) is None):
            raise FileExistsError(
                f"{folder} is neither empty nor all of {file.name}: empty it or name another folder to download to"
            )
        if not _is_whole(archive, file):
            _fetch(file, archive, f"unpack {file.name} into {folder}", progress)
        try:
            _unpack(archive, unpacked, progress)
            if not _is_unpacked(unpacked, data_set):
                raise DownloadError(f"{archive} does not hold all of its recordings: delete it and download again")
            if folder.exists():
                folder.rmdir()  # it is empty, and Windows does not rename over a folder
            unpacked.rename(folder)
        finally:
            shutil.rmtree(unpacked, ignore_errors=True)  # do not leave a full disk full
    shutil.rmtree(workplace, ignore_errors=True)  # also after a run that was interrupted at this point


def _fetch(file: PublishedFile, path: Path, by_hand: str, progress: bool) -> None:
    """Download a file to `path` from the first address that has it. `by_hand`: the advice where none has."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    reasons = []
    for address in file.addresses:
        try:
            _fetch_from(address, file, part, progress)
        except _AddressFailed as error:
            reasons.append(f"{address}: {error}")
        else:
            os.replace(part, path)
            return
    have = _size(part)
    again = f"download again, which goes on from {_amount(have)} of {_amount(file.size)}, or " if have else ""
    raise DownloadError(f"cannot download {file.name} ({'; '.join(reasons)}): {again}{by_hand}")


class _AddressFailed(Exception):  # noqa: N818 (never shown to the user)
    """The file cannot be downloaded from this address."""


class _Cut(Exception):  # noqa: N818
    """The connection was interrupted; the next may resume it."""


def _fetch_from(address: str, file: PublishedFile, part: Path, progress: bool) -> None:
    """Receive the complete file, with the right checksum, in `part`."""
    while True:
        begun_before = _size(part) > 0
        _receive_all(address, file, part, progress)
        found = _sha256(part)
        if found == file.sha256:
            return
        part.unlink()
        if not begun_before:  # otherwise the bytes that were there may be wrong: try again from the beginning
            raise _AddressFailed(f"sha256 {found}, expected {file.sha256}")


def _receive_all(address: str, file: PublishedFile, part: Path, progress: bool) -> None:
    """Receive until `part` has the size of the file, over as many as TRIES connections."""
    begun_with, reason = _size(part), ""
    for number in range(TRIES):
        if _size(part) >= file.size:
            return
        if number:
            time.sleep(PAUSE * number)
        try:
            _receive(address, file, part, progress)
            return
        except _Cut as cut:
            if _size(part) == begun_with:  # no byte was received
                raise _AddressFailed(str(cut)) from None
            reason = str(cut)
    raise _AddressFailed(f"cut off {TRIES} times, last: {reason}")


def _receive(address: str, file: PublishedFile, part: Path, progress: bool) -> None:
    """Receive the missing bytes over one connection; the whole file if the server cannot send a part."""
    have = _size(part)
    with _open(address, have) as response:
        done = have if response.status == 206 else 0
        # Checked before the first byte, so that the page of a login screen does not overwrite the bytes received.
        total = _total(response, done)
        if total is not None and total != file.size:
            raise _AddressFailed(f"{total:,} bytes, expected {file.size:,}")
        with open(part, "ab" if done else "wb") as out, Progress(file.size, progress, done) as bar:
            while done < file.size:
                try:
                    chunk = response.read1(min(CHUNK, file.size - done))
                except (OSError, HTTPException) as error:
                    raise _Cut(_reason(error)) from None
                if not chunk:
                    raise _Cut(f"ended after {done:,} of {file.size:,} bytes")
                out.write(chunk)
                done += len(chunk)
                if bar.due(done):
                    bar.show(done, f"{file.name}  {_amount(done)} of {_amount(file.size)}")


def _open(address: str, have: int):
    headers = {"User-Agent": "rankcode"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        return urlopen(Request(address, headers=headers), timeout=TIMEOUT)
    except HTTPError as error:
        error.close()
        if error.code == 416 and have:
            return _open(address, 0)
        raise _AddressFailed(f"HTTP {error.code} {error.reason}") from None
    except (OSError, HTTPException) as error:
        raise _Cut(_reason(error)) from None


def _total(response, start: int) -> int | None:
    """The size of the whole file that the server announces; None if it does not."""
    if response.status != 206:
        length = response.headers.get("Content-Length", "")
        return int(length) if length.isdecimal() else None
    sent = response.headers.get("Content-Range", "")  # bytes 100-199/200
    if not sent.startswith(f"bytes {start}-"):
        raise _AddressFailed(f"sent {sent or 'an unnamed part'}, not the bytes from {start} on")
    total = sent.rpartition("/")[2]
    return int(total) if total.isdecimal() else None


def _unpack(archive: Path, folder: Path, progress: bool) -> None:
    shutil.rmtree(folder, ignore_errors=True)  # the remains of a killed run
    size, number = _size(archive), 0
    try:
        with open(archive, "rb") as packed, Progress(size, progress) as bar:
            with tarfile.open(fileobj=packed, mode="r:gz") as members:
                # Set here because extract() of Python 3.11.3 has no such argument; the checksum was right anyway.
                members.extraction_filter = getattr(tarfile, "data_filter", None)
                for number, member in enumerate(members, 1):
                    members.extract(member, folder)
                    done = min(packed.tell(), size - 1)  # reading is ahead of unpacking, which is not done yet
                    if bar.due(done):
                        bar.show(done, f"unpacking {archive.name}  {number:,} files")
            bar.show(size, f"unpacking {archive.name}  {number:,} files")
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise DownloadError(f"cannot unpack {archive} ({_reason(error)}): delete it and download again") from None


def _is_whole(path: Path, file: PublishedFile) -> bool:
    if not path.is_file():
        return False
    if _sha256(path) == file.sha256:
        return True
    if not file.content_sha256:
        return False
    try:
        return _sha256(path, unzipped=True) == file.content_sha256
    except (gzip.BadGzipFile, zlib.error, EOFError):
        return False


def _is_unpacked(folder: Path, data_set: DataSet) -> bool:
    return all((folder / name).exists() for name in data_set.contains) and (
        sum(1 for _ in folder.glob("*/*.wav")) >= data_set.recordings
    )


def _sha256(path: Path, unzipped: bool = False) -> str:
    with gzip.open(path) if unzipped else open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _amount(size: int) -> str:
    """4.5 kB, 9.9 MB, 1.49 GB."""
    for unit, name, places in ((10**9, "GB", 2), (10**6, "MB", 1)):
        if size >= unit:
            return f"{size / unit:.{places}f} {name}"
    return f"{size / 1000:.1f} kB"


def _reason(error: BaseException) -> str:
    """The reason of an error in one line, without urllib's wrapping."""
    inner = getattr(error, "reason", error)
    text = getattr(inner, "strerror", None) or str(inner) or type(inner).__name__
    return " ".join(str(text).split())
