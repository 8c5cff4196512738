"""What is loaded fits what Python passes to it."""

import ctypes

import numpy as np
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


def test_threads_come_from_the_openmp_library_of_pytorch():
    assert library.openmp() is not None, "then there is one thread only"


def test_where_threads_took_longer_than_their_work_one_works_alone(monkeypatch):
    monkeypatch.setattr(library, "_CROWDING", library._Crowding())
    monkeypatch.setattr(library, "openmp", lambda: ctypes.c_void_p(1))
    team, worked, late = np.zeros(2, np.int64), [], True

    def call(size):
        def function(_, __, parallel):
            worked.append("together" if parallel else "alone")
            return 1 if late else 10**15  # nanoseconds

        library.in_threads(function, team, size)
        return worked[-1]

    assert call(100) == "together"
    assert [call(100) for _ in range(library.MIN_PAUSE)] == ["alone"] * library.MIN_PAUSE
    assert call(100) == "together"  # and late again
    assert [call(50) for _ in range(4 * library.MIN_PAUSE - 1)] == ["alone"] * (4 * library.MIN_PAUSE - 1)
    late = False
    assert [call(101), call(100), call(100), call(100)] == ["together", "alone", "together", "together"]
    for _ in range(20):
        call(100)
    late = True
    assert call(100) == "together"
    assert [call(100) for _ in range(library.MIN_PAUSE + 1)] == ["alone"] * library.MIN_PAUSE + ["together"]
    library.in_threads(lambda *arguments: worked.append(arguments[2]), team[:1], 1000)
    assert worked[-1] is None, "one job needs one thread"
