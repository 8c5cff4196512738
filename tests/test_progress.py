import io
import shutil
import sys
from os import terminal_size

import pytest

import rankcode as rc
from rankcode.progress import Progress


class Screen(io.StringIO):
    def __init__(self, terminal: bool):
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


def fake_screen(monkeypatch, terminal: bool) -> Screen:
    monkeypatch.setattr(sys, "stderr", Screen(terminal))
    return sys.stderr  # type: ignore[return-value]


def test_a_terminal_has_one_line_that_is_redrawn(monkeypatch):
    screen = fake_screen(monkeypatch, True)
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: terminal_size((100, 24)))
    with Progress(4) as bar:
        bar.show(1, "loss 0.5")
        bar.show(4, "loss 0.25")
    first, second, third = screen.getvalue().split("\r\x1b[2K")
    assert first == ""
    assert second.startswith("█████···············  25 %  loss 0.5  0:00 < ")
    assert third.startswith("████████████████████ 100 %  loss 0.25  0:00 < 0:00") and third.endswith("\n")
    assert screen.getvalue().count("\n") == 1


def test_a_line_is_fitted_to_the_terminal(monkeypatch):
    screen = fake_screen(monkeypatch, True)
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: terminal_size((40, 24)))
    with Progress(4) as bar:
        bar.show(1, "x" * 100)
        bar.show(2, "loss 0.5")
    first, second = screen.getvalue().rstrip("\n").split("\r\x1b[2K")[1:]
    assert first == "  25 %  " + "x" * 31
    assert len(second) == 39 and second.startswith("█████·····  50 %  loss 0.5  0:00 < 0:0")


def test_elsewhere_a_line_is_printed_now_and_then(monkeypatch):
    screen = fake_screen(monkeypatch, False)
    clock = iter([0, 10, 31, 31, 40, 100])
    monkeypatch.setattr("rankcode.progress.time.monotonic", lambda: next(clock))
    with Progress(4, done=2) as bar:
        assert not bar.due(2)
        assert bar.due(3)
        bar.show(3, "loss 0.5")
        assert not bar.due(3)
        assert bar.due(4)
        bar.show(4, "loss 0.25")
    lines = screen.getvalue().splitlines()
    assert lines == [
        "███████████████·····  75 %  loss 0.5  0:31 < 0:31",  # one of two done in 31 seconds
        "████████████████████ 100 %  loss 0.25  1:40 < 0:00",
    ]
    assert "\x1b" not in screen.getvalue() and "\r" not in screen.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_nothing_is_written_where_it_is_not_wanted_or_nothing_is_left(terminal, monkeypatch):
    screen = fake_screen(monkeypatch, terminal)
    with Progress(4, enabled=False) as bar:
        assert not bar.due(4)
        bar.show(4, "loss 0.25")
    with Progress(4, done=4):
        pass
    assert screen.getvalue() == ""


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("shown", [True, False])
def test_training_shows_loss_accuracy_and_steps_read_or_nothing(terminal, shown, monkeypatch):
    screen = fake_screen(monkeypatch, terminal)
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: terminal_size((80, 24)))
    task = rc.tasks.TwoSequence(steps=5, validation_rows=20)
    config = rc.Training(examples=64, batch_size=16, device="cpu", progress=shown)
    history = rc.fit(rc.Network(rc.cells.GRU(1, 4), 1), task, rc.AtSpike(0.51), config)
    loss, accuracy, steps = history.records[-1]["training"].values()
    line = f"100 %  loss {loss:.4f}  accuracy {100 * accuracy:.2f} %  steps read {steps:.2f}  0:"
    assert line in screen.getvalue() if shown else screen.getvalue() == ""
