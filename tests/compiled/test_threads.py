"""Threads are those of PyTorch, and one works alone where they are late."""

import ctypes

import numpy as np

from rankcode.compiled import threads


def test_threads_come_from_the_openmp_library_of_pytorch():
    assert threads.openmp() is not None, "then there is one thread only"


def test_where_threads_took_longer_than_their_work_one_works_alone(monkeypatch):
    monkeypatch.setattr(threads, "_OVERSUBSCRIPTION", threads._Oversubscription())
    monkeypatch.setattr(threads, "openmp", lambda: ctypes.c_void_p(1))
    team, worked, late = np.zeros(2, np.int64), [], True

    def call(size):
        def function(_, __, parallel):
            worked.append("together" if parallel else "alone")
            return 1 if late else 10**15  # nanoseconds

        threads.in_threads(function, team, size)
        return worked[-1]

    assert call(100) == "together"
    assert [call(100) for _ in range(threads.MIN_PAUSE)] == ["alone"] * threads.MIN_PAUSE
    assert call(100) == "together"  # and late again
    assert [call(50) for _ in range(4 * threads.MIN_PAUSE - 1)] == ["alone"] * (4 * threads.MIN_PAUSE - 1)
    late = False
    assert [call(101), call(100), call(100), call(100)] == ["together", "alone", "together", "together"]
    for _ in range(20):
        call(100)
    late = True
    assert call(100) == "together"
    assert [call(100) for _ in range(threads.MIN_PAUSE + 1)] == ["alone"] * threads.MIN_PAUSE + ["together"]
    threads.in_threads(lambda *arguments: worked.append(arguments[2]), team[:1], 1000)
    assert worked[-1] is None, "one job needs one thread"
