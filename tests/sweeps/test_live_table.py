"""The table of a sweep in a terminal and elsewhere."""

import os
import shutil

from rankcode.sweeps.live_table import LiveTable
from rankcode.sweeps.sweep_folder import SweepFolder

RUNS = [{"learning_rate": 0.001234 * number, "cell": "gru"} for number in range(1, 5)]


def swept(tmp_path):
    folder = SweepFolder(tmp_path / "sweep")
    folder.write_plan({"runs": RUNS})
    folder.write_result(1, {"status": "finished", "validation": {"area": 0.8}})
    folder.write_result(2, {"status": "stopped", "validation": {"area": 0.9}})
    return folder


def test_a_narrow_terminal_still_shows_how_runs_stand(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((50, 24)))
    table = LiveTable(swept(tmp_path), enabled=True)
    table.terminal = True
    with table:
        table.show({"runs": RUNS, "wanted": 9}, running=[3])
        lines = capsys.readouterr().err.splitlines()
        assert [line.split()[:2] for line in lines[1:4]] == [["3", "running"], ["2", "stopped"], ["1", "finished"]]
        assert lines[0].split()[:5] == ["run", "done", "accuracy", "steps", "area"] and max(map(len, lines)) < 50
        assert lines[4:] == ["2 runs ended, 1 running, 6 waiting"]
    assert capsys.readouterr().err == "\x1b[5A\x1b[J"


def test_elsewhere_a_line_for_each_run_that_ends(tmp_path, capsys):
    with LiveTable(swept(tmp_path), enabled=True) as table:
        table.terminal = False
        table.show({"runs": RUNS}, running=[3], ended=[2])
    said = capsys.readouterr().err
    assert said.startswith("run 2 of 4 (learning_rate 0.002468, cell gru) stopped") and said.endswith("area 0.9000\n")
