import errno
import os
from pathlib import Path

import pytest

from rankcode.saving.files import write_whole, writing


def test_a_full_disk_is_named_and_the_old_file_stays(tmp_path, monkeypatch):
    file = tmp_path / "model"
    write_whole(file, b"old")

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError) as error:
        write_whole(file, b"new")
    assert str(error.value) == f"{file} cannot be written: No space left on device; free some space"
    assert error.value.errno == errno.ENOSPC
    assert file.read_bytes() == b"old" and os.listdir(tmp_path) == ["model"]


def test_a_full_device_is_named():
    said = r"^/dev/full cannot be written: No space left on device; free some space$"
    with pytest.raises(OSError, match=said), writing(Path("/dev/full")), open("/dev/full", "wb", buffering=0) as file:
        file.write(b"x")


def test_a_place_that_cannot_be_written_to_is_named(tmp_path):
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(
        OSError, match=r"notes/model cannot be written: [^\n]+; choose a folder that can be written to$"
    ):
        write_whole(tmp_path / "notes" / "model", b"x")
