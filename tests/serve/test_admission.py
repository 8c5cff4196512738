"""New streams are refused while the service is late or busy, driven with measured values that are made up."""

import pytest

pytest.importorskip("fastapi")

from rankcode.serve.admission import Admission

ON_TIME, LATE, PERIOD = 0.02, 0.08, 0.02


def admission(ticks=()):
    found = Admission(lag_limit=0.05, busy_limit=0.9)
    for lag, took in ticks:
        found.add(lag, took, PERIOD)
    return found


def test_on_time_and_with_time_to_spare_everyone_is_admitted():
    found = admission([(0.049, 0.017)] * 200)
    assert not found.overloaded and found.lag == 0.049 and found.busy == pytest.approx(0.85)


@pytest.mark.parametrize("late, overloaded", [(1, False), (2, False), (3, True), (50, True)])
def test_the_third_late_tick_of_a_second_is_an_overload(late, overloaded):
    ticks = [(ON_TIME, 0.01)] * 100
    for number in range(late):  # anywhere in the last second
        ticks[50 + (7 * number) % 50] = (LATE, 0.01)
    assert admission(ticks).overloaded is overloaded


def test_a_late_event_loop_shows_in_few_percent_of_the_ticks():
    """A mean of 23 ms with 6 % at 80 ms: nobody would see it in an average."""
    found = admission([(LATE if number % 16 == 0 else ON_TIME, 0.01) for number in range(200)])
    assert found.overloaded


def test_a_busy_service_refuses_before_it_is_late():
    found, ticks = admission([(ON_TIME, 0.01)] * 100), 0
    while not found.overloaded:
        found.add(0.04, PERIOD, PERIOD)  # all the time is taken, nothing is late yet
        ticks += 1
    assert found.lag < found.lag_limit and ticks < 25  # half a second


def test_one_very_long_tick_is_neither_late_nor_busy():
    found = admission([(ON_TIME, 0.01)] * 100)
    found.add(1.5, 1.5, 1.5)
    assert not found.overloaded and found.busy < 0.6


def test_an_overload_lasts_until_there_is_room_again():
    found = admission([(LATE, PERIOD)] * 50)
    for _ in range(50):
        found.add(0.04, 0.01, PERIOD)  # within the limit, and not by much
    assert found.overloaded
    for _ in range(48):
        found.add(0.03, 0.01, PERIOD)
    assert not found.overloaded


def test_the_lateness_of_the_worker_is_what_counts():
    found = admission()
    for _ in range(3):
        found.add(0.2, 0.001, 0.5)
    assert found.overloaded
    for _ in range(100):
        found.add(0.0, 0.0, PERIOD)
    assert not found.overloaded and found.busy < 0.01
