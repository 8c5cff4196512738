"""Downloads from a server on this machine that cuts, stalls, sends other content or is not there."""

import errno
import hashlib
import io
import random
import socket
import sys
import tarfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from rankcode.data import downloads
from rankcode.data.downloads import DATA_SETS, DataSet, DownloadError, PublishedFile, data_folder, download
from serving_thread import serving

CONTENT = random.Random(0).randbytes(700_000)  # more than two chunks
NAMES = [file.name for file in DATA_SETS["mnist"].files]


class Server(ThreadingHTTPServer):
    """Serves `contents`; the first requests are cut after as many bytes of the body as `cuts` says."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.contents: dict[str, bytes] = {}
        self.cuts: list[int] = []
        self.requests: list[tuple[str, int]] = []  # path, first byte
        self.sends_parts = True
        self.announces_length = True
        self.stalls = False  # keeps a cut connection open
        self.over = threading.Event()

    def address(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{path}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self):
        start = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-"))
        self.server.requests.append((self.path[1:], start))
        body = self.server.contents.get(self.path[1:])
        if body is None:
            return self.send_error(404)
        if self.server.sends_parts:
            body = body[start:]
        self.send_response(206 if self.server.sends_parts else 200)
        if self.server.announces_length:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        cut = self.server.cuts.pop(0) if self.server.cuts else len(body)
        self.wfile.write(body[:cut])
        if cut < len(body) and self.server.stalls:
            self.server.over.wait(20)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with serving(Server()) as running:
        yield running
        running.over.set()


@pytest.fixture
def closed():
    """An address at which no server listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{held.getsockname()[1]}"


@pytest.fixture(autouse=True)
def quick_and_local(monkeypatch):
    monkeypatch.setattr(downloads, "PAUSE", 0.0)
    monkeypatch.setenv("no_proxy", "*")
    for data_set in DATA_SETS:  # a test that forgets to name its addresses asks no server
        monkeypatch.setitem(DATA_SETS, data_set, DataSet(()))


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def publish(monkeypatch):
    def made(*addresses: str) -> None:
        """Make CONTENT the one file of mnist."""
        file = PublishedFile("digits.gz", addresses, len(CONTENT), sha256(CONTENT))
        monkeypatch.setitem(DATA_SETS, "mnist", DataSet((file,)))

    return made


