"""Against a real server on this machine that cuts, stalls, lies and is not there; the internet is never asked."""

import errno
import gzip
import hashlib
import io
import random
import socket
import sys
import tarfile
import threading
import time
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from rankcode.data import downloads
from rankcode.data.downloads import DATA_SETS, DataSet, DownloadError, PublishedFile, data_folder, download

CONTENT = random.Random(0).randbytes(700_000)  # more than two chunks
NAMES = [file.name for file in DATA_SETS["mnist"].files]


class Server(ThreadingHTTPServer):
    """Serves `contents`; the first requests are cut after as many bytes of the body as `cuts` says."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.contents: dict[str, bytes] = {}
        self.cuts: list[int] = []
        self.requests: list[tuple[str, str | None]] = []  # path, Range
        self.ranges = True  # whether it can send a part
        self.range_status = 206
        self.range_shift = 0  # sends a part that was not asked for
        self.says_length = True
        self.stalls = False  # says nothing more instead of closing the connection
        self.over = threading.Event()

    def address(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{path}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self):
        wanted = self.headers.get("Range")
        self.server.requests.append((self.path[1:], wanted))
        body = self.server.contents.get(self.path[1:])
        if body is None:
            return self.send_error(404)
        if wanted and self.server.range_status != 206:
            return self.send_error(self.server.range_status)
        total = len(body)
        if wanted and self.server.ranges:
            start = int(wanted.removeprefix("bytes=").removesuffix("-")) + self.server.range_shift
            body = body[start:]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
        else:
            self.send_response(200)
        if self.server.says_length:
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
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.over.set()
        running.shutdown()
        thread.join()


@pytest.fixture
def nobody():
    """An address at which nobody listens, and nobody else can begin to."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{held.getsockname()[1]}"


@pytest.fixture(autouse=True)
def quick_and_local(monkeypatch):
    monkeypatch.setattr(downloads, "PAUSE", 0.0)
    monkeypatch.setenv("no_proxy", "*")
    for data_set in DATA_SETS:  # a test that forgets to name its addresses asks nobody
        monkeypatch.setitem(DATA_SETS, data_set, DataSet(()))


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def publish(monkeypatch, *addresses: str, content: bytes = CONTENT, name: str = "digits.gz", **extra) -> PublishedFile:
    """Make `content` the one file of mnist."""
    file = PublishedFile(name, addresses, len(content), sha256(content), **extra)
    monkeypatch.setitem(DATA_SETS, "mnist", DataSet((file,)))
    return file


