"""New streams are refused while the service is late, driven with made-up lags of its ticks."""

import pytest

from rankcode.serve.admission import Admission

ON_TIME, LATE = 0.02, 0.08


def admission(lags=()):
    found = Admission(lag_limit=0.05)
    for lag in lags:
        found.add(lag)
    return found


def test_on_time_everyone_is_admitted():
    found = admission([0.049] * 200)
    assert not found.overloaded and found.lag == 0.049


@pytest.mark.parametrize("late, overloaded", [(1, False), (2, False), (3, True), (50, True)])
def test_the_third_late_tick_of_a_second_is_an_overload(late, overloaded):
    lags = [ON_TIME] * 100
    for number in range(late):  # anywhere in the last second
        lags[50 + (7 * number) % 50] = LATE
    assert admission(lags).overloaded is overloaded


def test_few_late_ticks_are_an_overload_though_their_average_is_small():
    assert admission([LATE if number % 16 == 0 else ON_TIME for number in range(200)]).overloaded


def test_one_very_long_tick_is_no_overload():
    assert not admission([ON_TIME] * 100 + [1.5]).overloaded


def test_an_overload_lasts_until_there_is_room_again():
    found = admission([LATE] * 50 + [0.04] * 50)  # within the limit, and not by much
    assert found.overloaded
    for _ in range(48):
        found.add(0.03)
    assert not found.overloaded
