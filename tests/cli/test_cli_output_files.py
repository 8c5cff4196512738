"""Files that a command writes: nothing else is replaced."""

import shutil
from pathlib import Path

import pytest
from small_data import CPU, says

from rankcode.cli import output_files
from rankcode.cli.main import main
from rankcode.cli.output_files import OutputFiles


def contents(folder):
    return {path: path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


@pytest.mark.parametrize("output", ["run/config", "run/config.json", "run/training", "notes", "picture.png"])
def test_a_file_of_the_users_is_never_replaced(trained, output):
    shutil.copytree(trained / "series-run", "run")
    Path("notes.json").write_text('{"accuracy": "by hand"}')
    Path("picture.png").write_bytes(b"\x89PNG")
    before = contents(".")
    says(["tradeoff", "run", "--output", output, *CPU], "this command did not write it", "--output", status=2)
    assert contents(".") == before


@pytest.mark.parametrize("output", ["/", ".", "..", "run", "run/", "new/", ""])
def test_the_output_is_not_a_folder(trained, output):
    Path("run").mkdir()
    says(["tradeoff", str(trained / "series-run"), "--output", output, *CPU], "is a folder", status=2)
    assert contents(".") == {} and not Path("/.json").exists() and not Path("new").exists()


def test_an_output_that_cannot_be_written_is_refused_before_anything_is_computed(monkeypatch, trained):
    Path("notes").write_text("")
    with pytest.raises(ValueError, match="notes is a file, not a folder: choose another --output"):
        OutputFiles("notes/curve", "bench")
    monkeypatch.setattr(output_files, "TemporaryFile", lambda dir: Path(dir, "no/such/folder").touch())
    with pytest.raises(OSError, match=r"curve\.json cannot be written: .*; choose a folder that can be written to"):
        OutputFiles("curve", "bench")


@pytest.mark.parametrize("output", ["curve", "made/anew/curve", "curve.png"])
def test_an_earlier_output_is_replaced(trained, output):
    options = ["tradeoff", str(trained / "series-run"), *CPU, "--output", output, "--thresholds"]
    written = []
    for thresholds in (["0.9"], ["0.8", "0.95"]):
        main([*options, *thresholds])
        written.append(contents("."))
    assert len(written[0]) == 2 and written[0].keys() == written[1].keys()
    assert all(written[0][path] != written[1][path] for path in written[0])


def test_the_output_of_another_command_is_not_replaced(trained):
    main(["tradeoff", str(trained / "series-run"), *CPU, "--output", "both"])
    with pytest.raises(ValueError, match="exists, and this command did not write it"):
        OutputFiles("both", "bench")