def files_in(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def is_one_line(error: pytest.ExceptionInfo) -> bool:
    return "\n" not in str(error.value) and isinstance(error.value, OSError)


def test_files_are_received_whole_and_only_once(server, monkeypatch, tmp_path):
    server.contents = {name: name.encode() * 1000 for name in NAMES}
    files = tuple(
        PublishedFile(name, (server.address(name),), len(body), sha256(body)) for name, body in server.contents.items()
    )
    monkeypatch.setitem(DATA_SETS, "mnist", DataSet(files))
    folder = download("mnist", tmp_path / "new" / "digits")
    assert folder == tmp_path / "new" / "digits"
    assert files_in(folder) == sorted(NAMES)
    assert all((folder / name).read_bytes() == body for name, body in server.contents.items())
    assert server.requests == [(name, None) for name in NAMES]
    (folder / NAMES[2]).unlink()
    server.requests.clear()
    download("mnist", folder)
    assert server.requests == [(NAMES[2], None)]
    server.requests.clear()
    assert download("mnist", folder) == folder
    assert server.requests == []


def test_a_copy_that_was_compressed_anew_is_as_good(server, monkeypatch, tmp_path):
    file = publish(monkeypatch, server.address("a"), content_sha256=sha256(b"digits"))
    (tmp_path / file.name).write_bytes(gzip.compress(b"digits"))
    download("mnist", tmp_path)
    assert server.requests == []
    assert gzip.decompress((tmp_path / file.name).read_bytes()) == b"digits"


@pytest.mark.parametrize(
    "damaged",
    [b"not zipped", gzip.compress(b"others"), gzip.compress(b"digits")[:-9], b"\x1f\x8b\x08" + b"\0" * 99],
    ids=["not zipped", "others", "cut off", "no header"],  # compressed bytes hold the time: no name for a test
)
def test_a_damaged_file_is_replaced(damaged, server, monkeypatch, tmp_path):
    file = publish(monkeypatch, server.address("a"), content_sha256=sha256(b"digits"))
    server.contents["a"] = CONTENT
    (tmp_path / file.name).write_bytes(damaged)
    download("mnist", tmp_path)
    assert (tmp_path / file.name).read_bytes() == CONTENT


@pytest.mark.parametrize("says_length", [True, False])
def test_a_cut_connection_is_resumed_where_it_was_cut(says_length, server, monkeypatch, tmp_path):
    file = publish(monkeypatch, server.address("a"))
    server.contents["a"], server.cuts, server.says_length = CONTENT, [300_000, 0, 123_456], says_length
    download("mnist", tmp_path)
    assert [wanted for _, wanted in server.requests] == [None, "bytes=300000-", "bytes=300000-", "bytes=423456-"]
    assert (tmp_path / file.name).read_bytes() == CONTENT
    assert files_in(tmp_path) == [file.name]


def test_a_silent_connection_counts_as_cut(server, monkeypatch, tmp_path):
    monkeypatch.setattr(downloads, "TIMEOUT", 1)
    file = publish(monkeypatch, server.address("a"))
    server.contents["a"], server.cuts, server.stalls = CONTENT, [300_000], True
    begun = time.monotonic()
    download("mnist", tmp_path)
    assert time.monotonic() - begun < 10
    assert [wanted for _, wanted in server.requests] == [None, "bytes=300000-"]
    assert (tmp_path / file.name).read_bytes() == CONTENT


@pytest.mark.parametrize("setting", [{"ranges": False}, {"range_status": 416}])
def test_a_server_that_cannot_send_a_part_sends_all(setting, server, monkeypatch, tmp_path):
    file = publish(monkeypatch, server.address("a"))
    server.contents["a"], server.cuts = CONTENT, [300_000]
    vars(server).update(setting)
    download("mnist", tmp_path)
    assert server.requests[:2] == [("a", None), ("a", "bytes=300000-")]
    assert (tmp_path / file.name).read_bytes() == CONTENT


def test_a_download_that_was_given_up_goes_on_in_the_next_run(server, monkeypatch, tmp_path):
    file = publish(monkeypatch, server.address("a"))
    server.contents["a"], server.cuts = CONTENT, [100_000] * downloads.TRIES
    with pytest.raises(
        DownloadError, match=r"cut off 5 times.*goes on from 500.0 kB of 700.0 kB, or put digits.gz into"
    ) as error:
        download("mnist", tmp_path)
    assert is_one_line(error)
    assert files_in(tmp_path) == ["digits.gz.part"]
    assert len(server.requests) == downloads.TRIES
    download("mnist", tmp_path)
    assert server.requests[-1] == ("a", "bytes=500000-")
    assert (tmp_path / file.name).read_bytes() == CONTENT


def test_the_next_address_goes_on_where_the_last_gave_up(server, nobody, monkeypatch, tmp_path):
    file = publish(monkeypatch, f"{nobody}/a", server.address("missing"), server.address("a"), server.address("b"))
    server.contents = {"a": CONTENT, "b": CONTENT}
    server.cuts = [100_000] * downloads.TRIES
    download("mnist", tmp_path)
    assert server.requests[0] == ("missing", None)
    assert server.requests[-1] == ("b", "bytes=500000-")
    assert (tmp_path / file.name).read_bytes() == CONTENT


def test_all_bytes_of_an_earlier_run_need_no_request(server, monkeypatch, tmp_path):
    file = publish(monkeypatch, server.address("a"))
    (tmp_path / "digits.gz.part").write_bytes(CONTENT)
    download("mnist", tmp_path)
    assert server.requests == []
    assert (tmp_path / file.name).read_bytes() == CONTENT


@pytest.mark.parametrize("part", [b"?" * 300_000, b"?" * len(CONTENT), b"?" * (len(CONTENT) + 1)])
def test_wrong_bytes_of_an_earlier_run_are_received_again(part, server, monkeypatch, tmp_path):
    file = publish(monkeypatch, server.address("a"))
    server.contents["a"] = CONTENT
    (tmp_path / "digits.gz.part").write_bytes(part)
    download("mnist", tmp_path)
    assert server.requests[-1] == ("a", None)
    assert (tmp_path / file.name).read_bytes() == CONTENT


def test_a_wrong_file_is_not_taken(server, monkeypatch, tmp_path):
    wrong = CONTENT[:-1] + bytes([CONTENT[-1] ^ 1])
    file = publish(monkeypatch, server.address("wrong"), server.address("right"))
    server.contents = {"wrong": wrong}
    with pytest.raises(DownloadError, match=r"cannot download digits.gz .*404.*: put digits.gz into") as error:
        download("mnist", tmp_path)
    assert f"sha256 {sha256(wrong)}, expected {file.sha256}" in str(error.value)
    assert is_one_line(error)
    assert files_in(tmp_path) == []
    server.contents["right"] = CONTENT
    download("mnist", tmp_path)
    assert (tmp_path / file.name).read_bytes() == CONTENT


def test_the_page_of_a_login_screen_does_not_replace_what_was_received(server, monkeypatch, tmp_path):
    publish(monkeypatch, server.address("page"))
    server.contents["page"], server.ranges = b"<html>log in</html>", False
    (tmp_path / "digits.gz.part").write_bytes(CONTENT[:300_000])
    with pytest.raises(DownloadError, match="19 bytes, expected 700,000"):
        download("mnist", tmp_path)
    assert (tmp_path / "digits.gz.part").read_bytes() == CONTENT[:300_000]


def test_a_part_that_was_not_asked_for_is_not_taken(server, monkeypatch, tmp_path):
    publish(monkeypatch, server.address("a"))
    server.contents["a"], server.range_shift = CONTENT, 1
    (tmp_path / "digits.gz.part").write_bytes(CONTENT[:300_000])
    with pytest.raises(DownloadError, match="sent bytes 300001-699999/700000, not the bytes from 300000 on"):
        download("mnist", tmp_path)
    assert (tmp_path / "digits.gz.part").read_bytes() == CONTENT[:300_000]


def test_without_a_network_the_message_says_which_files_to_put_where(nobody, monkeypatch, tmp_path):
    files = tuple(PublishedFile(name, (f"{nobody}/{name}",), 5, sha256(b"right")) for name in NAMES)
    monkeypatch.setitem(DATA_SETS, "mnist", DataSet(files))
    (tmp_path / NAMES[0]).write_bytes(b"right")
    (tmp_path / NAMES[1]).write_bytes(b"wrong")
    with pytest.raises(DownloadError) as error:
        download("mnist", tmp_path)
    assert str(error.value) == (
        f"cannot download {NAMES[1]} ({nobody}/{NAMES[1]}: Connection refused): put {NAMES[1]} (the one there is "
        f"damaged), {NAMES[2]}, {NAMES[3]} into {tmp_path}"
    )
    assert (tmp_path / NAMES[1]).read_bytes() == b"wrong"  # nothing of the user's is lost for nothing


def test_an_address_that_has_no_such_file(server, monkeypatch, tmp_path):
    publish(monkeypatch, server.address("a"))
    with pytest.raises(DownloadError, match=r"a: HTTP 404 Not Found\): put digits.gz into") as error:
        download("mnist", tmp_path)
    assert is_one_line(error)
    assert server.requests == [("a", None)]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is always full")
def test_a_full_disk_is_not_taken_for_a_cut_connection(server, monkeypatch, tmp_path):
    publish(monkeypatch, server.address("a"), server.address("b"))
    server.contents = {"a": CONTENT, "b": CONTENT}
    (tmp_path / "digits.gz.part").symlink_to("/dev/full")
    with pytest.raises(OSError) as error:
        download("mnist", tmp_path)
    assert error.value.errno == errno.ENOSPC
    assert len(server.requests) == 1


# The archive of recordings.

RECORDINGS = {
    "./LICENSE": b"CC BY 4.0",
    "./testing_list.txt": b"yes/b.wav\n",
    "./validation_list.txt": b"no/a.wav\n",
    "./_background_noise_/hum.wav": b"m" * 5000,
    "./no/a.wav": b"n" * 5000,
    "./yes/b.wav": random.Random(1).randbytes(5000),
}


def pack(members: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def publish_archive(server, monkeypatch, content: bytes) -> None:
    server.contents["words.tar.gz"] = content
    file = PublishedFile("words.tar.gz", (server.address("words.tar.gz"),), len(content), sha256(content))
    contains = ("validation_list.txt", "testing_list.txt", "_background_noise_")
    monkeypatch.setitem(DATA_SETS, "speech-commands", DataSet((file,), contains, 3))


def holds_the_recordings(folder: Path) -> bool:
    found = {f"./{name}": (folder / name).read_bytes() for name in files_in(folder) if (folder / name).is_file()}
    return found == RECORDINGS


@pytest.mark.parametrize("empty_folder_there", [True, False])
def test_an_archive_is_unpacked(empty_folder_there, server, monkeypatch, tmp_path):
    publish_archive(server, monkeypatch, pack(RECORDINGS))
    server.cuts = [2000]
    if empty_folder_there:
        (tmp_path / "words").mkdir()
    assert download("speech-commands", tmp_path / "words") == tmp_path / "words"
    assert holds_the_recordings(tmp_path / "words")
    assert [path.name for path in tmp_path.iterdir()] == ["words"]
    assert server.requests == [("words.tar.gz", None), ("words.tar.gz", "bytes=2000-")]
    download("speech-commands", tmp_path / "words")
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    "damage", ["truncated", "bad bytes", "bad header", "no archive", "recording missing", "leads out"]
)
def test_an_archive_is_unpacked_whole_or_not_at_all(damage, server, monkeypatch, tmp_path):
    content = pack(RECORDINGS)
    plain = gzip.decompress(content)
    zipper = zlib.compressobj(wbits=31)
    until_middle = zipper.compress(plain[: plain.index(b"nnn") + 2000]) + zipper.flush(zlib.Z_FULL_FLUSH)
    publish_archive(
        server,
        monkeypatch,
        {
            "truncated": content[: len(content) // 2],
            "bad bytes": until_middle + b"\xff" * 100,
            "bad header": gzip.compress(plain.replace(b"./no/a.wav", b"./no/?.wav")),
            "no archive": b"<html>",
            "recording missing": pack({name: body for name, body in RECORDINGS.items() if name != "./no/a.wav"}),
            "leads out": pack(RECORDINGS | {"../../outside.wav": b"!"}),
        }[damage],
    )
    with pytest.raises(DownloadError, match=r"words.part/words.tar.gz .*: delete it and download again") as error:
        download("speech-commands", tmp_path / "words")
    assert is_one_line(error)
    assert files_in(tmp_path) == ["words.part", "words.part/words.tar.gz"]


def test_a_run_that_was_killed_while_unpacking_is_simply_run_again(server, monkeypatch, tmp_path):
    publish_archive(server, monkeypatch, pack(RECORDINGS))
    unpacked = tmp_path / "words.part" / "unpacked"
    unpacked.mkdir(parents=True)
    (unpacked / "half.wav").write_bytes(b"half")
    (tmp_path / "words.part" / "words.tar.gz").write_bytes(server.contents["words.tar.gz"])
    download("speech-commands", tmp_path / "words")
    assert server.requests == []
    assert holds_the_recordings(tmp_path / "words")
    assert [path.name for path in tmp_path.iterdir()] == ["words"]


def test_a_full_disk_while_unpacking_leaves_the_archive_alone(server, monkeypatch, tmp_path):
    publish_archive(server, monkeypatch, pack(RECORDINGS))
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


def test_a_folder_with_something_else_is_left_alone(server, monkeypatch, tmp_path):
    publish_archive(server, monkeypatch, pack(RECORDINGS))
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(
        FileExistsError, match=r"is neither empty nor all of words.tar.gz: empty it or name another"
    ) as error:
        download("speech-commands", tmp_path)
    assert is_one_line(error)
    assert server.requests == []
    assert files_in(tmp_path) == ["mine.txt"]


def test_without_a_network_the_message_says_what_to_unpack_where(nobody, monkeypatch, tmp_path):
    file = PublishedFile("words.tar.gz", (f"{nobody}/1", f"{nobody}/2"), 5, sha256(b"right"))
    monkeypatch.setitem(DATA_SETS, "speech-commands", DataSet((file,), ("testing_list.txt",), 1))
    with pytest.raises(DownloadError) as error:
        download("speech-commands", tmp_path / "words")
    assert str(error.value) == (
        f"cannot download words.tar.gz ({nobody}/1: Connection refused; {nobody}/2: Connection refused): "
        f"unpack words.tar.gz into {tmp_path / 'words'}"
    )


# Where it goes, what is shown, what is published.


def test_the_folder_is_the_one_that_the_environment_names(server, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("RANKCODE_DATA", raising=False)
    assert data_folder() == tmp_path / "home" / ".cache" / "rankcode"
    monkeypatch.setenv("RANKCODE_DATA", "~/data")
    assert data_folder() == tmp_path / "home" / "data"
    publish(monkeypatch, server.address("a"))
    server.contents["a"] = CONTENT
    assert download("mnist") == tmp_path / "home" / "data" / "mnist"
    assert (tmp_path / "home" / "data" / "mnist" / "digits.gz").read_bytes() == CONTENT


def test_an_unknown_name():
    with pytest.raises(
        ValueError, match=r"no data set 'minst'.*: name one of mnist, speech-commands, speech-commands-v0.02"
    ):
        download("minst")


@pytest.mark.parametrize("progress", [True, False])
def test_progress_is_shown_where_it_is_wanted(progress, server, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    publish(monkeypatch, server.address("a"))
    server.contents["a"] = CONTENT
    publish_archive(server, monkeypatch, pack(RECORDINGS))
    download("mnist", tmp_path / "digits", progress)
    download("speech-commands", tmp_path / "words", progress)
    lines = sys.stderr.getvalue().splitlines()
    if not progress:
        assert lines == []
        return
    assert len(lines) == 3
    assert "100 %  digits.gz  700.0 kB of 700.0 kB  0:0" in lines[0]
    assert "100 %  words.tar.gz  " in lines[1]
    assert "100 %  unpacking words.tar.gz  6 files  0:0" in lines[2]


def test_what_is_published(monkeypatch):
    monkeypatch.undo()
    kinds = ("images-idx3", "labels-idx1")
    assert [f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in kinds] == NAMES
    files = [file for data_set in DATA_SETS.values() for file in data_set.files]
    assert len({file.sha256 for file in files}) == len(files) == 6
    for file in files:
        assert len(file.sha256) == 64 and len(file.content_sha256) == (0 if "speech" in file.name else 64)
        assert len(file.addresses) >= 2 and all(address.endswith(f"/{file.name}") for address in file.addresses)
