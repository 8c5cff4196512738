"""A checkpoint is read back as it was written, or refused in one line that names the file."""

import os
import random

import pytest
import torch

from rankcode.saving.checkpoint import is_checkpoint, read_checkpoint, write_checkpoint

CONTENT = {"batch": 8, "network": {"weight": torch.arange(40.0)}, "records": [{"loss": 0.5}], "best": None}


@pytest.fixture
def file(tmp_path):
    write_checkpoint(tmp_path / "checkpoint.pt", CONTENT)
    return tmp_path / "checkpoint.pt"


def assert_refused(file):
    said = r"checkpoint\.pt is damaged: it is cut short, or its content does not match its checksum; restore it[^\n]*$"
    with pytest.raises(ValueError, match=said):
        read_checkpoint(file)


def test_a_checkpoint_is_read_back(file):
    assert str(read_checkpoint(file)) == str(CONTENT) and is_checkpoint(file)


@pytest.mark.parametrize("share", [0, 0.01, 0.3, 0.9, 0.999])
def test_a_checkpoint_that_is_cut_short_is_refused(file, share):
    whole = file.read_bytes()
    file.write_bytes(whole[: int(share * len(whole))])
    assert_refused(file)


def test_every_flipped_bit_is_noticed(file):
    content, chance = file.read_bytes(), random.Random(0)
    for _ in range(300):
        damaged = bytearray(content)
        damaged[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        file.write_bytes(damaged)
        assert_refused(file)


@pytest.mark.parametrize("content", [CONTENT | {"records": []}, CONTENT, [1, 2]])
def test_a_checkpoint_that_something_else_wrote_is_refused(file, content):
    torch.save(content, file)
    assert_refused(file)
    assert not is_checkpoint(file)


def test_a_checkpoint_runs_no_code(file, tmp_path):
    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path}/ran",)

    write_checkpoint(file, {"batch": Evil()})
    assert_refused(file)
    assert not (tmp_path / "ran").exists()