def files_in(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def fails(name, folder, match, error=DownloadError):
    with pytest.raises(error, match=match) as caught:
        download(name, folder)
    assert "\n" not in str(caught.value)


def test_files_are_received_whole_and_only_once(server, monkeypatch, tmp_path):
    server.contents = {name: name.encode() * 1000 for name in NAMES}
    files = tuple(
        PublishedFile(name, (server.address(name),), len(body), sha256(body)) for name, body in server.contents.items()
    )
    monkeypatch.setitem(DATA_SETS, "mnist", DataSet(files))
    folder = download("mnist", tmp_path / "new" / "digits")
    assert folder == tmp_path / "new" / "digits"
    assert {name: (folder / name).read_bytes() for name in files_in(folder)} == server.contents
    assert server.requests == [(name, 0) for name in NAMES]
    (folder / NAMES[2]).write_bytes(b"damaged")
    server.requests.clear()
    for _ in range(2):
        assert download("mnist", folder) == folder
        assert server.requests == [(NAMES[2], 0)]
    assert (folder / NAMES[2]).read_bytes() == server.contents[NAMES[2]]


@pytest.mark.parametrize("announces_length", [True, False])
def test_a_cut_connection_is_resumed_where_it_was_cut(announces_length, server, publish, tmp_path):
    publish(server.address("a"))
    server.contents["a"], server.cuts, server.announces_length = CONTENT, [300_000, 0, 123_456], announces_length
    download("mnist", tmp_path)
    assert [start for _, start in server.requests] == [0, 300_000, 300_000, 423_456]
    assert files_in(tmp_path) == ["digits.gz"] and (tmp_path / "digits.gz").read_bytes() == CONTENT


def test_a_silent_connection_counts_as_cut(server, publish, monkeypatch, tmp_path):
    monkeypatch.setattr(downloads, "TIMEOUT", 0.3)
    publish(server.address("a"))
    server.contents["a"], server.cuts, server.stalls = CONTENT, [300_000], True
    begun = time.monotonic()
    download("mnist", tmp_path)
    assert time.monotonic() - begun < 10
    assert server.requests == [("a", 0), ("a", 300_000)]


def test_a_server_that_cannot_send_a_part_sends_all(server, publish, tmp_path):
    publish(server.address("a"))
    server.contents["a"], server.cuts, server.sends_parts = CONTENT, [300_000], False
    download("mnist", tmp_path)
    assert (tmp_path / "digits.gz").read_bytes() == CONTENT


def test_a_download_that_was_given_up_goes_on_in_the_next_run(server, publish, tmp_path):
    publish(server.address("a"))
    server.contents["a"], server.cuts = CONTENT, [100_000] * downloads.TRIES
    fails(
        "mnist",
        tmp_path,
        r"IncompleteRead|ended after 500,000.*continue from 500,000 of 700,000 bytes, or put digits.gz",
    )
    assert files_in(tmp_path) == ["digits.gz.part"] and len(server.requests) == downloads.TRIES
    download("mnist", tmp_path)
    assert server.requests[-1] == ("a", 500_000)
    assert (tmp_path / "digits.gz").read_bytes() == CONTENT


def test_the_next_address_goes_on_where_the_last_gave_up(server, closed, publish, tmp_path):
    publish(f"{closed}/a", server.address("missing"), server.address("a"), server.address("b"))
    server.contents = {"a": CONTENT, "b": CONTENT}
    server.cuts = [100_000] * downloads.TRIES
    download("mnist", tmp_path)
    assert server.requests[0] == ("missing", 0) and server.requests[-1] == ("b", 500_000)
    assert (tmp_path / "digits.gz").read_bytes() == CONTENT


@pytest.mark.parametrize("part", [CONTENT, b"?" * 300_000, b"?" * len(CONTENT), b"?" * (len(CONTENT) + 1)])
def test_bytes_of_an_earlier_run_are_used_if_they_are_right(part, server, publish, tmp_path):
    publish(server.address("a"), server.address("b"))
    server.contents = {"a": CONTENT, "b": CONTENT}
    (tmp_path / "digits.gz.part").write_bytes(part)
    download("mnist", tmp_path)
    assert server.requests[-1:] == ([] if part == CONTENT else [("b", 0)])
    assert (tmp_path / "digits.gz").read_bytes() == CONTENT


def test_a_file_with_another_checksum_is_not_kept(server, publish, tmp_path):
    publish(server.address("other"), server.address("right"))
    server.contents = {"other": CONTENT[:-1] + bytes([CONTENT[-1] ^ 1])}
    fails("mnist", tmp_path, rf"sha256 \w+, expected {sha256(CONTENT)}.*404.*: put digits.gz into")
    assert files_in(tmp_path) == []
    server.contents["right"] = CONTENT
    download("mnist", tmp_path)
    assert (tmp_path / "digits.gz").read_bytes() == CONTENT


def test_the_page_of_a_login_screen_does_not_replace_what_was_received(server, publish, tmp_path):
    publish(server.address("page"))
    server.contents["page"], server.sends_parts = b"<html>log in</html>", False
    (tmp_path / "digits.gz.part").write_bytes(CONTENT[:300_000])
    fails("mnist", tmp_path, "19 bytes announced, 700000 expected")
    assert (tmp_path / "digits.gz.part").read_bytes() == CONTENT[:300_000]


def test_without_a_network_the_message_lists_the_files_to_copy(closed, monkeypatch, tmp_path):
    files = tuple(PublishedFile(name, (f"{closed}/{name}",), 5, sha256(b"right")) for name in NAMES)
    monkeypatch.setitem(DATA_SETS, "mnist", DataSet(files))
    (tmp_path / NAMES[0]).write_bytes(b"right")
    (tmp_path / NAMES[1]).write_bytes(b"wrong")
    fails("mnist", tmp_path, rf"{NAMES[1]} \(.*refused.*\): put {NAMES[1]}, {NAMES[2]}, {NAMES[3]} into {tmp_path}$")
    assert (tmp_path / NAMES[1]).read_bytes() == b"wrong", "a file of the user was deleted"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is always full")
def test_a_full_disk_is_not_taken_for_a_cut_connection(server, publish, tmp_path):
    publish(server.address("a"), server.address("b"))
    server.contents = {"a": CONTENT, "b": CONTENT}
    (tmp_path / "digits.gz.part").symlink_to("/dev/full")
    with pytest.raises(OSError) as error:
        download("mnist", tmp_path)
    assert error.value.errno == errno.ENOSPC
    assert len(server.requests) == 1


# The archive of recordings

RECORDINGS = {
    "./LICENSE": b"CC BY 4.0",
    "./testing_list.txt": b"yes/b.wav\n",
    "./validation_list.txt": b"no/a.wav\n",
    "./_background_noise_/hum.wav": b"m" * 5000,
    "./no/a.wav": b"n" * 5000,
    "./yes/b.wav": random.Random(1).randbytes(5000),
}


@pytest.fixture
def archive(server, monkeypatch):
    """The bytes of the archive that is published."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as writing:
        for name, content in RECORDINGS.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            writing.addfile(member, io.BytesIO(content))
    content = server.contents["words.tar.gz"] = packed.getvalue()
    file = PublishedFile("words.tar.gz", (server.address("words.tar.gz"),), len(content), sha256(content))
    contains = ("validation_list.txt", "testing_list.txt", "_background_noise_")
    monkeypatch.setitem(DATA_SETS, "speech-commands", DataSet((file,), contains, 3))
    return content


def holds_the_recordings(folder: Path) -> bool:
    found = {f"./{name}": (folder / name).read_bytes() for name in files_in(folder) if (folder / name).is_file()}
    return found == RECORDINGS and [path.name for path in folder.parent.iterdir()] == [folder.name]


@pytest.mark.parametrize("empty_folder_there", [True, False])
def test_an_archive_is_unpacked(empty_folder_there, server, archive, tmp_path):
    server.cuts = [2000]
    if empty_folder_there:
        (tmp_path / "words").mkdir()
    for _ in range(2):
        assert download("speech-commands", tmp_path / "words") == tmp_path / "words"
        assert holds_the_recordings(tmp_path / "words")
        assert server.requests == [("words.tar.gz", 0), ("words.tar.gz", 2000)]


def test_a_run_that_was_killed_while_unpacking_is_simply_run_again(server, archive, tmp_path):
    unpacked = tmp_path / "words.part" / "unpacked"
    unpacked.mkdir(parents=True)
    (unpacked / "half.wav").write_bytes(b"half")
    (tmp_path / "words.part" / "words.tar.gz").write_bytes(archive)
    download("speech-commands", tmp_path / "words")
    assert server.requests == [] and holds_the_recordings(tmp_path / "words")


def test_a_full_disk_while_unpacking_keeps_the_archive(archive, monkeypatch, tmp_path):
    extract, extracted = tarfile.TarFile.extract, []

    def extract_two(archive, member, *rest):
        if len(extracted) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        extracted.append(member)
        extract(archive, member, *rest)

    monkeypatch.setattr(tarfile.TarFile, "extract", extract_two)
    with pytest.raises(OSError, match="No space left"):
        download("speech-commands", tmp_path / "words")
    assert files_in(tmp_path) == ["words.part", "words.part/words.tar.gz"]


def test_a_folder_with_other_content_is_left_unchanged(server, archive, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    fails("speech-commands", tmp_path, "does not hold all of words.tar.gz: empty it or name", FileExistsError)
    for name in ("validation_list.txt", "testing_list.txt", "_background_noise_"):  # and no recordings
        (tmp_path / name).mkdir()
    fails("speech-commands", tmp_path, "not empty and does not hold all of words.tar.gz", FileExistsError)
    assert server.requests == [] and (tmp_path / "mine.txt").exists()


def test_without_a_network_the_message_says_what_to_unpack_where(closed, monkeypatch, tmp_path):
    file = PublishedFile("words.tar.gz", (f"{closed}/1", f"{closed}/2"), 5, sha256(b"right"))
    monkeypatch.setitem(DATA_SETS, "speech-commands", DataSet((file,), ("testing_list.txt",), 1))
    match = rf"/1: .*refused.*; .*/2: .*refused.*\): unpack words.tar.gz into {tmp_path / 'words'}$"
    fails("speech-commands", tmp_path / "words", match)


# Folders, progress, addresses


def test_the_folder_is_the_one_that_the_environment_names(server, publish, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("RANKCODE_DATA", raising=False)
    assert data_folder() == tmp_path / "home" / ".cache" / "rankcode"
    monkeypatch.setenv("RANKCODE_DATA", "~/data")
    publish(server.address("a"))
    server.contents["a"] = CONTENT
    assert download("mnist") == tmp_path / "home" / "data" / "mnist"
    assert (tmp_path / "home" / "data" / "mnist" / "digits.gz").read_bytes() == CONTENT


def test_an_unknown_name():
    with pytest.raises(ValueError, match=r"no data set 'minst'.*: name one of mnist, speech-commands, speech-com"):
        download("minst")


@pytest.mark.parametrize("progress", [True, False])
def test_progress_is_shown_where_it_is_wanted(progress, server, publish, archive, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    publish(server.address("a"))
    server.contents["a"] = CONTENT
    download("mnist", tmp_path / "digits", progress)
    download("speech-commands", tmp_path / "words", progress)
    lines = sys.stderr.getvalue().splitlines()
    parts = [
        "100 %  digits.gz  0.7 of 0.7 MB  0:0",
        "100 %  words.tar.gz  ",
        "unpacking words.tar.gz  6 files  ",
    ]
    assert len(lines) == (3 if progress else 0)
    assert all(part in line for part, line in zip(parts, lines, strict=progress))


def test_what_is_published(monkeypatch):
    monkeypatch.undo()
    kinds = ("images-idx3", "labels-idx1")
    assert [f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in kinds] == NAMES
    files = [file for data_set in DATA_SETS.values() for file in data_set.files]
    assert len({file.sha256 for file in files}) == len(files) == 6
    for file in files:
        assert len(file.sha256) == 64
        assert len(file.addresses) >= 2 and all(address.endswith(f"/{file.name}") for address in file.addresses)
