"""`rankcode reproduce`: the page that it writes."""

from pathlib import Path

from small_data import CPU, says

from rankcode.experiments.page import write_page
from rankcode.experiments.reproduction import Reproduction, Result

SMOKE = ["reproduce", "fig2", "--scale", "smoke", *CPU]


def test_a_page_of_the_users_is_never_replaced():
    Path("notes.md").write_text("# Notes\n\nI ran rankcode reproduce.\n")
    Path("folder").mkdir()
    says([*SMOKE, "--page", "notes.md"], "notes.md exists, and this command did not write it", "--page", status=2)
    says([*SMOKE, "--page", "folder"], "folder is a folder", status=2)
    assert Path("notes.md").read_text() == "# Notes\n\nI ran rankcode reproduce.\n" and not Path("runs").exists()


def test_an_earlier_page_may_be_replaced():
    """The command goes on to the next check."""
    Reproduction("paper", Path("made")).write("fig2", "Fig. 2", Result(None, [], {}, ""))
    write_page(Path("made"), Path("page.md"))
    says([*SMOKE, "--page", "page.md", "--folder", "made"], "was made at scale paper, not smoke", status=2)
