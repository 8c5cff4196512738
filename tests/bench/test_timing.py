"""Timing of work, and the machine it is done on."""

import time

import torch

from rankcode.bench.timing import machine, megabytes, quartiles, time_in_turns


def test_cases_take_turns_and_the_first_turn_does_not_count():
    """Short cases run twice in their turn on a CPU, with warm caches the second time."""
    calls = []
    cases = {name: (lambda name=name: calls.append(name)) for name in "ab"}
    seconds = time_in_turns(cases, 3, "cpu", progress=False)
    assert calls == ["a", "a", "b", "b"] * 4 and all(len(each) == 3 for each in seconds.values())


def test_seconds_are_those_of_the_work():
    def work():
        begun = time.thread_time()
        while time.thread_time() < begun + 0.02:
            pass

    cases = {"nothing": lambda: None, "work": work}
    seconds = time_in_turns(cases, 3, "cpu", progress=False)
    assert min(seconds["work"]) >= 0.02
    assert min(seconds["nothing"]) < 0.02


def test_memory_is_what_the_backward_pass_needs():
    x = torch.ones(1000, requires_grad=True)

    def work():
        (x.exp() * 2).sum().backward()

    assert megabytes(work, "cpu") == 0.004  # exp saves its output: 1,000 values of 4 bytes


def test_quartiles_are_milliseconds():
    assert quartiles([0.001, 0.002, 0.003, 0.004, 0.005]) == (3.0, 2.0, 4.0) and quartiles([0.5]) == (500, 500, 500)


def test_the_machine_is_named():
    assert machine("cpu")["torch"] == torch.__version__ and machine("cpu")["processor"]
