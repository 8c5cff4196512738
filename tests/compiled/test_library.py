"""What is loaded fits what Python passes to it."""

import ctypes

import pytest

from rankcode.compiled import library

pytestmark = pytest.mark.skipif(library.functions() is None, reason="needs a C compiler when rankcode is installed")


def test_a_library_of_another_version_is_not_used(monkeypatch):
    class Longer(library.Job):
        _fields_ = [("more", ctypes.c_int64)]  # noqa: RUF012

    assert library.functions.__wrapped__() is not None
    monkeypatch.setattr(library, "Job", Longer)
    assert library.functions.__wrapped__() is None


def test_a_damaged_library_is_not_used(monkeypatch, tmp_path):
    damaged = tmp_path / "_recurrence.so"
    damaged.write_bytes(b"\x7fELF")
    monkeypatch.setattr(library, "find_spec", lambda _: type("Spec", (), {"origin": str(damaged)}))
    assert library.functions.__wrapped__() is None
    monkeypatch.setattr(library, "find_spec", lambda _: None)
    assert library.functions.__wrapped__() is None
